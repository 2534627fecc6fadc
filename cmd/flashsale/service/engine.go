package service

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"flashsale/cmd/flashsale/backend"
	"flashsale/cmd/flashsale/config"
	"flashsale/internal/breaker"
	"flashsale/inventory"
	"flashsale/inventory/accepted"
	"flashsale/order"
	"flashsale/order/recovery"
	"flashsale/order/store"
	"flashsale/order/worker"
	"flashsale/queue"
)

// engine is the state: the database, Redis with its clock, and the task queues.
type engine struct {
	store      *store.Store
	rdb        redis.UniversalClient
	clock      *inventory.Clock // that of Redis
	nudges     recovery.Nudges  // for every new connection to Redis
	lineage    *lineageGuard
	breakers   *breaker.Breakers
	partitions int
	queues     []*queue.Queue // of orders, by partition
	expires    []*queue.Queue // expiry of unpaid orders, by partition
	// unused: Redis is embedded, so it is empty, and the database has no items at the
	// start. There is nothing to load.
	unused bool
}

// openEngine opens the database and Redis and checks that they match.
func openEngine(ctx context.Context, e *env, ps *parts) (*engine, error) {
	s := e.settings
	eng := &engine{nudges: recovery.NewNudges(), breakers: newBreakers(e.registry), partitions: s.Partitions}
	backend.LogRedis(e.log)
	var closers []func() error
	var err error
	// This does not connect yet.
	eng.lineage = newLineageGuard(s)
	connected := func(ctx context.Context, c *redis.Conn) error {
		eng.nudges.Nudge()
		return eng.lineage.connected(ctx, c)
	}
	if eng.rdb, closers, err = backend.OpenRedis(s.Redis, eng.breakers, connected); err != nil {
		return nil, err
	}
	eng.clock = inventory.NewClock(eng.rdb, s.Partitions, e.now)
	var redisParts parts
	for _, fn := range slices.Backward(closers) {
		redisParts.closing("redis", fn)
	}
	err = eng.openDatabase(ctx, e, ps)
	*ps = append(*ps, redisParts...)
	if err != nil {
		return nil, err
	}
	err = backend.CheckRedis(ctx, s.Redis, eng.rdb, func(cause string) { e.log.Warn().Str("reason", cause).Msg("waiting for Redis") })
	if err != nil {
		return nil, err
	}
	startClock(ctx, e, eng.clock, ps)
	if err := eng.lineage.begin(ctx, eng.store, eng.rdb, ps); err != nil {
		return nil, err
	}
	if !e.embedded() {
		addRedisMemory(e, eng.rdb, ps)
	}
	if err := eng.checkPartitions(ctx, s); err != nil {
		return nil, err
	}
	if err := eng.openQueues(s); err != nil {
		return nil, err
	}
	if e.embedded() {
		items, err := eng.store.ItemIDs(ctx, "", 1)
		if err != nil {
			return nil, fmt.Errorf("find out whether there are sales to load: %w", err)
		}
		eng.unused = len(items) == 0
	}
	return eng, nil
}

// openDatabase opens the database, and migrates it for serve.
func (eng *engine) openDatabase(ctx context.Context, e *env, ps *parts) error {
	options := []store.Option{store.WithClock(eng.clock)}
	if e.settings.Postgres() {
		if err := lockPostgres(ctx, e, ps); err != nil {
			return err
		}
	} else {
		options = append(options, store.WithCheckpoints(checkpointMetrics(e.registry)))
	}
	if e.role.api {
		options = append(options, store.WithPayments(paymentCounter(e.registry)))
	}
	store, err := backend.OpenDatabase(ctx, e.settings, e.role.command == "serve", options...)
	if err != nil {
		return err
	}
	eng.store = store
	ps.closing("database", store.Close)
	if !e.settings.Postgres() {
		addDatabaseMetrics(e.registry, store.Path())
		if !e.embedded() { // which has locked it first; see lockFiles
			if err := lockSQLite(e.settings, false, ps); err != nil {
				return err
			}
		}
	}
	m, err := backend.Migrator(store)
	if err != nil {
		return err
	}
	if e.role.command == "serve" {
		m.Waiting = func() { e.log.Warn().Msg(backend.MigrationWaits) }
		n, err := m.Up(ctx)
		if err != nil {
			return backend.SchemaError(e.settings, err)
		}
		e.log.Debug().Int("applied", n).Msg("database migrated")
	}
	return backend.SchemaError(e.settings, backend.CheckSchema(ctx, store))
}

// checkPartitions compares the number of partitions with those of the database and Redis.
func (eng *engine) checkPartitions(ctx context.Context, s *config.Settings) error {
	want := eng.partitions
	have, err := store.CheckPartitions(ctx, eng.store, want)
	if err != nil {
		return err
	}
	if have != want {
		return config.BadSetting("partitions", fmt.Sprint(want), fmt.Sprintf("the database was created with %d", have), "set that number")
	}
	err = inventory.CheckPartitions(ctx, eng.rdb, want)
	switch {
	case errors.Is(err, inventory.ErrPartitions):
		return config.BadSetting("partitions", fmt.Sprint(want), err.Error(), "set the number that is recorded")
	case errors.Is(err, inventory.ErrLayout):
		return config.BadSetting("partitions", fmt.Sprint(want), err.Error(), "let the earlier version commit the queued orders, then delete its keys: see docs/deployment.md")
	}
	return backend.RedisError(ctx, s.Redis, err)
}

