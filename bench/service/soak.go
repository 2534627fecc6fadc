package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"flashsale/bench/internal/history"
	"flashsale/bench/internal/load"
	"flashsale/bench/internal/process"
	"flashsale/bench/internal/targets"
)

const (
	// soakSettle is how long the load runs before the first row: it opens the
	// connections and fills the caches.
	soakSettle = 3 * time.Second
	// soakLongest bounds -duration: the buyers' tokens are valid for two hours.
	soakLongest = 90 * time.Minute
	megabyte    = 1 << 20
)

// The targets of a soak.
const (
	soakRate       = 0.9 // last row's rate to the first's
	soakAPIMB      = 200
	soakWALMB      = 64
	soakSpike      = 3 // highest second's p99 to the median second's
	soakKBPerOrder = 3
)

// soakOptions are the flags of a soak.
type soakOptions struct {
	duration    time.Duration
	interval    time.Duration // one row of the table
	orders      int
	sales       int
	connections int
	fsync       string
	settings    string
}

func parseSoak(args []string) (o soakOptions, err error) {
	f := flag.NewFlagSet("soak", flag.ContinueOnError)
	f.DurationVar(&o.duration, "duration", 7*time.Minute, "how long the load is measured, up to 1h30m; rounded down to whole intervals")
	f.DurationVar(&o.interval, "interval", time.Minute, "time that one row of the table covers")
	f.IntVar(&o.orders, "orders", 0, "committed orders in the database at the start, in past sales")
	f.IntVar(&o.sales, "sales", 1000, "past sales that -orders are spread over")
	f.IntVar(&o.connections, "connections", 96, "keep-alive connections")
	f.StringVar(&o.fsync, "appendfsync", "everysec", "Redis: always, everysec or no")
	f.StringVar(&o.settings, "settings", "", "further flags of the API and the worker, as in '--reconcile-every 0'")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	switch {
	case o.interval < time.Second || o.duration < o.interval || o.duration > soakLongest:
		return o, fmt.Errorf("need -interval of at least 1s and -duration from one interval to %v", soakLongest)
	case o.orders < 0 || o.sales < 1 || o.orders > 0 && o.sales > o.orders:
		return o, errors.New("need -orders of 0 or more, and -sales from 1 to -orders")
	case o.connections < 1:
		return o, errors.New("need -connections of 1 or more")
	}
	return o, nil
}

// soak sells one item at full load and prints the service's figures over time.
func soak(ctx context.Context, args []string, out io.Writer) (err error) {
	o, err := parseSoak(args)
	if err != nil {
		return err
	}
	s, err := newSizes(options{connections: o.connections, fsync: o.fsync}, out, load.Buyers)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.build(ctx); err != nil {
		return err
	}
	return s.soak(ctx, o)
}

func (s *sizes) soak(ctx context.Context, o soakOptions) (err error) {
	h := history.History{Live: 1}
	if o.orders > 0 {
		h.Ended, h.EndedOrders = o.sales, o.orders/o.sales
	}
	began := time.Now()
	r, err := s.newRig(ctx, h)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	fmt.Fprintf(s.out, "soak: %v, %d connections, appendfsync %s, %d orders in %d past sales (written in %.0f s), load average %s\n",
		o.duration, o.connections, o.fsync, h.Orders(), h.Ended, time.Since(began).Seconds(), loadAverage())
	settings := strings.Fields(o.settings)
	if err := errors.Join(r.serve(ctx, settings...), r.work(ctx, settings...)); err != nil {
		return err
	}
	if err := r.warm(ctx, history.LiveIDs(1), 1); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	disk, err := newDiskProbe(r.world.Dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, disk.close()) }()
	w := &watch{rig: r, disk: disk, tally: load.NewTally(), ended: make(chan error, 1)}
	go func() {
		_, err := s.crowd.Send(ctx, load.Purchases{Addr: r.world.API.Addr, Items: history.LiveIDs(1), Connections: o.connections}, w.tally.Add)
		w.ended <- err
	}()
	err = w.run(ctx, o, s.out)
	cancel()
	if err == nil {
		err = <-w.ended // otherwise run has received it, or its error is the cause
	}
	if err != nil {
		return err
	}
	w.printBars(s.out)
	return nil
}

