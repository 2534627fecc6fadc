package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"github.com/charmbracelet/x/term"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"

	"flashsale/catalog"
	"flashsale/cmd/flashsale/backend"
	"flashsale/cmd/flashsale/config"
	"flashsale/handler"
	"flashsale/handler/auth"
	"flashsale/inventory"
	"flashsale/lock"
	"flashsale/migrations"
	"flashsale/order"
	"flashsale/queue"
)

// Times of the items' locks. A process that is killed holds up its items for
// at most lockTTL; one that is merely slow loses its lock after it, and its
// scripts are refused.
const (
	lockTTL      = time.Second
	lockClaimTTL = 400 * time.Millisecond
	lockLiveness = 500 * time.Millisecond
)

// sqliteWorkers is how many batches a process commits at a time. SQLite has one
// writer; a second batch fetched meanwhile would wait for it instead of filling up.
const sqliteWorkers = 1

// app is one process of the service: the rooms, introduced to each other.
type app struct {
	settings *config.Settings
	log      zerolog.Logger
	out      io.Writer
	life     lifecycle
	registry *prometheus.Registry
	now      func() time.Time // this host's clock

	rdb     redis.UniversalClient
	clock   *inventory.Clock
	store   *order.Store
	queues  []*queue.Queue // of orders, by partition
	expires []*queue.Queue // expiry of unpaid orders, by partition
	waiters *order.Waiters // nil in a process without an API
	writes  *order.WriteProbe
	workers *queue.Registry  // the worker processes of all hosts
	monitor *order.Monitor   // of queues and workers
	pulse   *pulse           // of this process's worker; nil without one
	items   *catalog.Catalog // nil in a process without an API
	leaders *lock.Manager    // of what one process does for all; see lead
	// highWater compares the database with what Redis has seen of it.
	highWater *order.HighWater
	drain     drain
	dev       []byte         // development mode's key; nil outside it
	service   *order.Service // nil in a process without an API
	// recovery is there once the process sells.
	recovery atomic.Pointer[order.Recovery]
}

// role is which halves of the service a process is.
type role struct {
	command     string
	api, worker bool
}

// runApp builds the process, runs it until ctx ends, and drains it.
func runApp(ctx context.Context, s *config.Settings, r role, out io.Writer) error {
	a := &app{settings: s, log: newLogger(s), out: out, registry: prometheus.NewRegistry(), now: time.Now}
	// Half of the time is the requests', half the worker's.
	a.life.drain = s.Drain / 2
	if err := a.build(ctx, r); err != nil {
		return errors.Join(err, a.life.close(ctx))
	}
	err := a.life.run(ctx)
	a.log.Info().Msg("stopped")
	return err
}

func newLogger(s *config.Settings) zerolog.Logger {
	var w io.Writer = os.Stderr
	if s.LogFormat == "console" {
		plain := os.Getenv("NO_COLOR") != "" || !term.IsTerminal(os.Stderr.Fd())
		w = zerolog.ConsoleWriter{Out: os.Stderr, TimeFormat: time.RFC3339, NoColor: plain}
	}
	level, err := zerolog.ParseLevel(s.LogLevel)
	if err != nil {
		level = zerolog.InfoLevel // validated before; a level must be chosen
	}
	return zerolog.New(w).Level(level).With().Timestamp().Logger()
}

