package inventory

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/plural"
	"flashsale/lock"
)

// Live is the state of a sale in Redis.
type Live struct {
	// Loaded means that there is a sale under the current epoch, whole and not
	// being changed. Otherwise the next purchase loads it, and the rest is empty.
	Loaded bool
	// Damaged means that its values cannot be read: nothing is sold, and no purchase
	// repairs it. The rest is empty then.
	Damaged bool
	// Sale has its stock and terms. Its Version is the item's.
	Sale
}

// Live reads a sale, which continues meanwhile.
func (v *Inventory) Live(ctx context.Context, item string) (Live, error) {
	epoch, err := v.source.Epoch(ctx)
	if err != nil {
		return Live{}, err
	}
	live, _, err := v.live(ctx, item, epoch)
	return live, err
}

// Examined is an item whose lock is held, so that nothing of it is sold.
type Examined struct {
	v     *Inventory
	item  string
	epoch int64
	fence int64
}

// Live reads the sale. It is also damaged if it has seen a higher fencing token than the
// lock's, because it would refuse every holder of the lock.
func (x *Examined) Live(ctx context.Context) (Live, error) {
	live, fence, err := x.v.live(ctx, x.item, x.epoch)
	if live.Loaded && fence > x.fence {
		live = Live{Loaded: true, Damaged: true}
	}
	return live, err
}

// Examine runs look while the item's lock is held, whether the sale is loaded or not; it
// loads nothing. The wait for the lock and look may take two seconds together. If look
// returns rebuild, the sale is then rebuilt from its source under the same lock, so that
// no purchase comes between look and the rebuild. A rebuild that fails leaves no sale,
// and the next purchase loads it.
//
// Errors: [ErrUnavailable] when Redis or the lock is not available or the lock was lost,
// which makes look's result invalid; [ErrRebuilding] when the rebuild failed; look's.
func (v *Inventory) Examine(ctx context.Context, item string, look func(ctx context.Context, x *Examined) (rebuild bool, err error)) error {
	// Read before the lock is taken, so that nothing waits for a second database
	// connection while look holds one.
	epoch, err := v.source.Epoch(ctx)
	if err != nil {
		return err
	}
	until := time.Now().Add(v.cfg.HoldLimit) // for the wait and look together
	return v.underLock(ctx, item, func(held context.Context, l *lock.Lock) error {
		brief, cancel := context.WithDeadline(held, until)
		defer cancel()
		rebuild, err := look(brief, &Examined{v, item, epoch, l.Fence()})
		if err != nil {
			return err
		}
		if l.Context().Err() != nil {
			return fmt.Errorf("item %s: %w: %w", item, ErrUnavailable, context.Cause(l.Context()))
		}
		if !rebuild {
			return nil
		}
		if err := v.loadWithin(held, l, item); !errors.Is(err, ErrEnded) {
			return err
		}
		return nil // the load has removed the sale
	}, lock.WithWaitLimit(v.cfg.HoldLimit))
}