// watch observes a soak. It keeps one row per interval and one number per second.
type watch struct {
	rig   *rig
	disk  *diskProbe
	tally *load.Tally
	ended chan error // what ended the load

	rows    []soakRow
	seconds soakSeconds
	orders  int // in the database since the start, warm-up included
}

// soakSeconds has one number for each second.
type soakSeconds struct {
	p99     []float64 // milliseconds
	others  []float64 // processors that other processes used
	sync    []float64 // the probe's longest write, in milliseconds
	written []float64 // MB written by the worker
}

// soakRow is one row of the table. Sizes are the highest seen in its time, in MB.
type soakRow struct {
	rate, p50, p99, max, second float64 // answers 201 a second; milliseconds; highest second's p99
	api, worker, redis, db, wal float64
	load                        float64          // the load generator itself
	orders, others              int              // answers 201 and 202; all other answers
	written                     float64          // bytes written by the worker
	cpu                         [3]time.Duration // processor time of the API, the worker and Redis
}

// cpuPerOrder is the processor time per order of one of the processes of cpu, in microseconds.
func (r *soakRow) cpuPerOrder(i int) float64 {
	return float64(r.cpu[i].Microseconds()) / float64(max(1, r.orders))
}

// kbPerOrder is how much the worker wrote to storage per order, in KB.
func (r *soakRow) kbPerOrder() float64 { return r.written / 1024 / float64(max(1, r.orders)) }

func (w *watch) run(ctx context.Context, o soakOptions, out io.Writer) error {
	if err := w.wait(ctx, min(soakSettle, o.interval)); err != nil {
		return err
	}
	w.orders += accepted(w.tally.Take())
	fmt.Fprintln(out, "    time  orders  committed/s  p50 ms  p99 ms  max ms  worst second p99  API MB  worker MB  Redis MB  database MB  WAL MB  KB/order  API us  worker us  Redis us  others  load MB")
	for i := range int(o.duration / o.interval) {
		row, err := w.row(ctx, o.interval)
		if err != nil {
			return err
		}
		w.rows = append(w.rows, row)
		w.orders += row.orders
		fmt.Fprintf(out, "%8v %7d %12.0f %7.1f %7.1f %7.1f %17.1f %7.0f %10.0f %9.0f %12.0f %7.0f %9.2f %7.1f %10.1f %9.1f %7d %8.0f\n", o.interval*time.Duration(i+1), w.orders,
			row.rate, row.p50, row.p99, row.max, row.second, row.api, row.worker, row.redis, row.db, row.wal, row.kbPerOrder(), row.cpuPerOrder(0), row.cpuPerOrder(1), row.cpuPerOrder(2), row.others, row.load)
	}
	return nil
}

// row observes the load for one interval.
func (w *watch) row(ctx context.Context, interval time.Duration) (row soakRow, err error) {
	seen := load.NewBought()
	began := time.Now()
	foreign := w.foreign()
	written := w.rig.world.Worker.Written()
	row.written = -written
	used := w.cpu()
	for i := 1; ; i++ {
		// Relative to the start, so that delays do not add up.
		at := min(time.Duration(i)*time.Second, interval)
		if err := w.wait(ctx, time.Until(began.Add(at))); err != nil {
			return row, err
		}
		second := w.tally.Take()
		if second.Latency.TotalCount() == 0 {
			// No answer came for a second, which counts as the latency of that second.
			_ = second.Latency.RecordValue(second.Took.Microseconds()) //nolint:errcheck // far below the histogram's range
		}
		p99 := second.Quantile(99)
		w.seconds.p99 = append(w.seconds.p99, p99)
		row.second = max(row.second, p99)
		nowForeign, nowWritten := w.foreign(), w.rig.world.Worker.Written()
		w.seconds.others = append(w.seconds.others, (nowForeign-foreign).Seconds()/second.Took.Seconds())
		w.seconds.written = append(w.seconds.written, (nowWritten-written)/megabyte)
		w.seconds.sync = append(w.seconds.sync, float64(w.disk.take().Microseconds())/1000)
		foreign, written = nowForeign, nowWritten
		seen.Merge(second)
		if err := w.look(ctx, &row); err != nil {
			return row, err
		}
		if at == interval {
			break
		}
	}
	row.written += w.rig.world.Worker.Written()
	for i, d := range w.cpu() {
		row.cpu[i] = d - used[i]
	}
	row.rate = seen.Rate(http.StatusCreated)
	row.p50, row.p99, row.max = seen.Quantile(50), seen.Quantile(99), seen.Quantile(100)
	row.orders = accepted(seen)
	for _, n := range seen.Codes {
		row.others += n
	}
	row.others -= row.orders
	return row, nil
}

