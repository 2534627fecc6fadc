package inventory

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/pause"
)

const (
	// clockEvery is the pause between measurements.
	clockEvery = 5 * time.Second
	// clockSamples is how many times a measurement reads each server's clock.
	clockSamples = 5
	// clockTimeout bounds one measurement of all servers.
	clockTimeout = 2 * time.Second
	// clockDrift is how far two clocks may diverge per unit of time; NTP slews a clock by at most this.
	clockDrift = 500e-6
)

// scriptClock is the clock of a partition's server as its last purchase script reported it. Its
// time is behind by that script's round trip, and by the drift of two clocks within its life.
type scriptClock struct{ reported atomic.Pointer[reportedTime] }

type reportedTime struct {
	ms int64
	at time.Time
}

const (
	// scriptClockLife is how long after its last script a scriptClock is used.
	scriptClockLife = 30 * time.Second
	// scriptClockPause is how often it is set at most, so that not every batch allocates.
	scriptClockPause = 100 * time.Millisecond
)

// now returns the time in ms since 1970, if it is known.
func (c *scriptClock) now() (ms int64, known bool) {
	h := c.reported.Load()
	if h == nil {
		return 0, false
	}
	age := time.Since(h.at)
	return h.ms + age.Milliseconds(), age < scriptClockLife
}

func (c *scriptClock) set(ms int64) {
	if h := c.reported.Load(); h == nil || time.Since(h.at) >= scriptClockPause || ms < h.ms {
		c.reported.Store(&reportedTime{ms, time.Now()})
	}
}

// Clock is the clock by which the purchase script opens and closes sales: that of the
// Redis server that keeps the item. It adds the time since its last measurement to the
// time that Redis reported then, so reading it costs no call to Redis, and setting the
// host's clock does not affect it. Until the first measurement it is the host's clock.
// A Clock is safe for concurrent use.
type Clock struct {
	rdb     redis.UniversalClient
	keys    keys
	host    func() time.Time
	servers []atomic.Pointer[reading] // by partition; nil: never measured

	mu    sync.Mutex // held while measuring
	known map[string]reading
}

// reading is one server's offset as it was measured.
type reading struct {
	offset time.Duration
	// uncertainty bounds the offset's error: half of the exchange that measured it.
	uncertainty time.Duration
	at          time.Time // by the host's clock
}

// NewClock returns a Clock for that number of partitions. host is this machine's
// clock. Measure or Run finds the offsets.
func NewClock(rdb redis.UniversalClient, partitions int, host func() time.Time) *Clock {
	return &Clock{rdb: rdb, keys: keys{partitions}, host: host, servers: make([]atomic.Pointer[reading], partitions)}
}

// Now is the time of partition 0's server. It is the time of everything that
// belongs to no single item; on a single server it is the time of all items.
func (c *Clock) Now() time.Time { return c.at(0) }

// ItemNow is the time by which the item's sale opens and closes.
func (c *Clock) ItemNow(item string) time.Time { return c.at(c.keys.partition(item)) }

func (c *Clock) at(partition int) time.Time {
	now := c.host()
	r := c.servers[partition].Load()
	if r == nil {
		return now
	}
	// The difference is monotonic if the host's clock is.
	return r.at.Add(r.offset).Add(now.Sub(r.at)).Round(0)
}

// Offset is how far Redis's clock is ahead of the host's; negative when it is behind.
// With several servers it is the largest offset.
func (c *Clock) Offset() time.Duration {
	var most time.Duration
	for i := range c.servers {
		if r := c.servers[i].Load(); r != nil && r.offset.Abs() > most.Abs() {
			most = r.offset
		}
	}
	return most
}

// Run measures every few seconds until ctx ends. onError gets the errors; after an error
// the offset stays as it was.
func (c *Clock) Run(ctx context.Context, onError func(error)) {
	for pause.For(ctx, clockEvery) {
		if err := c.Measure(ctx); err != nil && ctx.Err() == nil {
			onError(err)
		}
	}
}

// Measure measures every server once, within two seconds. A server that does not
// answer keeps its offset. Errors: those of Redis.
func (c *Clock) Measure(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, clockTimeout)
	defer cancel()
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	// Servers that no longer keep a partition are dropped.
	measured := make(map[string]reading)
	for p := range c.servers {
		server, name, err := c.server(ctx, p)
		if err != nil {
			errs = append(errs, fmt.Errorf("find the server of partition %d: %w", p, err))
			continue
		}
		r, done := measured[name]
		if !done {
			was, known := c.known[name]
			if r, err = c.ask(ctx, server); err != nil {
				errs = append(errs, fmt.Errorf("read the clock of Redis: %w", err))
				r = was
			} else if known && !r.replaces(was) {
				r = was
			}
			measured[name] = r
		}
		if r.at.IsZero() {
			continue // it has never answered
		}
		c.servers[p].Store(&r)
	}
	c.known = measured
	return errors.Join(errs...)
}

// server returns the server that runs a partition's scripts, and a name that
// distinguishes it from the others.
func (c *Clock) server(ctx context.Context, partition int) (*redis.Client, string, error) {
	switch rdb := c.rdb.(type) {
	case *redis.ClusterClient:
		node, err := rdb.MasterForKey(ctx, c.keys.epoch(partition))
		if err != nil {
			return nil, "", err
		}
		return node, node.Options().Addr, nil
	case *redis.Client:
		return rdb, "", nil
	default:
		return nil, "", fmt.Errorf("a client of type %T has no single clock", rdb)
	}
}

// ask reads a server's time a few times. The quickest exchange is the most precise,
// because the server read its clock at some instant of it.
func (c *Clock) ask(ctx context.Context, server *redis.Client) (best reading, err error) {
	for i := range clockSamples {
		sent := c.host()
		there, err := server.Time(ctx).Result()
		if err != nil {
			return reading{}, err
		}
		half := c.host().Sub(sent) / 2
		if i == 0 || half < best.uncertainty {
			best = reading{offset: there.Sub(sent.Add(half)), uncertainty: half, at: sent}
		}
	}
	return best, nil
}

// replaces reports whether a reading is better than an earlier one. On a busy machine an
// exchange takes long and is imprecise; the earlier reading then stays, unless the two
// contradict each other, which means that a clock was set.
func (r reading) replaces(was reading) bool {
	grown := was.uncertainty + time.Duration(float64(r.at.Sub(was.at).Abs())*clockDrift)
	return r.uncertainty <= grown || (r.offset-was.offset).Abs() > r.uncertainty+grown
}
