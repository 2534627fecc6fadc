package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/bench/internal/history"
	"flashsale/bench/internal/load"
	"flashsale/bench/internal/process"
	"flashsale/bench/internal/targets"
	"flashsale/bench/internal/world"
	"flashsale/internal/testing/postgresserver"
)

// databaseOptions choose the comparison of the databases.
type databaseOptions struct {
	rounds  int
	text    string // of workers
	workers []int  // numbers of worker processes on Postgres; empty: leave them out
	orders  int    // of past sales, on a second database of Postgres; 0: leave it out
}

func (o *databaseOptions) define(f *flag.FlagSet) {
	f.IntVar(&o.rounds, "databases", 0, "rounds of purchases on SQLite and on a Postgres that it starts, in turn; 0: leave it out")
	f.StringVar(&o.text, "workers", "", "with -databases: numbers of worker processes, as in 1,2,4, of which to measure how fast they commit queued orders to Postgres; empty: leave it out")
	f.IntVar(&o.orders, "orders", 0, "with -databases: orders of past sales, a multiple of 1,000, in a second database on Postgres on which to measure the same; 0: leave it out")
}

// pastSaleOrders is the number of orders of a past sale.
const pastSaleOrders = 1_000

// maxWorkers leaves each worker its 17 connections to the server.
const maxWorkers = 16

// validate reads the numbers of workers. It fails if Postgres is needed and cannot be started.
func (o *databaseOptions) validate() error {
	if err := o.parse(); err != nil || o.rounds == 0 {
		return err
	}
	if err := postgresserver.Missing(); err != nil {
		return fmt.Errorf("-databases: %w; `make deps-test` installs Postgres", err)
	}
	return nil
}

func (o *databaseOptions) parse() error {
	switch {
	case o.rounds < 0:
		return errors.New("need -databases of 0 or more")
	case o.orders < 0 || o.orders%pastSaleOrders != 0:
		return fmt.Errorf("need -orders as a multiple of %d, not %d", pastSaleOrders, o.orders)
	case o.orders > 0 && o.rounds == 0:
		return errors.New("-orders needs -databases of 1 or more")
	}
	for f := range strings.SplitSeq(o.text, ",") {
		if f == "" {
			continue
		}
		n, err := strconv.Atoi(f)
		if err != nil || n < 1 || n > maxWorkers {
			return fmt.Errorf("need -workers as numbers from 1 to %d with commas between them, not %q", maxWorkers, o.text)
		}
		o.workers = append(o.workers, n)
	}
	if len(o.workers) == 0 {
		return nil
	}
	if o.rounds == 0 {
		return errors.New("-workers needs -databases of 1 or more")
	}
	// The others are compared with one.
	o.workers = append(o.workers, 1)
	slices.Sort(o.workers)
	o.workers = slices.Compact(o.workers)
	return nil
}

// purchaseKind is a kind of answer that is measured on each database.
type purchaseKind struct {
	name   string
	async  bool
	status int
	units  int64   // of the item
	target float64 // the part of SQLite's rate that Postgres should reach
}

var purchaseKinds = []purchaseKind{
	{"committed", false, http.StatusCreated, stock, 0.80},
	{"accepted", true, http.StatusAccepted, stock, 0.95},
	{"sold_out", false, http.StatusConflict, soldOutUnits, 0.95},
}

// postgresSettings are those of the compared server, in addition to fsync=on.
var postgresSettings = []string{"synchronous_commit=on", "full_page_writes=on", "shared_buffers=128MB", "max_connections=300", "min_wal_size=1GB"}

// usedSegments are the files of its log, of 16 MB each, that the compared server has used before.
const usedSegments = 40

// onDatabase is the service on one database.
type onDatabase struct {
	*meter

	name   string
	server *postgresserver.Server // nil on SQLite
	seen   map[string]*databaseFigures
}