// Lives reads the sales of many items, in order. The sales continue meanwhile.
func (v *Inventory) Lives(ctx context.Context, items []string) ([]Live, error) {
	epoch, err := v.source.Epoch(ctx)
	if err != nil {
		return nil, err
	}
	cmds := make([]*redis.SliceCmd, len(items))
	err = pipelined(ctx, v.rdb, func(p redis.Pipeliner) {
		for i, item := range items {
			cmds[i] = p.HMGet(ctx, v.keys.sale(item), liveFields...)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", plural.Count(len(items), "sale"), err)
	}
	lives, failed := make([]Live, len(items)), 0
	for i, c := range cmds {
		if c.Err() != nil {
			failed++
			continue
		}
		lives[i], _ = parseLive(c.Val(), epoch)
	}
	if failed > 0 && failed == len(cmds) {
		return nil, fmt.Errorf("read %s: %w: %w", plural.Count(len(items), "sale"), ErrUnavailable, cmds[0].Err())
	}
	return lives, nil
}

// live reads a sale and the highest fencing token that it has seen.
func (v *Inventory) live(ctx context.Context, item string, epoch int64) (Live, int64, error) {
	found, err := v.rdb.HMGet(ctx, v.keys.sale(item), liveFields...).Result()
	if err != nil {
		return Live{}, 0, fmt.Errorf("read sale of %s: %w: %w", item, ErrUnavailable, err)
	}
	live, fence := parseLive(found, epoch)
	return live, fence, nil
}

// liveFields are the fields of a sale's hash that parseLive reads.
var liveFields = []string{"epoch", "left", "per_user_limit", "opens_ms", "closes_ms", "version", "fence", "control", "changing", "sequence"}

// parseLive reads the values of liveFields, of a sale of this epoch, and the highest
// fencing token that the sale has seen.
func parseLive(found []any, epoch int64) (Live, int64) {
	text := make([]string, len(found))
	for i, f := range found {
		s, there := f.(string)
		// The purchase script treats this as a missing sale and asks for a load.
		if !there && i < 6 || there && i == 8 {
			return Live{}, 0
		}
		text[i] = s
	}
	if text[0] != strconv.FormatInt(epoch, 10) {
		return Live{}, 0
	}
	damaged := false
	number := func(s string) int64 {
		n, err := strconv.ParseInt(s, 10, 64)
		damaged = damaged || err != nil
		return n
	}
	version, build, _ := strings.Cut(text[5], ".")
	opens, closes := number(text[3]), number(text[4])
	live := Live{Loaded: true, Sale: Sale{
		Left: number(text[1]), PerUserLimit: number(text[2]), OpensAt: time.UnixMilli(opens).UTC(),
		Control: text[7], Version: number(version),
	}}
	if closes != 0 {
		live.ClosesAt = time.UnixMilli(closes).UTC()
	}
	if damaged || build == "" {
		return Live{Loaded: true, Damaged: true}, 0
	}
	// The purchase script also reads 0 where there is no number.
	fence, err := strconv.ParseInt(text[6], 10, 64)
	if err != nil {
		fence = 0
	}
	if live.Sequence, err = strconv.ParseInt(text[9], 10, 64); err != nil {
		live.Sequence = 0
	}
	return live, fence
}

// EntryKey is the key under which a sale stores an order.
type EntryKey struct {
	Buyer          string
	IdempotencyKey string
}

func (k EntryKey) field() string { return k.Buyer + " " + k.IdempotencyKey }

// Entry is what a sale stores about an order.
type Entry struct {
	EntryKey
	Known    bool   // false: there is nothing under the key, and the rest is empty
	OrderID  string // empty: the stored value cannot be read
	Quantity int64
	Returned bool // its units were given back, or never counted
}

// BuyerCount is how many units a buyer has in a sale's count.
type BuyerCount struct {
	Buyer string
	Units int64 // -1: the stored value cannot be read
}

// recordsPage is how many records are passed to fn in one call.
const recordsPage = 500

// EachEntry calls fn with every order that a sale stores, in pages of a few hundred.
// Orders that are added or removed meanwhile may be missed, and one may be seen twice.
func (v *Inventory) EachEntry(ctx context.Context, item string, fn func([]Entry) error) error {
	return EachEntry(ctx, v.rdb, v.cfg.Partitions, item, fn)
}

// EachEntry is [Inventory.EachEntry] for a process that has no Inventory. The sale
// need not be loaded. Errors: [ErrUnavailable], and fn's.
func EachEntry(ctx context.Context, rdb redis.UniversalClient, partitions int, item string, fn func([]Entry) error) error {
	k := keys{partitions}
	err := scan(ctx, rdb, k.buyers(item), func(pairs []string) error {
		page := make([]Entry, 0, len(pairs)/2)
		for i := 0; i+1 < len(pairs); i += 2 {
			_, entry := parseBuyer(pairs[i], pairs[i+1])
			page = append(page, entry)
		}
		return fn(page)
	})
	if err != nil {
		return err
	}
	return scan(ctx, rdb, k.idempotency(item), func(pairs []string) error {
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
			if count, _ := parseBuyer(pairs[i], pairs[i+1]); count.Units != 0 {
				page = append(page, count)
			}
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
		// Redis returns a small hash whole, whatever the count, and the embedded engine
		// returns any hash whole.
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

// Entries reads what a sale stores under these keys, in order.
func (v *Inventory) Entries(ctx context.Context, item string, keys []EntryKey) ([]Entry, error) {
	return Entries(ctx, v.rdb, v.cfg.Partitions, item, keys)
}

// Entries is [Inventory.Entries] for a process that has no Inventory.
func Entries(ctx context.Context, rdb redis.UniversalClient, partitions int, item string, of []EntryKey) ([]Entry, error) {
	k := keys{partitions}
	names := make([]string, len(of))
	for i := range of {
		names[i] = of[i].Buyer
	}
	values, err := fields(ctx, rdb, k.buyers(item), names)
	if err != nil {
		return nil, err
	}
	out := make([]Entry, len(of))
	var further []int // places of orders that are not in their buyers' values
	names = names[:0]
	for i, value := range values {
		out[i] = Entry{EntryKey: of[i]}
		if text, there := value.(string); !there {
			continue
		} else if _, entry := parseBuyer(of[i].Buyer, text); entry.EntryKey == of[i] {
			out[i] = entry
			continue
		}
		further, names = append(further, i), append(names, of[i].field())
	}
	values, err = fields(ctx, rdb, k.idempotency(item), names)
	if err != nil {
		return nil, err
	}
	for i, value := range values {
		if text, there := value.(string); there {
			out[further[i]] = parseEntry(of[further[i]], text)
		}
	}
	return out, nil
}

// Counts reads how many units these buyers have in a sale's count, in order; 0 for a
// buyer without a count.
func (v *Inventory) Counts(ctx context.Context, item string, buyers []string) ([]int64, error) {
	values, err := fields(ctx, v.rdb, v.keys.buyers(item), buyers)
	if err != nil {
		return nil, err
	}
	out := make([]int64, len(buyers))
	for i, value := range values {
		if text, there := value.(string); there {
			count, _ := parseBuyer(buyers[i], text)
			out[i] = count.Units
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

// parseEntry reads "<quantity>:<order id>", which may be followed by ":r".
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

// parseBuyer reads the value of a buyer: see fragment_buyer.lua.
func parseBuyer(buyer, value string) (BuyerCount, Entry) {
	units, rest, _ := strings.Cut(value, " ")
	order, key, _ := strings.Cut(rest, " ")
	n, err := strconv.ParseInt(units, 10, 64)
	if err != nil || n < 0 {
		n = -1
	}
	return BuyerCount{buyer, n}, parseEntry(EntryKey{buyer, key}, order)
}

// Held returns how many units of an item a buyer holds: the count that the purchase script compares
// with the limit. It is 0 if the sale is not loaded. Errors: [ErrUnavailable].
func (v *Inventory) Held(ctx context.Context, item, buyer string) (int64, error) {
	value, err := v.rdb.HGet(ctx, v.keys.buyers(item), buyer).Result()
	if errors.Is(err, redis.Nil) {
		return 0, nil
	}
	units, _, _ := strings.Cut(value, " ") // see fragment_buyer.lua
	n, perr := strconv.ParseInt(units, 10, 64)
	if err = errors.Join(err, perr); err != nil {
		return 0, fmt.Errorf("read units of a buyer of %s: %w: %w", item, ErrUnavailable, err)
	}
	return n, nil
}

// Left reads the units left of each item, in order; -1 where the sale is not loaded, is
// being changed or cannot be read.
func (v *Inventory) Left(ctx context.Context, items []string) ([]int64, error) {
	cmds := make([]*redis.SliceCmd, len(items))
	err := pipelined(ctx, v.rdb, func(p redis.Pipeliner) {
		for i, item := range items {
			cmds[i] = p.HMGet(ctx, v.keys.sale(item), "left", "changing")
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read stock of %s: %w", plural.Count(len(items), "item"), err)
	}
	left := make([]int64, len(items))
	for i, c := range cmds {
		left[i] = -1
		found, err := c.Result()
		if err != nil && !otherType(err) {
			return nil, fmt.Errorf("read stock of %s: %w", items[i], err)
		}
		if err != nil || found[1] != nil {
			continue
		}
		if text, ok := found[0].(string); ok {
			if n, err := strconv.ParseInt(text, 10, 64); err == nil {
				left[i] = n
			}
		}
	}
	return left, nil
}