// cpu is the processor time that the API, the worker and Redis have used.
func (w *watch) cpu() [3]time.Duration {
	p := w.rig.world
	return [3]time.Duration{p.API.CPU(), p.Worker.CPU(), p.Redis.CPU()}
}

// foreign is the processor time that other processes than those of the soak have used.
func (w *watch) foreign() time.Duration {
	sum := process.MachineCPU() - process.CPUOf(os.Getpid())
	for _, d := range w.cpu() {
		sum -= d
	}
	return sum
}

// accepted is how many answers acknowledge an order.
func accepted(b *load.Bought) int { return b.Codes[http.StatusCreated] + b.Codes[http.StatusAccepted] }

// look records the memory of the processes and the sizes of the files.
func (w *watch) look(ctx context.Context, row *soakRow) error {
	text, err := w.rig.redis.Info(ctx, "memory").Result()
	if err != nil {
		return err
	}
	processes := w.rig.world
	self := &process.Process{PID: os.Getpid()}
	for to, bytes := range map[*float64]float64{
		&row.api: processes.API.Resident(), &row.worker: processes.Worker.Resident(), &row.load: self.Resident(),
		&row.redis: process.InfoNumber(text, "used_memory"), &row.db: fileSize(w.rig.path()), &row.wal: fileSize(w.rig.path() + "-wal"),
	} {
		*to = max(*to, bytes/megabyte)
	}
	return nil
}

// wait pauses, but fails when the load or a process ends.
func (w *watch) wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case err := <-w.ended:
		return cmp.Or(err, errors.New("the load ended early"))
	case <-w.rig.world.API.Ended:
		return errors.New("the API process ended")
	case <-w.rig.world.Worker.Ended:
		return errors.New("the worker ended")
	}
}

func (w *watch) printBars(out io.Writer) {
	var total, worst soakRow
	for _, r := range w.rows {
		total.written += r.written
		total.orders += r.orders
		worst.api, worst.wal = max(worst.api, r.api), max(worst.wal, r.wal)
	}
	fmt.Fprintf(out, "first and last row: %.0f and %.0f committed/s; load average %s\n", w.rows[0].rate, w.rows[len(w.rows)-1].rate, loadAverage())
	w.seconds.printWorst(out)
	targets.AtLeast(out, "soak_rate", w.rows[len(w.rows)-1].rate/w.rows[0].rate, soakRate)
	targets.AtMost(out, "soak_api_mb", worst.api, soakAPIMB)
	targets.AtMost(out, "soak_wal_mb", worst.wal, soakWALMB)
	targets.AtMost(out, "soak_p99_spike", slices.Max(w.seconds.p99)/median(w.seconds.p99), soakSpike)
	targets.AtMost(out, "soak_kb_per_order", total.kbPerOrder(), soakKBPerOrder)
}

// printWorst prints what else happened in the second with the highest p99, and in the one before: an
// answer that was late by most of a second was delayed there.
func (s *soakSeconds) printWorst(out io.Writer) {
	at := slices.Index(s.p99, slices.Max(s.p99))
	highest := func(of []float64) float64 { return slices.Max(of[max(0, at-1) : at+1]) }
	fmt.Fprintf(out, "worst second: number %d, p99 %.1f ms; other processes used %.2f processors, the worker wrote %.0f MB, a synced write of 4 KB beside the database took up to %.1f ms\n",
		at+1, s.p99[at], highest(s.others), highest(s.written), highest(s.sync))
	fmt.Fprintf(out, "median second: p99 %.1f ms; %.2f processors, %.0f MB, %.1f ms\n", median(s.p99), median(s.others), median(s.written), median(s.sync))
}

// fileSize is the length of a file; 0 when there is none.
func fileSize(path string) float64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return float64(info.Size())
}
