package catalog

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/lock"
)

// Source is where items come from: the database.
type Source interface {
	Items(ctx context.Context) ([]Item, error)
	// ItemsByID leaves unknown ids out.
	ItemsByID(ctx context.Context, ids []string) ([]Item, error)
	// ItemIDs reads at most limit ids that come after the one given, in order.
	ItemIDs(ctx context.Context, after string, limit int) ([]string, error)
}

// Stock reads the live number of units left; -1 where it is not loaded.
type Stock interface {
	Left(ctx context.Context, items []string) ([]int64, error)
}

// Config configures a Catalog. A zero field means its default.
type Config struct {
	// Redis is the layer between memory and database, and carries the messages
	// of changes. Default nil: there is only the memory.
	Redis redis.UniversalClient
	// Locks lets one process load an item for all. Default nil: each loads.
	Locks *lock.Manager
	// HashTag returns the hash tag of an item's keys. Default: "p0" for all.
	HashTag func(item string) string
	// Off turns defences off. Default: none.
	Off Defence

	// Life bounds the age of an item that is used for a purchase: of its price and limit,
	// not of its stock, which is not used there. Default 1 s.
	Life time.Duration
	// Fresh is the age from which a displayed item is reloaded in the background, minus
	// up to a fifth at random. At least Life. Default 10 s.
	Fresh time.Duration
	// Keep is how long an item that cannot be reloaded is still shown, and how long Redis
	// stores it, minus up to a fifth at random. At least Fresh. Default 10 min.
	Keep time.Duration
	// Negative is the life of a negative entry, which says that an id is unknown, at most
	// 5 min. The creation of the item removes the entry. Default 30 s.
	Negative time.Duration

	// MaxItems bounds the items cached in the process, and separately the unknown ids.
	// Default 100,000.
	MaxItems int
	// LoadLimit bounds the concurrent queries to the source for items by id. Default 8.
	LoadLimit int
	// LoadTimeout bounds one query to the source. Default 5 s.
	LoadTimeout time.Duration
	// Wait bounds how long a reader waits for an item that is neither in memory nor in
	// Redis, and how long a process waits for another that is loading it before it
	// queries the source itself. Default 2 s.
	Wait time.Duration
	// RedisTimeout bounds one call to Redis. Default 250 ms.
	RedisTimeout time.Duration
	// StockTimeout bounds one query for the stock, of at most 1,000 items; Wait bounds
	// all queries for the stock of a list. Default 250 ms.
	StockTimeout time.Duration

	// Now is the time by which an item's sale opens and closes. Default: the host's.
	Now func(item string) time.Time
	// OpenSale loads the sale of an item that is being warmed, unless it is loaded.
	// Default: nothing.
	OpenSale func(ctx context.Context, item string) error
	// OnError gets the errors after which the catalogue has answered from a lower layer,
	// or without a part such as the stock. Default: ignored.
	OnError func(error)

	// announceLimit is announceTimeout; only tests set it.
	announceLimit time.Duration
}

// maxNegative bounds the life of a negative entry, and so how long a new item stays hidden
// if all announcements of its creation fail.
const maxNegative = 5 * time.Minute

func (c Config) withDefaults() (Config, error) {
	for _, f := range []struct {
		name string
		v    *time.Duration
		def  time.Duration
		// least is a lower bound of the default.
		least *time.Duration
	}{
		{"Life", &c.Life, time.Second, nil},
		{"Fresh", &c.Fresh, 10 * time.Second, &c.Life},
		{"Keep", &c.Keep, 10 * time.Minute, &c.Fresh},
		{"Negative", &c.Negative, 30 * time.Second, nil},
		{"LoadTimeout", &c.LoadTimeout, 5 * time.Second, nil},
		{"Wait", &c.Wait, 2 * time.Second, nil},
		{"RedisTimeout", &c.RedisTimeout, 250 * time.Millisecond, nil},
		{"StockTimeout", &c.StockTimeout, 250 * time.Millisecond, nil},
		{"announceLimit", &c.announceLimit, announceTimeout, nil},
	} {
		if *f.v == 0 {
			*f.v = f.def
			if f.least != nil {
				*f.v = max(f.def, *f.least)
			}
		}
		if *f.v < 0 {
			return c, fmt.Errorf("catalog: %s is %v, want more than 0", f.name, *f.v)
		}
	}
	for _, f := range []struct {
		name string
		v    *int
		def  int
	}{{"MaxItems", &c.MaxItems, 100_000}, {"LoadLimit", &c.LoadLimit, 8}} {
		if *f.v == 0 {
			*f.v = f.def
		}
		if *f.v < 1 {
			return c, fmt.Errorf("catalog: %s is %d, want more than 0", f.name, *f.v)
		}
	}
	switch {
	case c.Fresh < c.Life || c.Keep < c.Fresh:
		return c, fmt.Errorf("catalog: Life %v, Fresh %v, Keep %v: none may be less than the one before", c.Life, c.Fresh, c.Keep)
	case c.Negative > maxNegative:
		return c, fmt.Errorf("catalog: Negative is %v, want at most %v", c.Negative, maxNegative)
	case c.Locks != nil && c.Redis == nil:
		return c, errors.New("catalog: Locks is set without Redis: waiting processes share loaded items through Redis")
	}
	if c.HashTag == nil {
		c.HashTag = func(string) string { return "p0" }
	}
	if c.Now == nil {
		c.Now = func(string) time.Time { return time.Now() }
	}
	if c.OpenSale == nil {
		c.OpenSale = func(context.Context, string) error { return nil }
	}
	if c.OnError == nil {
		c.OnError = func(error) {}
	}
	return c, nil
}

// Defence is a set of the cache's defences. Each can be turned off, to measure its effect.
type Defence uint8

// The defences.
const (
	// Avalanche spreads the expiries of items that were loaded together.
	Avalanche Defence = 1 << iota
	// Breakdown lets one reader load an item for all: the others get the old value, or
	// wait for the new one.
	Breakdown
	// Bloom refuses ids from memory that are certainly unknown.
	Bloom
	// Negatives stores for a while that an id is unknown.
	Negatives
	// Penetration keeps unknown ids from the database.
	Penetration = Bloom | Negatives
)

var defenceNames = map[string]Defence{
	"avalanche": Avalanche, "breakdown": Breakdown, "bloom": Bloom, "negatives": Negatives, "penetration": Penetration,
}

// ParseDefences reads a set of defences from their names.
func ParseDefences(names []string) (Defence, error) {
	var all Defence
	for _, name := range names {
		d, ok := defenceNames[name]
		if !ok {
			return 0, fmt.Errorf("catalog: unknown defence %q; the defences are %s", name, strings.Join(slices.Sorted(maps.Keys(defenceNames)), ", "))
		}
		all |= d
	}
	return all, nil
}
