// Package defences measures how many database reads each defence of the catalogue's cache
// saves.
package defences

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/catalog"
	"flashsale/internal/pause"
	"flashsale/lock"
)

// The measurements of the table. The database is a counter that takes sourceTime for an
// answer: queries and ids are counted, not times.
const (
	hotReaders  = 10_000
	hotCatalogs = 4
	ghostIDs    = 20_000
	ghostTwice  = 2 // requests for each of them
	togetherIDs = 1_000
	sourceTime  = 20 * time.Millisecond
	// togetherLife is when the items that were loaded together are reloaded, and togetherSlot
	// the length of the busiest moment of that.
	togetherLife = 2 * time.Second
	togetherSlot = 50 * time.Millisecond
	// fleetDB is the Redis database of the measurements.
	fleetDB = 1
)

// counted is a database that counts its queries.
type counted struct {
	known          map[string]catalog.Item
	questions, ids atomic.Int64

	mu sync.Mutex
	at []time.Time // of each requested id
}

func newCounted(n int) (*counted, []string) {
	s := &counted{known: make(map[string]catalog.Item, n)}
	var ids []string
	for i := range n {
		id := fmt.Sprintf("known-%d", i)
		ids = append(ids, id)
		s.known[id] = catalog.Item{ID: id, Version: 1, Control: catalog.ControlOpen}
	}
	return s, ids
}

func (s *counted) Items(context.Context) ([]catalog.Item, error) {
	return nil, errors.New("the list is no part of the table")
}

