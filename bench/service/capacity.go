package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"math"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"flashsale/bench/internal/load"
	"flashsale/bench/internal/process"
	"flashsale/bench/internal/runner"
	"flashsale/bench/internal/stats"
	"flashsale/internal/testing/postgresserver"
)

// capacityOptions choose the measurement of what a purchase costs.
type capacityOptions struct {
	rounds   int
	postgres bool
}

func (o *capacityOptions) define(f *flag.FlagSet) {
	f.IntVar(&o.rounds, "capacity", 0, "rounds of measuring what a purchase costs each process, with the tables of docs/capacity.md; needs -rounds 0; 0: leave it out")
	f.BoolVar(&o.postgres, "postgres", false, "with -capacity: also on a Postgres that it starts")
}

func (o *capacityOptions) validate(rounds int) error {
	switch {
	case o.rounds < 0:
		return errors.New("need -capacity of 0 or more")
	case o.rounds > 0 && rounds > 0:
		return errors.New("-capacity needs -rounds 0: only then is every connection to Redis one of the service")
	case o.postgres && o.rounds == 0:
		return errors.New("-postgres needs -capacity of 1 or more")
	case !o.postgres:
		return nil
	}
	if err := postgresserver.Missing(); err != nil {
		return fmt.Errorf("-postgres: %w; `make deps-test` installs Postgres", err)
	}
	return nil
}

// What a purchase costs. The first four are processor time in us.
const (
	costAPI        = iota
	costWorker     // with SQLite, which runs in it
	costRedis      // all threads of the process
	costDatabase   // all processes of Postgres; 0 with SQLite
	costScripts    // scripts that Redis ran: purchases, leases, acknowledgements
	costCommits    // transactions of the worker
	costPurchases  // purchase scripts
	costLog        // bytes of the append-only file
	costRedisBytes // received and sent by Redis
	costAPIBytes   // read and written by the API: clients and Redis
	numCosts
)

// costs are those of one purchase, or the counters that they are computed from.
type costs [numCosts]float64

// each is what a purchase has cost since an earlier reading of the counters.
func (c costs) each(before costs, purchases int) (per costs) {
	for i := range c {
		per[i] = (c[i] - before[i]) / float64(purchases)
	}
	return per
}

// capacityKind is a kind of request.
type capacityKind struct {
	name, title string
	status      int
	units       int64
	many        bool // spread over so many items that hardly two requests for one meet
}

var capacityKinds = []capacityKind{
	{"accepted", "accepted (`202`)", http.StatusAccepted, stock, false},
	{"committed", "committed (`201`)", http.StatusCreated, stock, false},
	{"single", "accepted, one per script", http.StatusAccepted, stock, true},
	{"sold_out", "sold out (`409`)", http.StatusConflict, soldOutUnits, false},
}

// capacityService is the service on one database.
type capacityService struct {
	*onDatabase

	seen          map[string][]costs // by kind of request, one a round
	many          load.Purchases     // of many items
	redisClients  int                // most connections of the service to Redis
	databaseConns int                // the same to Postgres
}

// measureCapacity measures what a purchase costs each process of the service, and prints the
// tables of docs/capacity.md: these figures, and what follows from them by arithmetic.
func measureCapacity(ctx context.Context, m *meter) (err error) {
	all := []*capacityService{{onDatabase: &onDatabase{meter: m, name: "sqlite"}, seen: make(map[string][]costs)}}
	if m.o.capacity.postgres {
		server, err := startPostgres(ctx, m.world.Dir)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, server.Close()) }()
		d, err := openDatabase(ctx, m, server, postgresserver.Superuser, "postgres", nil)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, d.rdb.Close(), d.world.Close()) }()
		all = append(all, &capacityService{onDatabase: d, seen: make(map[string][]costs)})
	}
	for _, c := range all {
		if err := c.prepare(ctx); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	var empty []float64
	for round := range m.o.capacity.rounds {
		us, err := m.emptyCost(ctx)
		if err != nil {
			return fmt.Errorf("empty: %w", err)
		}
		empty = append(empty, us)
		for i := range capacityKinds {
			for _, c := range runner.Turn(all, round) {
				if err := c.measure(ctx, &capacityKinds[i], round); err != nil {
					return fmt.Errorf("round %d, %s on %s: %w", round+1, capacityKinds[i].name, c.name, err)
				}
			}
		}
	}
	return printCapacity(ctx, m, all, empty)
}

