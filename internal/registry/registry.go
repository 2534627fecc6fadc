// Package registry lists the live worker processes of a service in Redis, so that an operator
// sees whether any is alive.
package registry

import (
	"cmp"
	"context"
	"crypto/rand"
	_ "embed" // for the scripts
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Sentinels of this package. Compare with errors.Is.
var (
	// ErrConfig: a setting is out of bounds.
	ErrConfig = errors.New("registry: invalid configuration")
	// ErrFull: the maximum number of live workers is listed.
	ErrFull = errors.New("registry: too many workers")
	// ErrReply: an entry or a script's reply has an unexpected form.
	ErrReply = errors.New("registry: unexpected reply")
)

// Config configures a Registry. The zero value of a field selects its default; [New] rejects
// values out of bounds.
type Config struct {
	// Key is the hash that lists the workers. Required.
	Key string
	// Every is the interval between heartbeats of a worker. Default 5 s, at least 10 ms.
	Every time.Duration
	// Silence is how long after its last heartbeat a worker counts as live, from Every to
	// 30 days. All processes of a service need the same value. Default: three times Every.
	Silence time.Duration
}

const (
	defaultBeat = 5 * time.Second
	minBeat     = 10 * time.Millisecond
	// keep is the TTL of the key after the last heartbeat of any worker, and so of the times
	// of past workers.
	keep = 30 * 24 * time.Hour
	// maxWorkers bounds the entries of a registry.
	maxWorkers = 1024
	// beatLimit bounds one heartbeat.
	beatLimit = 3 * time.Second
)

//go:embed beat.lua
var beatLua string

//go:embed list.lua
var listLua string

var beatScript, listScript = redis.NewScript(beatLua), redis.NewScript(listLua)

// Registry lists the worker processes of a service. It is stored in one hash, with times of
// the Redis server's clock. It is safe for concurrent use.
type Registry struct {
	rdb redis.UniversalClient
	cfg Config
}

// New validates the configuration. It does not talk to Redis. Errors: ErrConfig.
func New(rdb redis.UniversalClient, cfg Config) (*Registry, error) {
	cfg.Every = cmp.Or(cfg.Every, defaultBeat)
	cfg.Silence = cmp.Or(cfg.Silence, 3*cfg.Every)
	switch {
	case rdb == nil:
		return nil, fmt.Errorf("%w: no redis client", ErrConfig)
	case cfg.Key == "":
		return nil, fmt.Errorf("%w: Key is empty", ErrConfig)
	case cfg.Every < minBeat:
		return nil, fmt.Errorf("%w: Every %v, want at least %v", ErrConfig, cfg.Every, minBeat)
	case cfg.Silence < cfg.Every || cfg.Silence > keep:
		return nil, fmt.Errorf("%w: Silence %v, want Every (%v) to %v", ErrConfig, cfg.Silence, cfg.Every, keep)
	}
	return &Registry{rdb: rdb, cfg: cfg}, nil
}

// Worker is one live process of a Registry.
type Worker struct {
	ID        string // random, chosen at the start of the process
	Host      string
	Version   string // empty if unknown
	StartedAt time.Time
	SeenAt    time.Time // its last heartbeat
	FetchedAt time.Time // its last fetch before that heartbeat; zero: never
}

// Workers is the content of a Registry at one moment. Its times are UTC, by the Redis
// server's clock and to the millisecond.
type Workers struct {
	Now time.Time
	// Live are the workers with a recent heartbeat, oldest first.
	Live []Worker
	// SeenAt and FetchedAt are the last heartbeat and the last fetch of any worker,
	// including past workers. Zero: none within 30 days.
	SeenAt, FetchedAt time.Time
}

// List returns the live workers. Errors: those of Redis.
func (r *Registry) List(ctx context.Context) (Workers, error) {
	reply, err := listScript.Run(ctx, r.rdb, []string{r.cfg.Key}).StringSlice()
	if err == nil && len(reply)%2 != 1 {
		err = fmt.Errorf("%w: %d fields", ErrReply, len(reply))
	}
	if err != nil {
		return Workers{}, fmt.Errorf("list workers: %w", err)
	}
	w, err := parseWorkers(reply, r.cfg.Silence)
	if err != nil {
		return Workers{}, fmt.Errorf("list workers: %w", err)
	}
	return w, nil
}

func parseWorkers(reply []string, silence time.Duration) (w Workers, err error) {
	if w.Now, err = parseMillis(reply[0]); err != nil {
		return Workers{}, err
	}
	for fields := reply[1:]; len(fields) > 0; fields = fields[2:] {
		switch id, value := fields[0], fields[1]; {
		case id == ":seen":
			w.SeenAt, err = parseMillis(value)
		case id == ":fetched":
			w.FetchedAt, err = parseMillis(value)
		case strings.HasPrefix(id, ":"): // a field of a later version
		default:
			var one Worker
			one, err = parseWorker(id, value)
			// If the clock was set back, a heartbeat may be in the future.
			if err == nil && w.Now.Sub(one.SeenAt).Abs() <= silence {
				w.Live = append(w.Live, one)
			}
		}
		if err != nil {
			return Workers{}, err
		}
	}
	slices.SortFunc(w.Live, func(a, b Worker) int {
		return cmp.Or(a.StartedAt.Compare(b.StartedAt), cmp.Compare(a.ID, b.ID))
	})
	return w, nil
}

func parseWorker(id, value string) (Worker, error) {
	fields := strings.Split(value, " ")
	if len(fields) != 5 {
		return Worker{}, fmt.Errorf("%w: worker %q", ErrReply, value)
	}
	one := Worker{ID: id, Host: fields[3], Version: fields[4]}
	for i, to := range []*time.Time{&one.SeenAt, &one.StartedAt, &one.FetchedAt} {
		var err error
		if *to, err = parseMillis(fields[i]); err != nil {
			return Worker{}, err
		}
	}
	return one, nil
}

// parseMillis reads a time in ms since 1970; 0 is the zero time.
func parseMillis(text string) (time.Time, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("%w: %w", ErrReply, err)
	}
	if n == 0 {
		return time.Time{}, nil
	}
	return time.UnixMilli(n).UTC(), nil
}