func (a *app) build(ctx context.Context, r role) error {
	s := a.settings
	if r.command == "serve" && s.Redis == config.EmbeddedRedis {
		if err := a.lockFiles(); err != nil {
			return err
		}
	}
	if r.api {
		if err := s.NeedKey(r.command); err != nil {
			return err
		}
		if s.JWTSecret == "" && s.JWKS == "" {
			key, err := config.DevKey(s.DataDir)
			if err != nil {
				return err
			}
			a.dev = key
		}
	}
	if !r.api || !r.worker {
		if s.Redis == config.EmbeddedRedis {
			return config.BadSetting("redis", s.Redis, "the embedded engine lives in one process, and "+r.command+" is one of several",
				"name a Redis that all processes reach, or run flashsale serve")
		}
	}
	if err := a.openDatabase(ctx, r); err != nil {
		return err
	}
	if err := a.openEngine(ctx); err != nil {
		return err
	}
	if err := a.addChecks(ctx, r); err != nil {
		return err
	}
	if r.api {
		a.waiters = order.NewWaiters()
	}
	settleProcessors(r)
	if r.worker {
		if err := a.addWorker(); err != nil {
			return err
		}
	}
	if r.api {
		if err := a.addAPI(ctx); err != nil {
			return err
		}
	}
	if !r.api {
		// It is stopped first. Where there is an API, stopping that says so.
		a.life.closing("readiness", func() error { a.drain.on.Store(true); return nil })
	}
	if r.command == "serve" && s.Demo {
		if err := a.openDemo(ctx); err != nil {
			return err
		}
	}
	if a.dev != nil {
		if err := a.printDevelopment(); err != nil {
			return err
		}
	}
	says, change := backend.Durability(ctx, a.rdb, s.Redis)
	fmt.Fprintf(a.out, "database  %s: a 201 is synced to its disk\nengine    %s\n", config.RedactURL(s.DB), says)
	for _, c := range change {
		a.log.Warn().Msg(c.Says + ": " + c.Fix)
	}
	return nil
}

// addChecks adds what shows whether the service works, and compares the database with
// Redis before anything else uses them.
func (a *app) addChecks(ctx context.Context, r role) error {
	a.registry.MustRegister(thisBuild().metric(), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if err := a.addMonitor(); err != nil {
		return err
	}
	if err := a.addOps(ctx, r); err != nil {
		return err
	}
	if err := a.addWriteProbe(r); err != nil {
		return err
	}
	return a.addHighWater(ctx)
}

// lockFiles keeps other processes from serving the same data with an engine of their own.
func (a *app) lockFiles() error {
	s := a.settings
	for _, l := range []struct{ path, setting, value string }{
		{filepath.Join(s.DataDir, "serve.lock"), "data-dir", s.DataDir},
		{strings.TrimPrefix(s.DB, "sqlite:") + backend.ServeLock, "db", s.DB},
	} {
		unlock, err := backend.LockFile(l.path, l.setting, l.value)
		if err != nil {
			return err
		}
		a.life.closing(l.setting, unlock)
	}
	return nil
}

func (a *app) openDatabase(ctx context.Context, r role) error {
	store, err := backend.OpenDatabase(ctx, a.settings, r.command == "serve")
	if err != nil {
		return err
	}
	a.store = store
	a.life.closing("database", store.Close)
	m, err := backend.Migrator(store)
	if err != nil {
		return err
	}
	if r.command == "serve" {
		n, err := m.Up(ctx)
		if err != nil {
			return err
		}
		a.log.Debug().Int("applied", n).Msg("database migrated")
		return nil
	}
	err = m.Check(ctx)
	if errors.Is(err, migrations.ErrPending) {
		return config.FailedSetting("db", a.settings.DB, "its schema is older than this program, or it is empty", "run flashsale migrate up")
	}
	return err
}

func (a *app) openEngine(ctx context.Context) error {
	s := a.settings
	backend.LogRedis(a.log)
	rdb, closers, err := backend.OpenRedis(s.Redis, a.breakers(), a.connected)
	if err != nil {
		return err
	}
	a.rdb = rdb
	for i := len(closers) - 1; i >= 0; i-- {
		a.life.closing("redis", closers[i])
	}
	if err := rdb.Ping(ctx).Err(); err != nil {
		if redis.IsLoadingError(err) {
			return config.FailedSetting("redis", s.Redis, "it is still reading its data ("+err.Error()+")", "start again once it has")
		}
		return config.FailedSetting("redis", s.Redis, "no answer ("+err.Error()+")", "start it, or correct the address")
	}
	a.addClock(ctx)
	have, err := a.store.CheckPartitions(ctx, s.Partitions)
	if err != nil {
		return err
	}
	if have != s.Partitions {
		return config.BadSetting("partitions", fmt.Sprint(s.Partitions), fmt.Sprintf("the database was laid out for %d", have), "set that number")
	}
	if err := inventory.CheckPartitions(ctx, rdb, s.Partitions); err != nil {
		if errors.Is(err, inventory.ErrPartitions) {
			return config.BadSetting("partitions", fmt.Sprint(s.Partitions), err.Error(), "set the number that is recorded")
		}
		return err
	}
	return a.openQueues()
}

// maxExpiries bounds the orders that may wait for their payment, per partition. It
// is beyond any sale: what bounds them is the stock.
const maxExpiries = 100_000_000

// openQueues makes the task queues of every partition.
func (a *app) openQueues() error {
	s := a.settings
	for p := range s.Partitions {
		// Apart from the orders, so that those which wait for their payment take no
		// room from those that wait for the database, and are not read with them.
		expiries, err := queue.New(a.rdb, queue.Config{
			Prefix: inventory.ExpiryQueuePrefix(p), Lease: s.Lease, MaxLength: maxExpiries,
		})
		if err != nil {
			return err
		}
		orders, err := queue.New(a.rdb, queue.Config{
			Prefix: inventory.QueuePrefix(p), Lease: s.Lease, MaxLength: s.QueueLimit, Followers: expiries,
			// A dead order holds its units until someone decides about it, so
			// none is dropped to make room for another.
			MaxDead: s.QueueLimit,
		})
		if err != nil {
			return err
		}
		a.queues, a.expires = append(a.queues, orders), append(a.expires, expiries)
	}
	return nil
}

// reporter returns a function that logs errors of background work, a few a
// second: an outage repeats itself.
func (a *app) reporter(room string) func(error) {
	log := a.log.Sample(&zerolog.BurstSampler{Burst: 5, Period: time.Second})
	return func(err error) { log.Warn().Str("room", room).Err(err).Msg("trying again") }
}

// orderQueues are the task queues of accepted orders, as operators know them.
func (a *app) orderQueues() (named []order.NamedQueue) {
	for i, q := range a.queues {
		named = append(named, order.NamedQueue{Name: fmt.Sprintf("orders-%d", i), Queue: q})
	}
	return named
}

// otherQueues are all other task queues.
func (a *app) otherQueues() (named []order.NamedQueue) {
	for i, q := range a.expires {
		named = append(named, order.NamedQueue{Name: fmt.Sprintf("expiries-%d", i), Queue: q})
	}
	return named
}

func (a *app) tasks() []order.Tasks {
	tasks := make([]order.Tasks, len(a.queues))
	for i, q := range a.queues {
		tasks[i] = q
	}
	return tasks
}

// settleProcessors gives a process that only writes to SQLite one processor: it
// does one thing at a time, and a second would look for work that is not there.
// That was a sixth of such a worker's processor time. GOMAXPROCS overrides it.
func settleProcessors(r role) {
	if r.worker && !r.api && os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(1)
	}
}