// emptyCost is the processor time in us of a request to the empty handler.
func (m *meter) emptyCost(ctx context.Context) (float64, error) {
	before := m.world.Empty.CPU()
	res, err := load.Drive(ctx, []string{m.world.Empty.Addr}, "any", m.crowd, m.o.connections, m.o.phase, true)
	if err != nil {
		return 0, err
	}
	n := res.Codes[http.StatusCreated]
	if n == 0 {
		return 0, fmt.Errorf("answers %v", res.Codes)
	}
	return stats.Per(m.world.Empty.CPU()-before, n), nil
}

// itemsPerConnection is how many items there are for each connection, if there are many.
const itemsPerConnection = 4

// capacityLimit is the limit per buyer. No buyer of a phase reaches it.
const capacityLimit = 1000

// prepare creates many items, and buys some of each, so that their sales are loaded.
func (c *capacityService) prepare(ctx context.Context) error {
	c.many = load.Purchases{Addr: c.world.API.Addr, Connections: c.o.connections, Async: true}
	for i := range itemsPerConnection * c.o.connections {
		item := fmt.Sprintf("capacity-many-%d", i)
		if err := c.createLimitedItem(ctx, item, stock, 0, capacityLimit); err != nil {
			return err
		}
		c.many.Items = append(c.many.Items, item)
	}
	b, err := c.crowd.Buy(ctx, c.many, min(time.Second, c.o.phase))
	if err != nil {
		return err
	}
	c.many.First = b.Next
	_, err = c.waitDrained(ctx)
	return err
}

// load is what a phase sends.
func (c *capacityService) load(ctx context.Context, k *capacityKind, round int) (load.Purchases, error) {
	if k.many {
		return c.many, nil
	}
	item := fmt.Sprintf("capacity-%s-%d", strings.ReplaceAll(k.name, "_", "-"), round)
	err := c.createLimitedItem(ctx, item, k.units, 0, capacityLimit)
	return load.Purchases{Addr: c.world.API.Addr, Items: []string{item}, Connections: c.o.connections, Async: k.status == http.StatusAccepted}, err
}

// measure sends requests of one kind for the length of a phase. The costs include those of the
// worker until all orders are committed.
func (c *capacityService) measure(ctx context.Context, k *capacityKind, round int) error {
	p, err := c.load(ctx, k, round)
	if err != nil {
		return err
	}
	before, err := c.read(ctx)
	if err != nil {
		return err
	}
	res, err := c.crowd.Buy(ctx, p, c.o.phase)
	if err != nil {
		return err
	}
	if k.many {
		c.many.First = res.Next
	}
	drained, err := c.waitDrained(ctx)
	if err != nil {
		return err
	}
	after, err := c.read(ctx)
	if err != nil {
		return err
	}
	n := res.Codes[k.status]
	if n == 0 {
		return fmt.Errorf("no answer %d among %v", k.status, res.Codes)
	}
	if k.status == http.StatusCreated {
		n += res.Codes[http.StatusAccepted] // committed later
	}
	c.seen[k.name] = append(c.seen[k.name], after.each(before, n))
	fmt.Fprintf(c.out, "%-8s %-9s %8.0f/s  answers %v  drained in %.2f s\n", c.name, k.name, res.Rate(k.status), res.Codes, drained.Seconds())
	return c.countConnections(ctx)
}

// read reads the counters of all processes.
func (c *capacityService) read(ctx context.Context) (now costs, err error) {
	cpu, err := c.spent()
	if err != nil {
		return now, err
	}
	for i, d := range []time.Duration{costAPI: cpu.api, costWorker: cpu.worker, costRedis: cpu.redis, costDatabase: cpu.postgres} {
		now[i] = stats.Micros(d)
	}
	if now[costPurchases], _, err = histogramTotals(ctx, "flashsale_purchase_batch_requests", c.world.API); err != nil {
		return now, err
	}
	if now[costCommits], _, err = histogramTotals(ctx, "flashsale_commit_batch_orders", c.world.Worker); err != nil {
		return now, err
	}
	info, err := c.rdb.Info(ctx, "stats", "persistence", "commandstats").Result()
	if err != nil {
		return now, err
	}
	now[costLog] = process.InfoNumber(info, "aof_current_size")
	now[costRedisBytes] = process.InfoNumber(info, "total_net_input_bytes") + process.InfoNumber(info, "total_net_output_bytes")
	_, calls, _ := strings.Cut(info, "cmdstat_evalsha:calls=")
	calls, _, _ = strings.Cut(calls, ",")
	if now[costScripts], err = strconv.ParseFloat(calls, 64); err != nil {
		return now, fmt.Errorf("calls of scripts in INFO commandstats: %w", err)
	}
	now[costAPIBytes] = c.world.API.Moved()
	return now, nil
}

