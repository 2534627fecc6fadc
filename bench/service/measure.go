package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/bench/internal/load"
	"flashsale/bench/internal/process"
	"flashsale/bench/internal/targets"
	"flashsale/bench/internal/world"
	"flashsale/handler/auth"
	"flashsale/internal/pause"
	"flashsale/inventory"
	"flashsale/queue"
)

// figures are the rounds' throughputs, in answers a second.
type figures struct {
	empty, accepted, committed, soldOut []float64
	embedded                            []float64            // committed on the embedded engine
	polling                             map[string][]float64 // one lock per request, by interval
	drained                             []float64            // seconds after the accepted phase until nothing was queued
	// cpu is the processor time per request in each phase, in microseconds, by phase and process.
	cpu map[string]map[string][]float64
}

// spent notes the processor time per request of a process in a phase.
func (f *figures) spent(phase, process string, us float64) {
	if f.cpu == nil {
		f.cpu = make(map[string]map[string][]float64)
	}
	if f.cpu[phase] == nil {
		f.cpu[phase] = make(map[string][]float64)
	}
	f.cpu[phase][process] = append(f.cpu[phase][process], us)
}

// cpuTargets are the targets for the processor time of an accepted order, relative to that of the empty
// handler: 19, 4.5 and 5 us where that took 15.1.
var cpuTargets = []struct {
	process string
	most    float64
}{{"api", 19 / 15.1}, {"worker", 4.5 / 15.1}, {"redis", 5 / 15.1}}

// printCPU prints the processor time of an accepted order, relative to that of the empty handler.
func (f *figures) printCPU(out io.Writer) {
	empty := median(f.cpu["empty"]["empty"])
	for _, t := range cpuTargets {
		if used := f.cpu["accepted"][t.process]; empty > 0 && len(used) > 0 {
			targets.AtMost(out, "accepted_cpu_"+t.process+"/empty", median(used)/empty, t.most)
		}
	}
}

func measure(ctx context.Context, o options, out io.Writer) (err error) {
	w, err := world.Start(ctx, world.Config{Fsync: o.fsync})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	rdb := redis.NewClient(&redis.Options{Addr: w.Redis.Addr})
	defer rdb.Close() //nolint:errcheck // the server ends next
	c, err := load.NewCrowd(load.Buyers)
	if err != nil {
		return err
	}
	m := &meter{world: w, crowd: c, rdb: rdb, o: o, out: out, figures: figures{polling: make(map[string][]float64)}}
	fmt.Fprintf(out, "bench: %d connections, %d rounds of %v a phase, appendfsync %s\n", o.connections, o.rounds, o.phase, o.fsync)
	for round := range o.rounds {
		if err := m.round(ctx, round); err != nil {
			return fmt.Errorf("round %d: %w", round+1, err)
		}
	}
	if o.rounds > 0 {
		m.printRatios()
	}
	if o.reads > 0 {
		if err := measureReads(ctx, m); err != nil {
			return fmt.Errorf("reads: %w", err)
		}
	}
	if o.pages > 0 {
		if err := measurePages(ctx, m); err != nil {
			return fmt.Errorf("pages: %w", err)
		}
	}
	if o.databases.rounds > 0 {
		if err := measureDatabases(ctx, m); err != nil {
			return fmt.Errorf("databases: %w", err)
		}
	}
	if o.capacity.rounds > 0 {
		if err := measureCapacity(ctx, m); err != nil {
			return fmt.Errorf("capacity: %w", err)
		}
	}
	if o.hot > 0 {
		if err := measureHot(ctx, m); err != nil {
			return err
		}
	}
	if err := measureDivided(ctx, m); err != nil {
		return err
	}
	if o.visible > 0 {
		if err := measureVisible(ctx, m); err != nil {
			return fmt.Errorf("visible: %w", err)
		}
	}
	if o.streams > 0 {
		if err := measureStreams(ctx, m); err != nil {
			return fmt.Errorf("streams: %w", err)
		}
	}
	if len(o.recovery) > 0 {
		if err := measureRecoveries(ctx, m); err != nil {
			return fmt.Errorf("recovery: %w", err)
		}
	}
	if o.expiry > 0 {
		if err := measureExpiries(ctx, m); err != nil {
			return err
		}
	}
	if o.overload {
		return measureOverload(ctx, m)
	}
	return nil
}

// printRatios prints the medians of all rounds as ratios.
func (m *meter) printRatios() {
	f, out := &m.figures, m.out
	empty := median(f.empty)
	committed := 0.48
	if m.o.fsync == "always" {
		committed = 0.42
	}
	targets.AtLeast(out, "accepted/empty", median(f.accepted)/empty, 0.58)
	targets.AtLeast(out, "committed/empty", median(f.committed)/empty, committed)
	targets.AtLeast(out, "sold_out/empty", median(f.soldOut)/empty, 0.92)
	targets.AtLeast(out, "embedded_committed/empty", median(f.embedded)/empty, 0.45)
	targets.AtMost(out, "drained_s", median(f.drained), drainedTarget)
	f.printCPU(out)
	if !m.o.skipPolling {
		for _, interval := range slices.Sorted(maps.Keys(f.polling)) {
			targets.AtLeast(out, "accepted/polling_lock_"+interval, median(f.accepted)/median(f.polling[interval]), 50)
		}
	}
}