func (a *app) addWorker() error {
	a.addPulse()
	report := a.pulse.failing(a.reporter("order"))
	f := order.NewFulfiller(a.store, a.rdb, a.waiters, report)
	committed := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "flashsale_orders_committed_total", Help: "Orders that became rows, confirmed or rejected.",
	})
	batches := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "flashsale_commit_batch_orders", Help: "Orders per database transaction.",
		Buckets: prometheus.ExponentialBuckets(1, 2, 10),
	})
	a.registry.MustRegister(committed, batches)
	f.SetPartitions(a.settings.Partitions)
	f.OnCommit(func(n int) {
		committed.Add(float64(n))
		batches.Observe(float64(n))
		a.pulse.commit()
	})
	s := a.settings
	a.life.add(part{name: "worker", run: func(ctx context.Context) error {
		return f.Work(ctx, a.queues, a.expires, queue.RunConfig{
			Batch: s.Batch, Workers: sqliteWorkers, Drain: s.Drain / 2,
			Linger: order.Linger(s.Linger), OnError: a.pulse.failing(a.reporter("queue")), OnFetch: a.pulse.fetched,
		})
	}})
	letters := make([]order.DeadLetters, len(a.queues))
	for i, q := range a.queues {
		letters[i] = q
	}
	if err := a.addWebhooks(); err != nil {
		return err
	}
	sweeper := order.NewSweeper(f, letters...)
	sweeper.TrimLogs(a.queues...)
	sweeper.FreeEnded(s.KeepEnded)
	return a.lead("sweeper", func(ctx context.Context) { sweeper.Run(ctx, sweepEvery) })
}

// sweepEvery is how often what was left undone is looked for.
const sweepEvery = 10 * time.Second