// maxExpiries bounds the orders that may wait for their payment, per partition. It exceeds any
// sale; the actual bound is the stock.
const maxExpiries = 100_000_000

// openQueues creates the task queues of every partition.
func (eng *engine) openQueues(s *config.Settings) error {
	for p := range s.Partitions {
		// Separate from the orders, so that orders that wait for their payment neither use the
		// capacity for orders that wait for the database nor are read with them.
		expiries, err := queue.New(eng.rdb, queue.Config{
			Prefix: inventory.ExpiryQueuePrefix(p, s.Partitions), Lease: s.Lease, MaxLength: maxExpiries,
		})
		if err != nil {
			return err
		}
		orders, err := queue.New(eng.rdb, queue.Config{
			Prefix: inventory.QueuePrefix(p, s.Partitions), Lease: s.Lease, MaxLength: s.QueueLimit, Followers: expiries,
			// A dead letter holds its units until an operator decides, so none is dropped in
			// favour of another.
			MaxDead: s.QueueLimit,
		})
		if err != nil {
			return err
		}
		eng.queues, eng.expires = append(eng.queues, orders), append(eng.expires, expiries)
	}
	return nil
}

// partition returns the partition of an item.
func (eng *engine) partition(item string) int { return inventory.PartitionOf(item, eng.partitions) }

// hashTag returns the hash tag of an item's keys.
func (eng *engine) hashTag(item string) string { return inventory.HashTag(item, eng.partitions) }

// orderQueues are the queues of accepted orders, with their names for operators.
func (eng *engine) orderQueues() (named []worker.NamedQueue) {
	for i, q := range eng.queues {
		named = append(named, worker.NamedQueue{Name: fmt.Sprintf("orders-%d", i), Queue: q})
	}
	return named
}

// otherQueues are all other task queues.
func (eng *engine) otherQueues() (named []worker.NamedQueue) {
	for i, q := range eng.expires {
		named = append(named, worker.NamedQueue{Name: fmt.Sprintf("expiries-%d", i), Queue: q})
	}
	return named
}

func (eng *engine) tasks() []order.Queued {
	tasks := make([]order.Queued, len(eng.queues))
	for i, q := range eng.queues {
		tasks[i] = accepted.NewOrders(q)
	}
	return tasks
}

// startClock measures Redis's clock now and then every few seconds. Pages, purchases and the
// database all use it. The embedded engine's clock is this host's.
func startClock(ctx context.Context, e *env, clock *inventory.Clock, ps *parts) {
	e.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "flashsale_clock_offset_seconds",
		Help: "Redis server clock minus this host's clock, in seconds; the largest difference on a cluster.",
	}, func() float64 { return clock.Offset().Seconds() }))
	if e.embedded() {
		return
	}
	report := e.reporter("clock")
	if err := clock.Measure(ctx); err != nil {
		report(err)
	}
	if d := clock.Offset(); d.Abs() > backend.MaxClockSkew {
		e.log.Warn().Int64("offset_ms", d.Milliseconds()).Msg("this host's clock differs from the Redis clock: " + backend.ClockEffect + "; " + backend.ClockFix)
	}
	ps.add(part{name: "clock", run: func(ctx context.Context) error {
		clock.Run(ctx, report)
		return nil
	}})
}

// lockFiles prevents other processes from using the data of the embedded engine, which has its own
// stock.
func lockFiles(s *config.Settings, ps *parts) error {
	unlock, err := backend.LockDataDir(s)
	if err != nil {
		return err
	}
	ps.closing("data-dir", unlock)
	if s.Postgres() { // see lockPostgres
		return nil
	}
	return lockSQLite(s, true, ps)
}

// lockSQLite keeps processes with an embedded engine and all others apart.
func lockSQLite(s *config.Settings, exclusive bool, ps *parts) error {
	lock, err := backend.LockSQLite(s, exclusive)
	if errors.Is(err, backend.ErrServed) {
		err = backend.Served(s, exclusive)
	}
	if err != nil {
		return err
	}
	ps.closing("db", lock.Close)
	return nil
}

// lockPostgres does the same for a Postgres database, which other hosts can reach.
func lockPostgres(ctx context.Context, e *env, ps *parts) error {
	lock, err := backend.LockPostgres(ctx, e.settings, e.embedded())
	if errors.Is(err, backend.ErrServed) {
		err = backend.Served(e.settings, e.embedded())
	}
	if err != nil {
		return err
	}
	ps.add(part{name: "db", stop: lock.Close})
	report := e.reporter("database lock")
	ps.add(part{name: "database lock", run: func(ctx context.Context) error { return lock.Run(ctx, report) }})
	return nil
}