// Registration is the entry of this process in a Registry.
type Registration struct {
	registry *Registry
	id       string
	host     string
	version  string
	started  time.Time
	fetched  atomic.Pointer[time.Time] // nil: never
}

// Register creates the entry of a worker process that starts now; Run writes it to
// Redis. version may be empty. Spaces and control characters in host and version become
// underscores, and both are cut to 100 bytes.
func (r *Registry) Register(host, version string) *Registration {
	return &Registration{registry: r, id: rand.Text(), host: oneWord(host), version: oneWord(version), started: time.Now()}
}

// oneWord makes a text a field of an entry, whose fields are separated by spaces.
func oneWord(text string) string {
	const longest = 100
	text = strings.Map(func(c rune) rune {
		if c <= ' ' || c == 0x7f {
			return '_'
		}
		return c
	}, text)
	return text[:min(len(text), longest)]
}

// Fetched records that tasks were fetched now, for the next heartbeat.
func (g *Registration) Fetched() {
	now := time.Now()
	g.fetched.Store(&now)
}

// SinceFetch returns the time since the last call of Fetched, and false if there was
// none.
func (g *Registration) SinceFetch() (time.Duration, bool) {
	t := g.fetched.Load()
	if t == nil {
		return 0, false
	}
	return time.Since(*t), true
}

// Run sends a heartbeat at once and then at intervals until ctx ends; then it removes
// the entry. It reports to onError the first of consecutive failed heartbeats, and a
// failed removal; the entry expires then.
func (g *Registration) Run(ctx context.Context, onError func(error)) {
	tick := time.NewTicker(g.registry.cfg.Every)
	defer tick.Stop()
	failing := false
	for {
		err := g.send(ctx, false)
		if err != nil && !failing && ctx.Err() == nil {
			onError(err)
		}
		failing = err != nil
		select {
		case <-tick.C:
		case <-ctx.Done():
			if err := g.send(ctx, true); err != nil {
				onError(err)
			}
			return
		}
	}
}

// send sends a heartbeat or the removal of the entry. The end of ctx does not cancel
// it: a heartbeat that arrives after the removal would restore the entry.
func (g *Registration) send(ctx context.Context, leaving bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), beatLimit)
	defer cancel()
	fetched, gone := int64(-1), "0"
	if d, ok := g.SinceFetch(); ok {
		fetched = d.Milliseconds()
	}
	if leaving {
		gone = "1"
	}
	c := &g.registry.cfg
	room, err := beatScript.Run(ctx, g.registry.rdb, []string{c.Key},
		g.id, time.Since(g.started).Milliseconds(), fetched, g.host, g.version,
		c.Silence.Milliseconds(), keep.Milliseconds(), maxWorkers, gone).Int()
	if err == nil && room == 0 {
		err = fmt.Errorf("%w: %d are listed", ErrFull, maxWorkers)
	}
	if err != nil {
		return fmt.Errorf("send heartbeat of a worker: %w", err)
	}
	return nil
}