// databaseFigures are the results of one kind of purchase on one database, one value a round.
// The processor times are in us per answer.
type databaseFigures struct {
	rate, api, worker, redis, postgres []float64
	drained                            []float64 // seconds from the last answer until nothing was queued
}

// spent is the processor time of the parts of the service.
type spent struct{ api, worker, redis, postgres time.Duration }

// measureDatabases measures purchases on the SQLite of m and on Postgres in turn. Each has a Redis,
// an API process and a worker of its own; those of the other are idle at that time.
func measureDatabases(ctx context.Context, m *meter) (err error) {
	server, err := startPostgres(ctx, m.world.Dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	sqlite := &onDatabase{meter: m, name: "sqlite", seen: make(map[string]*databaseFigures)}
	all := []*onDatabase{sqlite}
	defer func() {
		for _, d := range slices.Backward(all[1:]) {
			err = errors.Join(err, d.rdb.Close(), d.world.Close())
		}
	}()
	postgres, err := openDatabase(ctx, m, server, postgresserver.Superuser, "postgres", nil)
	if err != nil {
		return err
	}
	all = append(all, postgres)
	if err := postgres.printSettings(ctx); err != nil {
		return err
	}
	if m.o.databases.orders > 0 {
		grown, err := openGrown(ctx, m, server)
		if err != nil {
			return err
		}
		all = append(all, grown)
	}
	var empty []float64
	for round := range m.o.databases.rounds {
		rate, err := m.phase(ctx, "empty", m.world.Empty.Addr, "any", true, http.StatusCreated)
		if err != nil {
			return err
		}
		empty = append(empty, rate)
		if err := compareDatabases(ctx, round, all); err != nil {
			return fmt.Errorf("round %d: %w", round+1, err)
		}
	}
	printDatabases(all, empty)
	for _, d := range all[:2] {
		if err := d.latency(ctx); err != nil {
			return fmt.Errorf("latency on %s: %w", d.name, err)
		}
	}
	return measureWorkers(ctx, postgres)
}

// startPostgres starts a Postgres in the folder of the run.
func startPostgres(ctx context.Context, dir string) (*postgresserver.Server, error) {
	// The server runs as another user if this program runs as root, and its files are in there.
	if err := os.Chmod(dir, 0o711); err != nil { //nolint:gosec // nothing in it is secret
		return nil, err
	}
	server, err := postgresserver.Start(ctx, postgresserver.Config{Sync: true, Folder: dir, Settings: postgresSettings})
	if err != nil {
		return nil, err
	}
	if err := server.Do(ctx, postgresserver.Superuser, func(db *sql.DB) error { return useLog(ctx, db) }); err != nil {
		return nil, errors.Join(err, server.Close())
	}
	return server, nil
}

// useLog makes a new server one that has been in use: it has files of the log to overwrite.
func useLog(ctx context.Context, db *sql.DB) error {
	for range usedSegments {
		if _, err := db.ExecContext(ctx, "SELECT pg_logical_emit_message(false, 'bench', ''), pg_switch_wal()"); err != nil {
			return fmt.Errorf("use the server's log: %w", err)
		}
	}
	if _, err := db.ExecContext(ctx, "CHECKPOINT"); err != nil {
		return fmt.Errorf("use the server's log: %w", err)
	}
	return nil
}

// openDatabase starts the service on an empty database of the server. fill, if set, is called
// once it is migrated.
func openDatabase(ctx context.Context, m *meter, server *postgresserver.Server, database, name string, fill func(context.Context) error) (*onDatabase, error) {
	w, err := world.Start(ctx, world.Config{Fsync: m.o.fsync, Database: server.URL(database), Beside: m.world, Fill: fill})
	if err != nil {
		return nil, err
	}
	rdb := redis.NewClient(&redis.Options{Addr: w.Redis.Addr})
	return &onDatabase{
		meter: &meter{world: w, crowd: m.crowd, rdb: rdb, o: m.o, out: m.out},
		name:  name, server: server, seen: make(map[string]*databaseFigures),
	}, nil
}

// openGrown starts the service on a database with the orders of past sales.
func openGrown(ctx context.Context, m *meter, server *postgresserver.Server) (*onDatabase, error) {
	const database = "grown"
	err := server.Do(ctx, postgresserver.Superuser, func(db *sql.DB) error {
		_, err := db.ExecContext(ctx, "CREATE DATABASE "+database)
		return err
	})
	if err != nil {
		return nil, err
	}
	orders := m.o.databases.orders
	fill := func(ctx context.Context) error {
		began := time.Now()
		past := history.History{Ended: orders / pastSaleOrders, EndedOrders: pastSaleOrders}
		err := server.Do(ctx, database, func(db *sql.DB) error { return past.WritePostgres(ctx, db) })
		fmt.Fprintf(m.out, "databases: %d orders of past sales written in %.0f s\n", orders, time.Since(began).Seconds())
		return err
	}
	return openDatabase(ctx, m, server, database, fmt.Sprintf("postgres_%d", orders), fill)
}

// compareDatabases measures each database for each kind of purchase. The order changes with the
// round.
func compareDatabases(ctx context.Context, round int, all []*onDatabase) error {
	for _, kind := range purchaseKinds {
		for i := range all {
			d := all[(i+round)%len(all)]
			if err := d.buy(ctx, fmt.Sprintf("databases-%s-%d", strings.ReplaceAll(kind.name, "_", "-"), round), &kind); err != nil {
				return fmt.Errorf("%s on %s: %w", kind.name, d.name, err)
			}
		}
	}
	return nil
}

// buy measures one phase. The processor time includes that of the worker until all orders are
// committed.
func (d *onDatabase) buy(ctx context.Context, item string, kind *purchaseKind) error {
	if err := d.createItem(ctx, item, kind.units, 0); err != nil {
		return err
	}
	before, err := d.spent()
	if err != nil {
		return err
	}
	res, err := load.Drive(ctx, []string{d.world.API.Addr}, item, d.crowd, d.o.connections, d.o.phase, kind.async)
	if err != nil {
		return err
	}
	drained, err := d.waitDrained(ctx)
	if err != nil {
		return err
	}
	after, err := d.spent()
	if err != nil {
		return err
	}
	if res.Codes[kind.status] == 0 {
		return fmt.Errorf("no answer %d among %v", kind.status, res.Codes)
	}
	answers := res.Codes[http.StatusCreated] + res.Codes[http.StatusAccepted] + res.Codes[http.StatusConflict]
	each := func(from, to time.Duration) float64 { return float64((to - from).Microseconds()) / float64(answers) }
	if d.seen[kind.name] == nil {
		d.seen[kind.name] = new(databaseFigures)
	}
	f := d.seen[kind.name]
	rate := res.Rate(kind.status)
	f.rate, f.drained = append(f.rate, rate), append(f.drained, drained.Seconds())
	f.api = append(f.api, each(before.api, after.api))
	f.worker = append(f.worker, each(before.worker, after.worker))
	f.redis = append(f.redis, each(before.redis, after.redis))
	f.postgres = append(f.postgres, each(before.postgres, after.postgres))
	fmt.Fprintf(d.out, "%-17s %-9s %8.0f/s  answers %v  drained in %.2f s\n", d.name, kind.name, rate, res.Codes, drained.Seconds())
	return nil
}

// latency measures purchases that arrive at half the rate of the closed loop, in milliseconds.
func (d *onDatabase) latency(ctx context.Context) error {
	for _, kind := range latencyKinds {
		name, item := "committed", fmt.Sprintf("latency-%d", kind.answer)
		if kind.answer == http.StatusAccepted {
			name = "accepted"
		}
		if err := d.createLimitedItem(ctx, item, stock, 0, 1000); err != nil {
			return err
		}
		p := load.Purchases{
			Addr: d.world.API.Addr, Items: []string{item},
			Async: kind.answer == http.StatusAccepted, Connections: latencyConnections * d.o.connections,
		}
		o, err := offerRate(ctx, d.crowd, &p, median(d.seen[name].rate)*latencyHalf/100, d.o.phase)
		if err != nil {
			return err
		}
		if o.seen.Codes[kind.answer] == 0 {
			return fmt.Errorf("no answer %d among %v", kind.answer, o.seen.Codes)
		}
		targets.AtMost(d.out, fmt.Sprintf("%s_p99_half_peak_%d_ms", d.name, kind.answer), o.seen.Quantile(99), kind.target)
		if _, err := d.waitDrained(ctx); err != nil {
			return err
		}
	}
	return nil
}

// spent is the processor time so far.
func (d *onDatabase) spent() (s spent, err error) {
	s = spent{api: d.world.API.CPU(), worker: d.world.Worker.CPU(), redis: d.world.Redis.CPU()}
	if d.server == nil {
		return s, nil
	}
	pids, err := d.server.Pids()
	s.postgres = process.CPUOf(pids...)
	return s, err
}

// grownTarget is the part of its rate that Postgres should keep with the orders of past sales.
const grownTarget = 0.9

// printDatabases prints the medians over the rounds. The ratios are medians of each round's. all
// are SQLite, Postgres, and Postgres with the orders of past sales, if that was measured.
func printDatabases(all []*onDatabase, empty []float64) {
	sqlite, postgres := all[0], all[1]
	out := sqlite.out
	fmt.Fprintln(out, "database          purchases        /s  api us  worker us  redis us  postgres us")
	for _, d := range all {
		for _, kind := range purchaseKinds {
			f := d.seen[kind.name]
			fmt.Fprintf(out, "%-17s %-9s %9.0f %7.1f %10.1f %9.1f %12.1f\n", d.name, kind.name,
				median(f.rate), median(f.api), median(f.worker), median(f.redis), median(f.postgres))
		}
	}
	for _, d := range all {
		for _, kind := range purchaseKinds {
			fmt.Fprintf(out, "RATIO %s_%s/empty %.3f\n", d.name, kind.name, medianRatio(d.seen[kind.name].rate, empty))
		}
	}
	for _, kind := range purchaseKinds {
		ratio := medianRatio(postgres.seen[kind.name].rate, sqlite.seen[kind.name].rate)
		targets.AtLeast(out, fmt.Sprintf("postgres_%s/sqlite_%[1]s", kind.name), ratio, kind.target)
	}
	for _, d := range all[:2] {
		targets.AtMost(out, d.name+"_drained_s", median(d.seen["accepted"].drained), drainedTarget)
	}
	for _, grown := range all[2:] {
		for _, kind := range purchaseKinds {
			ratio := medianRatio(grown.seen[kind.name].rate, postgres.seen[kind.name].rate)
			targets.AtLeast(out, fmt.Sprintf("%s_%s/postgres_%[2]s", grown.name, kind.name), ratio, grownTarget)
		}
	}
}

// medianRatio is the median of the ratios of values with the same index.
func medianRatio(above, below []float64) float64 {
	ratios := make([]float64, len(above))
	for i := range above {
		ratios[i] = above[i] / below[i]
	}
	return median(ratios)
}

// printSettings prints what the server says of its version and of its syncs.
func (d *onDatabase) printSettings(ctx context.Context) error {
	return d.server.Do(ctx, postgresserver.Superuser, func(db *sql.DB) error {
		var version, fsync, commit string
		err := db.QueryRowContext(ctx, "SELECT current_setting('server_version'), current_setting('fsync'), current_setting('synchronous_commit')").Scan(&version, &fsync, &commit)
		if err != nil {
			return err
		}
		fmt.Fprintf(d.out, "databases: Postgres %s, fsync %s, synchronous_commit %s\n", version, fsync, commit)
		return nil
	})
}
