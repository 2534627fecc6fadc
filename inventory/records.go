package inventory

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// EntryKey is under what a sale remembers an order.
type EntryKey struct {
	Buyer          string
	IdempotencyKey string
}

func (k EntryKey) field() string { return k.Buyer + " " + k.IdempotencyKey }

// Entry is what a sale remembers of an order.
type Entry struct {
	EntryKey
	Known    bool   // false: there is nothing under the key, and the rest is empty
	OrderID  string // empty: what is there cannot be read
	Quantity int64
	Returned bool // its units were given back, or never counted
}

// BuyerCount is how many units a sale counts a buyer with.
type BuyerCount struct {
	Buyer string
	Units int64 // -1: what is there cannot be read
}

// recordsPage is how many records are handed over at a time.
const recordsPage = 500

// EachEntry calls fn with every order that a sale remembers, some hundreds at a
// time. Orders that come or go meanwhile may be missed, and one may be seen twice.
func (v *Inventory) EachEntry(ctx context.Context, item string, fn func([]Entry) error) error {
	return EachEntry(ctx, v.rdb, v.cfg.Partitions, item, fn)
}

// EachEntry is [Inventory.EachEntry] for a process that has no Inventory. The sale
// need not be loaded. Errors: [ErrUnavailable], and fn's.
func EachEntry(ctx context.Context, rdb redis.UniversalClient, partitions int, item string, fn func([]Entry) error) error {
	return scan(ctx, rdb, keys{partitions}.idempotency(item), func(pairs []string) error {
		page := make([]Entry, 0, len(pairs)/2)
		for i := 0; i+1 < len(pairs); i += 2 {
			buyer, key, _ := strings.Cut(pairs[i], " ")
			page = append(page, parseEntry(EntryKey{buyer, key}, pairs[i+1]))
		}
		return fn(page)
	})
}

// EachCount calls fn with every buyer's count of a sale, as EachEntry does.
func (v *Inventory) EachCount(ctx context.Context, item string, fn func([]BuyerCount) error) error {
	return scan(ctx, v.rdb, v.keys.buyers(item), func(pairs []string) error {
		page := make([]BuyerCount, 0, len(pairs)/2)
		for i := 0; i+1 < len(pairs); i += 2 {
			page = append(page, BuyerCount{pairs[i], parseUnits(pairs[i+1])})
		}
		return fn(page)
	})
}

func scan(ctx context.Context, rdb redis.UniversalClient, key string, fn func(pairs []string) error) error {
	for cursor := uint64(0); ; {
		pairs, next, err := rdb.HScan(ctx, key, cursor, "", recordsPage).Result()
		if err != nil {
			return fmt.Errorf("scan %s: %w: %w", key, ErrUnavailable, err)
		}
		// A small hash comes whole, whatever was asked for, and so does any from
		// the embedded engine.
		for len(pairs) > 0 {
			n := min(len(pairs), 2*recordsPage)
			if err := fn(pairs[:n]); err != nil {
				return err
			}
			pairs = pairs[n:]
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

// Entries reads what a sale remembers under these keys, in order.
func (v *Inventory) Entries(ctx context.Context, item string, keys []EntryKey) ([]Entry, error) {
	return Entries(ctx, v.rdb, v.cfg.Partitions, item, keys)
}

// Entries is [Inventory.Entries] for a process that has no Inventory.
func Entries(ctx context.Context, rdb redis.UniversalClient, partitions int, item string, of []EntryKey) ([]Entry, error) {
	names := make([]string, len(of))
	for i := range of {
		names[i] = of[i].field()
	}
	values, err := fields(ctx, rdb, keys{partitions}.idempotency(item), names)
	if err != nil {
		return nil, err
	}
	out := make([]Entry, len(of))
	for i, value := range values {
		out[i] = Entry{EntryKey: of[i]}
		if text, there := value.(string); there {
			out[i] = parseEntry(of[i], text)
		}
	}
	return out, nil
}

// Counts reads how many units a sale counts these buyers with, in order; 0 for
// one whom it does not know.
func (v *Inventory) Counts(ctx context.Context, item string, buyers []string) ([]int64, error) {
	values, err := fields(ctx, v.rdb, v.keys.buyers(item), buyers)
	if err != nil {
		return nil, err
	}
	out := make([]int64, len(buyers))
	for i, value := range values {
		if text, there := value.(string); there {
			out[i] = parseUnits(text)
		}
	}
	return out, nil
}

func fields(ctx context.Context, rdb redis.UniversalClient, key string, names []string) ([]any, error) {
	out := make([]any, 0, len(names))
	for from := 0; from < len(names); from += recordsPage {
		values, err := rdb.HMGet(ctx, key, names[from:min(from+recordsPage, len(names))]...).Result()
		if err != nil {
			return nil, fmt.Errorf("read %s: %w: %w", key, ErrUnavailable, err)
		}
		out = append(out, values...)
	}
	return out, nil
}

// parseEntry reads "<quantity>:<order id>" with or without ":r" behind it.
func parseEntry(key EntryKey, value string) Entry {
	e := Entry{EntryKey: key, Known: true}
	quantity, id, _ := strings.Cut(value, ":")
	id, e.Returned = strings.CutSuffix(id, ":r")
	n, err := strconv.ParseInt(quantity, 10, 64)
	if err != nil || n < 1 {
		return e
	}
	e.Quantity, e.OrderID = n, id
	return e
}

func parseUnits(value string) int64 {
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil || n < 0 {
		return -1
	}
	return n
}