type meter struct {
	world   *world.World
	crowd   *load.Crowd
	rdb     redis.UniversalClient
	o       options
	out     io.Writer
	figures figures
	// partitions of the service's keys; 0: one
	partitions int
}

const (
	// stock is above any demand a phase can make.
	stock = 100_000_000
	// soldOutUnits are the units of an item that is sold out from the second purchase on.
	soldOutUnits = 1
	// drainedTarget is how long after the last answer the worker may need to commit the orders
	// that it has accepted, in seconds.
	drainedTarget = 0.3
)

func (m *meter) round(ctx context.Context, n int) error {
	f := &m.figures
	empty, err := m.phase(ctx, "empty", m.world.Empty.Addr, "any", true, http.StatusCreated)
	if err != nil {
		return err
	}
	f.empty = append(f.empty, empty)

	item := fmt.Sprintf("accepted-%d", n)
	if err := m.createItem(ctx, item, stock, 0); err != nil {
		return err
	}
	stop := m.profiles(ctx, "accepted", m.world.API, m.world.Worker)
	accepted, err := m.phase(ctx, "accepted", m.world.API.Addr, item, true, http.StatusAccepted)
	if err != nil {
		return err
	}
	f.accepted = append(f.accepted, accepted)
	drained, err := m.waitDrained(ctx)
	if err != nil {
		return err
	}
	f.drained = append(f.drained, drained.Seconds())
	if err := stop(); err != nil {
		return err
	}

	item = fmt.Sprintf("committed-%d", n)
	if err := m.createItem(ctx, item, stock, 0); err != nil {
		return err
	}
	stop = m.profiles(ctx, "committed", m.world.API, m.world.Worker)
	committed, err := m.phase(ctx, "committed", m.world.API.Addr, item, false, http.StatusCreated)
	if err != nil {
		return err
	}
	f.committed = append(f.committed, committed)
	if err := stop(); err != nil {
		return err
	}

	item = fmt.Sprintf("sold-out-%d", n)
	if err := m.createItem(ctx, item, soldOutUnits, 0); err != nil {
		return err
	}
	soldOut, err := m.phase(ctx, "sold out", m.world.API.Addr, item, false, http.StatusConflict)
	if err != nil {
		return err
	}
	f.soldOut = append(f.soldOut, soldOut)

	item = fmt.Sprintf("embedded-%d", n)
	if err := createItemAt(ctx, m.world.Embedded.Addr, item, stock, 0, 1); err != nil {
		return err
	}
	stop = m.profiles(ctx, "embedded", m.world.Embedded)
	embedded, err := m.phase(ctx, "embedded", m.world.Embedded.Addr, item, false, http.StatusCreated)
	if err != nil {
		return err
	}
	f.embedded = append(f.embedded, embedded)
	if err := stop(); err != nil {
		return err
	}
	if m.o.skipPolling {
		return nil
	}
	return m.polling(ctx)
}

// polling measures one lock per request, polled at different intervals.
func (m *meter) polling(ctx context.Context) error {
	if err := m.rdb.Set(ctx, "polling:stock:any", stock, 0).Err(); err != nil {
		return err
	}
	for _, interval := range slices.Sorted(maps.Keys(m.world.Polling)) {
		rate, err := m.phase(ctx, "polling "+interval, m.world.Polling[interval].Addr, "any", true, http.StatusCreated)
		if err != nil {
			return err
		}
		m.figures.polling[interval] = append(m.figures.polling[interval], rate)
	}
	return nil
}

// phase drives one server and prints the rate of the expected answer, and the processor time
// per request of every process.
func (m *meter) phase(ctx context.Context, name, addr, item string, async bool, want int) (float64, error) {
	parts := []*process.Process{m.world.API, m.world.Worker, m.world.Redis, m.world.Empty}
	if m.world.Embedded != nil {
		parts = append(parts, m.world.Embedded)
	}
	parts = append(parts, &process.Process{Name: "load", PID: os.Getpid()})
	before := make([]time.Duration, len(parts))
	for i, p := range parts {
		before[i] = p.CPU()
	}
	if err := m.rdb.ConfigResetStat(ctx).Err(); err != nil {
		return 0, err
	}
	res, err := load.Drive(ctx, []string{addr}, item, m.crowd, m.o.connections, m.o.phase, async)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	rate := res.Rate(want)
	fmt.Fprintf(m.out, "%-13s %8.0f/s  answers %v  cpu per request:", name, rate, res.Codes)
	total := 0
	for _, n := range res.Codes {
		total += n
	}
	for i, p := range parts {
		if used := p.CPU() - before[i]; used > 0 && total > 0 {
			each := float64(used.Microseconds()) / float64(total)
			m.figures.spent(name, p.Name, each)
			fmt.Fprintf(m.out, " %s %.1fus", p.Name, each)
		}
	}
	fmt.Fprintln(m.out)
	if err := m.printCommands(ctx, total); err != nil {
		return 0, err
	}
	if rate == 0 {
		return 0, fmt.Errorf("%s: no answer %d among %v", name, want, res.Codes)
	}
	return rate, nil
}