func (s *counted) ItemIDs(_ context.Context, after string, limit int) ([]string, error) {
	var ids []string
	for id := range s.known {
		if id > after {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids[:min(limit, len(ids))], nil
}

func (s *counted) ItemsByID(ctx context.Context, ids []string) ([]catalog.Item, error) {
	s.questions.Add(1)
	s.ids.Add(int64(len(ids)))
	s.mu.Lock()
	now := time.Now()
	for range ids {
		s.at = append(s.at, now)
	}
	s.mu.Unlock()
	if err := pause.OrCause(ctx, sourceTime); err != nil {
		return nil, err
	}
	var found []catalog.Item
	for _, id := range ids {
		if item, ok := s.known[id]; ok {
			found = append(found, item)
		}
	}
	return found, nil
}

func (s *counted) Left(_ context.Context, items []string) ([]int64, error) {
	return make([]int64, len(items)), nil
}

// busiest is the largest number of ids that were requested within one slot.
func (s *counted) busiest() int {
	most := 0
	for i := range s.at {
		j := i
		for j < len(s.at) && s.at[j].Sub(s.at[i]) < togetherSlot {
			j++
		}
		most = max(most, j-i)
	}
	return most
}

// fleet is several processes with the same settings, on an empty Redis.
type fleet struct {
	source   *counted
	ids      []string
	catalogs []*catalog.Catalog
	close    func() error
}

func newFleet(ctx context.Context, addr string, n, items int, cfg catalog.Config) (*fleet, error) {
	s := &fleet{}
	s.source, s.ids = newCounted(items)
	running, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	var closers []func() error
	s.close = func() error {
		cancel()
		all.Wait()
		var errs []error
		for _, fn := range slices.Backward(closers) {
			errs = append(errs, fn())
		}
		return errors.Join(errs...)
	}
	for i := range n {
		rdb := redis.NewClient(&redis.Options{Addr: addr, DB: fleetDB, MaxRetries: -1, ContextTimeoutEnabled: true})
		closers = append(closers, rdb.Close)
		if i == 0 {
			// This program has started the server, and the service uses its database 0.
			if err := rdb.FlushDB(ctx).Err(); err != nil {
				return s, err
			}
		}
		locks, err := lock.New(rdb, lock.Config{TTL: 3 * time.Second})
		if err != nil {
			return s, err
		}
		closers = append(closers, func() error { return locks.Close(context.WithoutCancel(ctx)) })
		cfg.Redis, cfg.Locks = rdb, locks
		c, err := catalog.New(ctx, s.source, s.source, cfg)
		if err != nil {
			return s, err
		}
		closers = append(closers, func() error { return c.Close(context.WithoutCancel(ctx)) })
		s.catalogs = append(s.catalogs, c)
		all.Go(func() { _ = c.Run(running) }) //nolint:errcheck // it returns nil when running ends
	}
	return s, nil
}

// read reads ids on all processes concurrently and waits for all answers.
func (s *fleet) read(ctx context.Context, readers int, id func(i int) string) error {
	var all sync.WaitGroup
	failed := make(chan error, readers)
	slots := make(chan struct{}, hotReaders)
	for i := range readers {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			_, err := s.catalogs[i%len(s.catalogs)].View(ctx, id(i))
			if err != nil && !errors.Is(err, catalog.ErrItemNotFound) {
				failed <- err
			}
		})
	}
	all.Wait()
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

// defenceRow is one line of the table.
type defenceRow struct{ hot, expired, ghosts, together int64 }

// Print prints the table of the ids that reach the database, with all defences and with each
// off.
func Print(ctx context.Context, out io.Writer, addr string) error {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "defence off\tcold hot item\texpired hot item\tunknown ids\tbusiest 50 ms")
	for _, off := range []string{"none", "avalanche", "breakdown", "bloom", "negatives", "penetration", "avalanche,breakdown,penetration"} {
		var d catalog.Defence
		var err error
		if off != "none" {
			if d, err = catalog.ParseDefences(strings.Split(off, ",")); err != nil {
				return err
			}
		}
		row, err := measureDefence(ctx, addr, d)
		if err != nil {
			return fmt.Errorf("without %s: %w", off, err)
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\n", off, row.hot, row.expired, row.ghosts, row.together)
	}
	fmt.Fprintf(w, "(ids read from the database: %d readers of one item on %d processes, with an empty cache and after expiry;\n"+
		" %d unknown ids, %d times each; the maximum of %d items, loaded together, that are reloaded within %v)\n",
		hotReaders, hotCatalogs, ghostIDs, ghostTwice, togetherIDs, togetherSlot)
	return w.Flush()
}

func measureDefence(ctx context.Context, addr string, off catalog.Defence) (row defenceRow, err error) {
	// A wait and a life that are long enough for any machine.
	cfg := catalog.Config{Off: off, Life: time.Second, Fresh: 5 * time.Second, Wait: time.Minute, LoadTimeout: time.Minute, LoadLimit: 512}
	if row.hot, row.expired, err = hotItem(ctx, addr, cfg); err != nil {
		return row, err
	}
	if row.ghosts, err = ghosts(ctx, addr, cfg); err != nil {
		return row, err
	}
	cfg.Fresh, cfg.LoadLimit = togetherLife, togetherIDs
	row.together, err = together(ctx, addr, cfg)
	return row, err
}

// hotItem measures a breakdown: all readers want one item that is not cached, and again when
// it has expired.
func hotItem(ctx context.Context, addr string, cfg catalog.Config) (cold, expired int64, err error) {
	s, err := newFleet(ctx, addr, hotCatalogs, 1, cfg)
	if err == nil {
		err = s.read(ctx, hotReaders, func(int) string { return s.ids[0] })
	}
	cold = s.source.ids.Load()
	if err == nil {
		err = pause.OrCause(ctx, cfg.Fresh)
	}
	if err == nil {
		err = s.read(ctx, hotReaders, func(int) string { return s.ids[0] })
	}
	if err == nil {
		err = pause.OrCause(ctx, 10*sourceTime) // for background loads
	}
	return cold, s.source.ids.Load() - cold, errors.Join(err, s.close())
}

// ghosts measures a penetration: unknown ids, each requested twice.
func ghosts(ctx context.Context, addr string, cfg catalog.Config) (int64, error) {
	s, err := newFleet(ctx, addr, 1, 100, cfg)
	for err == nil && s.catalogs[0].Stats().Queries == 0 {
		err = pause.OrCause(ctx, time.Millisecond) // until the set of ids is read
	}
	if err == nil {
		err = pause.OrCause(ctx, 10*sourceTime)
	}
	before := s.source.ids.Load()
	for range ghostTwice {
		if err == nil {
			err = s.read(ctx, ghostIDs, func(i int) string { return fmt.Sprintf("ghost-%d", i) })
		}
	}
	return s.source.ids.Load() - before, errors.Join(err, s.close())
}

// together measures an avalanche: items that were loaded together expire while all of them are
// read.
func together(ctx context.Context, addr string, cfg catalog.Config) (int64, error) {
	s, err := newFleet(ctx, addr, 1, togetherIDs, cfg)
	all := func(i int) string { return s.ids[i] }
	if err == nil {
		err = s.read(ctx, togetherIDs, all)
	}
	s.source.mu.Lock()
	s.source.at = nil
	s.source.mu.Unlock()
	for end := time.Now().Add(cfg.Fresh + cfg.Fresh/4); err == nil && time.Now().Before(end); {
		if err = s.read(ctx, togetherIDs, all); err == nil {
			err = pause.OrCause(ctx, 5*time.Millisecond)
		}
	}
	return int64(s.source.busiest()), errors.Join(err, s.close())
}
