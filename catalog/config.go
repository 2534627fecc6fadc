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

// Stock tells the live number of units left; -1 where it is not loaded.
type Stock interface {
	Left(ctx context.Context, items []string) ([]int64, error)
}

// Locker lets one process load an item for all.
type Locker interface {
	Acquire(ctx context.Context, resource string, opts ...lock.Option) (*lock.Lock, error)
}

// Config configures a Catalog. A zero field means its default.
type Config struct {
	// Redis is the layer between memory and database, and carries the messages
	// of changes. Default nil: there is none, and memory stands alone.
	Redis redis.UniversalClient
	// Locks lets one process load an item for all. Default nil: each loads.
	Locks Locker
	// Partition tells in which partition an item's keys are. Default: 0 for all.
	Partition func(item string) int
	// Off turns defences off. Default: none.
	Off Defence

	// Life bounds the age of an item that somebody buys by: of its price and limit,
	// not of its stock, which is not read here. Default 1 s.
	Life time.Duration
	// Fresh is the age from which an item that is shown is loaded again, behind the
	// back of those who look at it; less up to a fifth of it, at random. At least
	// Life. Default 10 s.
	Fresh time.Duration
	// Keep is how long an item that cannot be loaded again is still shown, and
	// remembered in Redis; less up to a fifth of it, at random. At least Fresh.
	// Default 10 min.
	Keep time.Duration
	// Negative is how long it is remembered that an id is none, at most 5 min;
	// its creation ends that at once. Default 30 s.
	Negative time.Duration

	// MaxItems bounds the items remembered in the process, and as many ids that are
	// none beside them. Default 100,000.
	MaxItems int
	// LoadLimit bounds the questions to the source for items by id that are under
	// way at one time. Default 8.
	LoadLimit int
	// LoadTimeout bounds one question to the source. Default 5 s.
	LoadTimeout time.Duration
	// Wait bounds how long a reader waits for an item that is not available from
	// memory or Redis, and how long a process waits for another that is loading it
	// before it asks the source itself. Default 2 s.
	Wait time.Duration
	// RedisTimeout bounds one look at Redis. Default 250 ms.
	RedisTimeout time.Duration
	// StockTimeout bounds one question for the stock, of at most 1,000 items; Wait
	// bounds those for the stock of a list. Default 250 ms.
	StockTimeout time.Duration

	// Now is the time by which an item's sale opens and closes. Default: the host's.
	Now func(item string) time.Time
	// OpenSale loads an item's sale unless it is loaded, for an item that is to be
	// warm. Default: nothing.
	OpenSale func(ctx context.Context, item string) error
	// OnError learns of what was answered from further below, or with less, than it
	// should have been. Default: nothing.
	OnError func(error)

	// tellLimit is tellTimeout; only tests set it.
	tellLimit time.Duration
}

// maxNegative bounds how long an id may be taken for none: should everything
// that tells of its creation fail, that is how long it stays hidden.
const maxNegative = 5 * time.Minute

func (c Config) withDefaults() (Config, error) {
	for _, f := range []struct {
		name string
		v    *time.Duration
		def  time.Duration
		// least is what the default is not less than, when that was set.
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
		{"tellLimit", &c.tellLimit, tellTimeout, nil},
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
	if c.Partition == nil {
		c.Partition = func(string) int { return 0 }
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

// Defence is a set of the cache's defences. Each can be turned off, to measure
// what it is worth.
type Defence uint8

// The defences.
const (
	// Avalanche spreads the expiries of what was loaded together.
	Avalanche Defence = 1 << iota
	// Breakdown lets one load an item for all: the others are given the value
	// before, or wait for the one.
	Breakdown
	// Bloom refuses ids that are surely none from memory.
	Bloom
	// Negatives remembers for a while that an id is none.
	Negatives
	// Penetration keeps ids that are none from the database.
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
			return 0, fmt.Errorf("catalog: %q is no defence; there are %s", name, strings.Join(slices.Sorted(maps.Keys(defenceNames)), ", "))
		}
		all |= d
	}
	return all, nil
}
