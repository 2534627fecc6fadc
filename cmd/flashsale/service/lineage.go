package service

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/cmd/flashsale/backend"
	"flashsale/cmd/flashsale/config"
	"flashsale/inventory"
	"flashsale/order/store"
)

// lineageGuard prevents this process from working with the Redis of another database: it would
// commit the queued orders of that shop, and rebuild its sales.
type lineageGuard struct {
	settings *config.Settings
	lineage  atomic.Pointer[string] // of the database; nil: begin has not succeeded yet
	foreign  chan error             // receives the first ErrLineage
}

func newLineageGuard(s *config.Settings) *lineageGuard {
	return &lineageGuard{settings: s, foreign: make(chan error, 1)}
}

// matchEvery is the interval between comparisons: another shop may use a Redis that was emptied,
// on the connections that this process has.
const matchEvery = time.Second

// begin records the lineage of the database in Redis, or fails if Redis has another. From then on
// every new connection is checked, and Redis at intervals, and the process ends if Redis has the
// lineage of another database.
func (g *lineageGuard) begin(ctx context.Context, db *store.Store, rdb redis.UniversalClient, ps *parts) error {
	lineage, err := store.Lineage(ctx, db)
	if err != nil {
		return err
	}
	if err := inventory.CheckLineage(ctx, rdb, lineage); err != nil {
		return backend.RedisError(ctx, g.settings.Redis, backend.LineageError(g.settings, err))
	}
	g.lineage.Store(&lineage)
	ps.add(part{name: "redis lineage", run: func(ctx context.Context) error {
		return g.watch(ctx, rdb)
	}})
	return nil
}

// watch returns an error once Redis has the lineage of another database.
func (g *lineageGuard) watch(ctx context.Context, rdb redis.UniversalClient) error {
	tick := time.NewTicker(matchEvery)
	defer tick.Stop()
	for {
		select {
		case err := <-g.foreign:
			return backend.LineageError(g.settings, err)
		case <-tick.C:
			// Other errors are those of Redis, which every part reports.
			if err := inventory.MatchLineage(ctx, rdb, *g.lineage.Load()); errors.Is(err, inventory.ErrLineage) {
				return backend.LineageError(g.settings, err)
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// connected refuses a new connection that leads to the Redis of another database. On a cluster,
// only the node that has the key can tell; the others and an error of the server pass, because
// the commands that follow have the same error.
func (g *lineageGuard) connected(ctx context.Context, c *redis.Conn) error {
	lineage := g.lineage.Load()
	if lineage == nil {
		return nil
	}
	err := inventory.MatchLineage(ctx, c, *lineage)
	if answered := redis.Error(nil); errors.As(err, &answered) {
		return nil
	}
	if errors.Is(err, inventory.ErrLineage) {
		select {
		case g.foreign <- err:
		default:
		}
	}
	return err
}