// countConnections keeps the largest numbers of connections of the service.
func (c *capacityService) countConnections(ctx context.Context) error {
	info, err := c.rdb.Info(ctx, "clients").Result()
	if err != nil {
		return err
	}
	own := int(c.rdb.PoolStats().TotalConns)
	c.redisClients = max(c.redisClients, int(process.InfoNumber(info, "connected_clients"))-own)
	if c.server == nil {
		return nil
	}
	return c.server.Do(ctx, postgresserver.Superuser, func(db *sql.DB) error {
		const query = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
		var n int
		err := db.QueryRowContext(ctx, query).Scan(&n)
		c.databaseConns = max(c.databaseConns, n)
		return err
	})
}

// typical are the medians over the rounds.
func (c *capacityService) typical(kind string) (mid costs) {
	for i := range mid {
		mid[i] = stats.MedianOf(c.seen[kind], func(one costs) float64 { return one[i] })
	}
	return mid
}

// spread is a median with the lowest and the highest value.
func spread(rounds []costs, cost int) string {
	pick := func(one costs) float64 { return one[cost] }
	var values []float64
	for _, one := range rounds {
		values = append(values, pick(one))
	}
	if slices.Max(values) == 0 {
		return "–"
	}
	return fmt.Sprintf("%.1f (%.1f–%.1f)", stats.MedianOf(rounds, pick), slices.Min(values), slices.Max(values))
}

// printCapacity prints the tables as Markdown, and the ratios to the empty handler.
func printCapacity(ctx context.Context, m *meter, all []*capacityService, empty []float64) error {
	info, err := m.rdb.Info(ctx, "server").Result()
	if err != nil {
		return err
	}
	_, version, _ := strings.Cut(info, "redis_version:")
	version, _, _ = strings.Cut(version, "\r")
	fmt.Fprintf(m.out, "capacity: %s, %d x %s, %s, Redis %s, load average %s\n", time.Now().UTC().Format(time.DateOnly), runtime.NumCPU(),
		processorModel(), runtime.Version(), version, loadAverage())
	fmt.Fprintf(m.out, "capacity: %d connections, %d rounds of %v a phase, appendfsync %s; empty handler %.1f us (%.1f–%.1f)\n", m.o.connections,
		m.o.capacity.rounds, m.o.phase, m.o.fsync, median(empty), slices.Min(empty), slices.Max(empty))
	for _, c := range all {
		fmt.Fprintf(m.out, "\n### Measured: %s, appendfsync %s\n\n", c.title(), m.o.fsync)
		c.printMeasured()
		fmt.Fprintf(m.out, "\n### Arithmetic: %s, appendfsync %s\n\n", c.title(), m.o.fsync)
		c.printArithmetic()
		fmt.Fprintln(m.out)
		c.printLimits()
	}
	fmt.Fprintln(m.out)
	for _, c := range all {
		for _, k := range capacityKinds {
			mid := c.typical(k.name)
			for i, name := range []string{"api", "worker", "redis", "postgres"} {
				if mid[i] > 0 {
					fmt.Fprintf(m.out, "RATIO capacity_%s_%s_%s/empty %.3f\n", c.name, k.name, name, stats.Ratio(mid[i], median(empty)))
				}
			}
		}
	}
	return nil
}

// title is the name of the database.
func (c *capacityService) title() string {
	if c.server == nil {
		return "SQLite"
	}
	return "Postgres"
}

func (c *capacityService) printMeasured() {
	fmt.Fprintln(c.out, "| CPU per purchase, us | API | worker | Redis | Postgres | sum |\n|---|---|---|---|---|---|")
	for _, k := range capacityKinds {
		seen, mid := c.seen[k.name], c.typical(k.name)
		fmt.Fprintf(c.out, "| %s | %s | %s | %s | %s | %.1f |\n", k.title, spread(seen, costAPI), spread(seen, costWorker), spread(seen, costRedis),
			spread(seen, costDatabase), mid[costAPI]+mid[costWorker]+mid[costRedis]+mid[costDatabase])
	}
	fmt.Fprintln(c.out, "\n| | purchases per purchase script | orders per commit | scripts of all kinds per purchase | AOF bytes | bytes to and from Redis | bytes to and from the API |\n|---|---|---|---|---|---|---|")
	for _, k := range capacityKinds {
		mid := c.typical(k.name)
		if k.status == http.StatusConflict {
			fmt.Fprintf(c.out, "| %s | – | – | – | – | – | %.0f |\n", k.title, mid[costAPIBytes])
			continue
		}
		fmt.Fprintf(c.out, "| %s | %.1f | %.1f | %.3f | %.0f | %.0f | %.0f |\n", k.title, stats.Ratio(1, mid[costPurchases]), stats.Ratio(1, mid[costCommits]),
			mid[costScripts], mid[costLog], mid[costRedisBytes], mid[costAPIBytes])
	}
	fmt.Fprintf(c.out, "\nConnections of one API and one worker: %d to Redis", c.redisClients)
	if c.server != nil {
		fmt.Fprintf(c.out, ", %d to Postgres", c.databaseConns)
	}
	fmt.Fprintln(c.out, ".")
}