func (a *app) addAPI(ctx context.Context) error {
	s := a.settings
	locks, err := lock.New(a.rdb, lock.Config{
		TTL: lockTTL, ClaimTTL: lockClaimTTL, Liveness: lockLiveness,
		Metadata: processName(), Observer: a.lockMetrics(),
	})
	if err != nil {
		return err
	}
	a.life.add(part{name: "locks", stop: locks.Close})
	report := a.reporter("order")
	a.life.add(part{name: "commit notices", run: func(ctx context.Context) error {
		return a.waiters.Listen(ctx, a.rdb, a.store, report)
	}})
	sales := &order.Sales{Store: a.store, Tasks: a.tasks()}
	queued := inventory.NewQueuedIndex(a.rdb, a.queues...)
	var known atomic.Pointer[catalog.Catalog] // it asks the stock, so it is made after it
	stock, err := inventory.New(ctx, a.rdb, locks, a.queues, sales, inventory.Config{
		Partitions: s.Partitions, OnError: a.reporter("inventory"), OnBatch: a.batchMetrics(),
		MayLoad: a.highWater.MayLoad, Archive: order.NewEndedSales(a.store, queued),
		OnChange: func(item string) {
			if c := known.Load(); c != nil {
				c.StockChanged(item)
			}
		},
		OnRestart: func(ctx context.Context) error {
			if r := a.recovery.Load(); r != nil {
				return r.Check(ctx)
			}
			return nil
		},
		OnLoss: func(ctx context.Context, rewound int64) {
			if r := a.recovery.Load(); r != nil {
				if err := r.Lost(ctx, rewound); err != nil {
					report(fmt.Errorf("check Redis for lost data: %w", err))
				}
			}
		},
	})
	if err != nil {
		return err
	}
	sales.Partition = stock.Partition
	a.life.add(part{name: "inventory", stop: stock.Close})
	if err := a.addRecovery(ctx, stock, locks); err != nil {
		return err
	}
	items, err := a.addCatalog(ctx, stock)
	if err != nil {
		return err
	}
	known.Store(items)
	a.items = items
	a.service = order.NewService(order.Config{
		Store: a.store, Stock: stock, Items: items, Tasks: a.tasks(), Waiters: a.waiters,
		Returns: order.NewReturns(a.store, a.rdb, s.Partitions, stock.Returned, report), Bell: order.NewBell(a.rdb, report),
		Queued: queued, Renamer: stock, Volatile: s.Redis == config.EmbeddedRedis, OnError: report,
	})
	reconciler, err := a.addReconciler(stock, a.service.Returns)
	if err != nil {
		return err
	}
	return a.addHTTP(ctx, items, reconciler)
}

func (a *app) addHTTP(ctx context.Context, items *catalog.Catalog, reconciler *order.Reconciler) error {
	s := a.settings
	verifier, err := s.OpenVerifier(context.WithoutCancel(ctx), a.dev, a.reporter("auth"))
	if err != nil {
		return err
	}
	a.addPaymentMetrics(ctx)
	webhooks, err := a.webhookAdmin()
	if err != nil {
		return err
	}
	backlog := order.NewBacklog(a.store, a.service.Returns, append(a.orderQueues(), a.otherQueues()...)...)
	backlog.Bell = a.service.Bell
	feed := order.NewFeed(order.FeedConfig{
		Store: a.store, Redis: a.rdb, Orders: a.service, MaxStreams: a.maxStreams(), OnError: a.reporter("order events"),
	})
	c := handler.Config{
		Orders: a.service, Items: items, Sales: a.service, Changes: a.service, Trail: a.service, Feed: feed, Buyers: a.service, Money: a.service,
		Webhooks: webhooks, Verifier: verifier, Ready: append(a.checks(), catalogCheck(items)),
		RateBuyer: s.RateBuyer, RateAddress: s.RateAddress, TrustedProxies: s.TrustedProxies,
		Admission: a.admission(), MaxInFlight: int64(s.InFlight), Tasks: backlog, Workers: a.monitor, Reconciler: reconciler, CursorKey: a.cursorKey(), Now: a.now, ItemNow: a.clock.ItemNow, Log: a.log, Registerer: a.registry,
	}
	if a.dev != nil {
		c.DevTokens = func(sub, role string, ttl time.Duration) (string, error) {
			return a.signDevelopment(sub, auth.Role(role), ttl)
		}
	}
	h, err := handler.New(c)
	if err != nil {
		return err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", s.Addr)
	if err != nil {
		return config.FailedSetting("addr", s.Addr, err.Error(), "choose a free address")
	}
	// The server does not wait for streams, whose connections it has given away. Their
	// last bytes are waited for after it has drained, so that both share the time.
	a.life.add(part{name: "order streams", stop: feed.Wait})
	a.life.add(a.drain.part("api", handler.StrictListener(l), a.server(h)))
	// It is stopped first, so that clients of streams reconnect to another process.
	a.life.add(part{name: "order events", run: feed.Run, stop: feed.Close})
	fmt.Fprintf(a.out, "api       http://%s/v1/items\n", l.Addr())
	return nil
}

// maxStreams bounds the event streams of this process, and registers the bound as
// a metric.
func (a *app) maxStreams() int {
	n := a.settings.MaxStreams
	if files, known := backend.FileLimit(); known && uint64(n) > backend.StreamFiles(files) {
		n = int(backend.StreamFiles(files))
		a.log.Warn().Int("max_streams", n).Int("setting", a.settings.MaxStreams).Uint64("open_files", files).
			Msg("max-streams lowered to half of the open-file limit; raise the limit (ulimit -n, LimitNOFILE)")
	}
	limit := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "flashsale_event_streams_limit", Help: "Event streams that this process may have open.",
	})
	limit.Set(float64(n))
	a.registry.MustRegister(limit)
	return n
}