// printCommands prints what Redis spent on each command, per request.
func (m *meter) printCommands(ctx context.Context, requests int) error {
	if !m.o.commands {
		return nil
	}
	text, err := m.rdb.Info(ctx, "commandstats").Result()
	if err != nil {
		return err
	}
	for line := range strings.Lines(text) {
		var calls, usec int
		name, figures, ok := strings.Cut(strings.TrimSpace(line), ":")
		if _, err := fmt.Sscanf(figures, "calls=%d,usec=%d", &calls, &usec); !ok || err != nil || calls < 100 {
			continue
		}
		fmt.Fprintf(m.out, "    %-24s %8d calls  %6.2fus per request\n", strings.TrimPrefix(name, "cmdstat_"), calls, float64(usec)/float64(requests))
	}
	return nil
}

// orders is the task queue of a partition's orders.
func (m *meter) orders(partition int) (*queue.Queue, error) {
	return queue.New(m.rdb, queue.Config{Prefix: inventory.QueuePrefix(partition, max(m.partitions, 1))})
}

// queued is how many orders are in the queues. A task holds the orders of a batch.
func (m *meter) queued(ctx context.Context) (sum int64, err error) {
	for partition := range max(m.partitions, 1) {
		orders, err := m.orders(partition)
		if err != nil {
			return 0, err
		}
		now, err := orders.Load(ctx)
		if err != nil {
			return 0, err
		}
		sum += int64(now.Length)
	}
	return sum, nil
}

// drainStalls is how long the queue may stay as long as it is before a wait for its end fails.
const drainStalls = time.Minute

// waitDrained waits until no order is queued and returns how long it took.
func (m *meter) waitDrained(ctx context.Context) (time.Duration, error) {
	start := time.Now()
	shortest, since := int64(math.MaxInt64), start
	for {
		queued, err := m.queued(ctx)
		if err != nil {
			return 0, err
		}
		now := time.Now()
		if queued == 0 {
			return now.Sub(start), nil
		}
		if queued < shortest {
			shortest, since = queued, now
		}
		if now.Sub(since) > drainStalls {
			return 0, fmt.Errorf("%d orders are queued, and not fewer for %v", queued, drainStalls)
		}
		if err := pause.OrCause(ctx, 10*time.Millisecond); err != nil {
			return 0, err
		}
	}
}

// profiles takes CPU profiles of processes during a phase, if -profile is set.
func (m *meter) profiles(ctx context.Context, phase string, of ...*process.Process) (wait func() error) {
	if m.o.profile == "" {
		return func() error { return nil }
	}
	done := make(chan error, len(of))
	for _, c := range of {
		go func() {
			done <- c.Profile(ctx, filepath.Join(m.o.profile, phase+"-"+c.Name+".prof"), m.o.phase)
		}()
	}
	return func() (err error) {
		for range of {
			err = errors.Join(err, <-done)
		}
		return err
	}
}

func (m *meter) createItem(ctx context.Context, id string, units, window int64) error {
	return m.createLimitedItem(ctx, id, units, window, 1)
}

// createLimitedItem is createItem with another limit per buyer.
func (m *meter) createLimitedItem(ctx context.Context, id string, units, window, limit int64) error {
	return createItemAt(ctx, m.world.API.Addr, id, units, window, limit)
}

// createItemAt creates an item at the API of that address.
func createItemAt(ctx context.Context, addr, id string, units, window, limit int64) error {
	return createDividedItem(ctx, addr, id, units, window, limit, 1)
}

// createDividedItem is createItemAt with a stock that is divided into buckets.
func createDividedItem(ctx context.Context, addr, id string, units, window, limit int64, buckets int) error {
	token, err := auth.SignToken([]byte(load.Secret), "bench", auth.RoleAdmin, time.Hour, time.Now())
	if err != nil {
		return err
	}
	body, err := json.Marshal(map[string]any{
		"id": id, "name": id, "description": "", "price_minor": 4900, "currency": "EUR", "stock": units, "per_user_limit": limit,
		"payment_window_seconds": window, "buckets": buckets,
	})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+"/v1/admin/items", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusCreated {
		err = fmt.Errorf("create item %s: %s", id, res.Status)
	}
	return errors.Join(err, res.Body.Close())
}