const (
	// capacityUse is the part of a core that is planned for.
	capacityUse = 0.6
	// fullCommit is the default of --batch, fullScript that of inventory.Config.MaxBatch.
	fullCommit, fullScript = 512, 256
	// roundTrip is the assumed time between an API and Redis and back, in us.
	roundTrip = 1000
)

var capacityRates = []int{10_000, 100_000, 1_000_000}

// printArithmetic prints how many of each part so many purchases per second need.
func (c *capacityService) printArithmetic() {
	fmt.Fprintln(c.out, "| purchases/s | API cores | Redis masters | worker cores | Postgres cores | commits/s (full batches) | scripts/s | AOF MB/s | Redis Gbit/s | API Gbit/s |\n|---|---|---|---|---|---|---|---|---|---|")
	for _, k := range capacityKinds {
		mid := c.typical(k.name)
		for _, rate := range capacityRates {
			n := need(mid, rate, c.server == nil)
			if k.status == http.StatusConflict {
				fmt.Fprintf(c.out, "| %s %s | %s | – | – | – | – | – | – | – | %s |\n", thousands(float64(rate)), k.title, n.api, n.apiGbit)
				continue
			}
			fmt.Fprintf(c.out, "| %s %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", thousands(float64(rate)), k.title, n.api, n.masters, n.worker, n.postgres,
				n.commits, n.scripts, n.log, n.redisGbit, n.apiGbit)
		}
	}
}

// needs are the cells of a row of the arithmetic.
type needs struct {
	api, masters, worker, postgres, commits, scripts, log, redisGbit, apiGbit string
}

// need computes what a rate needs from what a purchase costs. A SQLite file has one writer, which
// has no more than one core, and may use all of it.
func need(mid costs, rate int, sqlite bool) needs {
	r := float64(rate)
	cores := func(us float64) string { return upTo(r * us / 1e6 / capacityUse) }
	gbit := func(bytes float64) string { return fmt.Sprintf("%.2g", r*bytes*8/1e9) }
	n := needs{
		api: cores(mid[costAPI]), masters: cores(mid[costRedis]), worker: cores(mid[costWorker]), postgres: cores(mid[costDatabase]),
		commits: fmt.Sprintf("%s (%s)", thousands(r*mid[costCommits]), thousands(r/fullCommit)),
		scripts: thousands(r * mid[costScripts]),
		log:     fmt.Sprintf("%.1f", r*mid[costLog]/1e6), redisGbit: gbit(mid[costRedisBytes]), apiGbit: gbit(mid[costAPIBytes]),
	}
	if sqlite {
		n.worker, n.postgres = "1", "–"
		if r*mid[costWorker] > 1e6 {
			n.worker = "more than the one writer"
		}
	}
	return n
}

// upTo is a number of cores or servers, rounded up.
func upTo(n float64) string { return strconv.Itoa(max(1, int(math.Ceil(n)))) }

// thousands is a rounded number with commas between groups of digits.
func thousands(v float64) string {
	digits := strconv.FormatFloat(v, 'f', 0, 64)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// printLimits prints the rate at which each part that cannot be multiplied is exhausted.
func (c *capacityService) printLimits() {
	full, single := c.typical("accepted"), c.typical("single")
	fmt.Fprintln(c.out, "| limit | purchases/s | computed as |\n|---|---|---|")
	row := func(name string, us float64, how string) {
		fmt.Fprintf(c.out, "| %s | %s | %s |\n", name, thousands(stats.Ratio(1e6, us)), how)
	}
	row("one API core, busy", full[costAPI], "1 / API time, accepted")
	row("one API core, sold out", c.typical("sold_out")[costAPI], "1 / API time, sold out")
	row("one item, full batches: one Redis thread, busy", full[costRedis], "1 / Redis time, accepted")
	row("one Redis thread, one purchase per script", single[costRedis], "1 / Redis time, one per script")
	row("one item on one API process, 1 ms from Redis", roundTrip/float64(fullScript)+full[costRedis],
		fmt.Sprintf("scripts of %d, one after another", fullScript))
	if c.server == nil {
		row("one SQLite file: one writer", full[costWorker], "1 / worker time, accepted")
		return
	}
	row("one worker on Postgres", full[costWorker]+full[costDatabase], "1 / (worker + Postgres time): one batch at a time")
}

// processorModel is the name of the processor; "unknown processor" where the system does not
// report it.
func processorModel() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown processor"
	}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown processor"
}