// cursorKey authenticates the cursors of lists. All API processes of a shop
// share their secret, so they share this key; with public keys alone there is
// no secret to derive it from, and the edge's fixed key finds damage only.
func (a *app) cursorKey() []byte {
	secret := a.dev
	if a.settings.JWTSecret != "" {
		secret = []byte(a.settings.JWTSecret)
	}
	if len(secret) == 0 {
		return nil
	}
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte("flashsale list cursor"))
	return mac.Sum(nil)
}

func (a *app) checks() []handler.Check {
	return []handler.Check{
		{Name: "draining", Probe: func(context.Context) error { return a.drain.check() }},
		{Name: "redis", Probe: func(ctx context.Context) error { return a.rdb.Ping(ctx).Err() }},
		{Name: "database", Probe: a.databaseReady},
		{Name: "database", Probe: a.salesStopped, Degrades: "older than Redis as to some items, whose sales are stopped until flashsale recover"},
	}
}

func (a *app) addOps(ctx context.Context, r role) error {
	if a.settings.OpsAddr == "" {
		return nil
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", a.settings.OpsAddr)
	if err != nil {
		return config.FailedSetting("ops-addr", a.settings.OpsAddr, err.Error(), "choose a free address, or none")
	}
	// A CPU profile streams for as long as was asked.
	srv := a.server(handler.NewOps(a.registry, a.opsConfig(r)))
	srv.WriteTimeout = 2 * time.Minute
	// It stops without ado: a scrape or a profile cut off at the end is no loss.
	a.life.add(part{name: "ops", run: serving(srv, l, func() {}), stop: func(context.Context) error { return srv.Close() }})
	fmt.Fprintf(a.out, "metrics   http://%s/metrics\n", l.Addr())
	if at, ok := l.Addr().(*net.TCPAddr); !ok || !at.IP.IsLoopback() {
		a.log.Warn().Msgf("/metrics and /debug/pprof are served without authentication on %s, which is reachable from other machines: "+
			"restrict access to it with a firewall or network policy, or set --ops-addr to a loopback address", l.Addr())
	}
	return nil
}

// adminTokenLife is how long the admin token printed at start is good.
const adminTokenLife = 24 * time.Hour

// printDevelopment says that this is no setting for real money, and gives what
// is needed to try the service out.
func (a *app) printDevelopment() error {
	token, err := a.signDevelopment("admin", auth.RoleAdmin, adminTokenLife)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.out, "mode      development: POST /dev/tokens hands out tokens; set FLASHSALE_JWT_SECRET or FLASHSALE_JWKS to end that\nadmin     %s\n", token)
	return err
}

// signDevelopment signs a token with development mode's key.
func (a *app) signDevelopment(sub string, role auth.Role, ttl time.Duration) (string, error) {
	terms, err := a.settings.Terms()
	if err != nil {
		return "", err
	}
	return a.settings.Sign(a.dev, terms, sub, role, ttl)
}
