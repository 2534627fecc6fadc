package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"flashsale/bench/internal/meter"
	"flashsale/bench/internal/stats"
)

// report writes the tables, then the bars.
func (r *results) report(out io.Writer) error {
	for _, table := range []struct {
		phase string
		write func(io.Writer)
	}{
		{phaseUncontended, r.uncontendedTable},
		{phaseContended, func(w io.Writer) { r.handoverTable(w, 0) }},
		{phaseContended, func(w io.Writer) { r.handoverTable(w, time.Millisecond) }},
		{phaseContended, func(w io.Writer) { r.fairnessTable(w, time.Millisecond) }},
		{phaseCommands, r.commandsTable},
		{phaseCommands, r.waitingTable},
	} {
		if !r.runs(table.phase) {
			continue
		}
		w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		table.write(w)
		fmt.Fprintln(w)
		if err := w.Flush(); err != nil {
			return err
		}
	}
	r.bars(out)
	return nil
}

func (r *results) uncontendedTable(w io.Writer) {
	fmt.Fprintf(w, "Uncontended: acquire and release, each goroutine on a resource of its own, one manager\n")
	fmt.Fprintf(w, "goroutines")
	for _, n := range parallelism {
		fmt.Fprintf(w, "\t%d: /s\tclient us\tRedis us", n)
	}
	fmt.Fprintln(w, "\tstalled")
	for _, name := range r.names {
		got := r.of[name]
		if got.waitsOnly {
			continue
		}
		fmt.Fprint(w, name)
		for _, n := range parallelism {
			rounds := got.uncontended[n]
			client := stats.MedianOf(rounds, func(u uncontended) float64 { return stats.Per(u.ClientCPU, int(u.ops)) })
			server := stats.MedianOf(rounds, func(u uncontended) float64 { return stats.Per(u.RedisCPU, int(u.ops)) })
			fmt.Fprintf(w, "\t%.0f\t%.1f\t%.1f", speed(n)(got), client, server)
		}
		fmt.Fprintf(w, "\t%d\n", got.stalled)
	}
}

func (r *results) handoverTable(w io.Writer, hold time.Duration) {
	fmt.Fprintf(w, "Contended: %d waiters in %d managers, hold %s; handover to another holder, us; CPU per acquisition\n",
		waiters, managers, hold)
	fmt.Fprintf(w, "contender\tp50\tp99\tp99 with itself\tagain itself\tacquired/s\tclient us\tRedis us\toverlaps\n")
	for _, name := range r.names {
		rounds := r.of[name].contended[hold]
		m := func(pick func(contended) float64) float64 { return stats.MedianOf(rounds, pick) }
		var overlaps int64
		for _, c := range rounds {
			overlaps += c.overlaps
		}
		fmt.Fprintf(w, "%s\t%.0f\t%.0f\t%.0f\t%.0f %%\t%.0f\t%.1f\t%.1f\t%d\n", name,
			m(func(c contended) float64 { return stats.Micros(c.p50) }),
			m(func(c contended) float64 { return stats.Micros(c.p99) }),
			m(func(c contended) float64 { return stats.Micros(c.anyP99) }),
			m(func(c contended) float64 { return 100 * stats.Ratio(float64(c.byItself), float64(c.acquired)) }),
			m(func(c contended) float64 { return float64(c.acquired) / c.Elapsed.Seconds() }),
			m(func(c contended) float64 { return stats.Per(c.ClientCPU, c.acquired) }),
			m(func(c contended) float64 { return stats.Per(c.RedisCPU, c.acquired) }),
			overlaps)
	}
}

func (r *results) fairnessTable(w io.Writer, hold time.Duration) {
	fmt.Fprintf(w, "Fairness: waits of those %d waiters, hold %s, ms; waits cut off at the end are left out\n", waiters, hold)
	fmt.Fprintf(w, "contender\tmean\tp99\tlongest\tlongest/mean\tnever served\n")
	for _, name := range r.names {
		m := func(pick func(contended) float64) float64 { return stats.MedianOf(r.of[name].contended[hold], pick) }
		fmt.Fprintf(w, "%s\t%.1f\t%.1f\t%.1f\t%.2f\t%.0f of %d\n", name,
			m(func(c contended) float64 { return stats.Micros(c.meanWait) / 1000 }),
			m(func(c contended) float64 { return stats.Micros(c.p99Wait) / 1000 }),
			m(func(c contended) float64 { return stats.Micros(c.longestWait) / 1000 }),
			m(contended.longestToMean),
			m(func(c contended) float64 { return float64(c.unserved) }), waiters)
	}
}

func (r *results) commandsTable(w io.Writer) {
	fmt.Fprintf(w, "Commands per acquisition: sent by clients (MONITOR), and run in all, scripts included (commandstats, hold 1ms)\n")
	fmt.Fprintf(w, "contender\tuncontended\tcontended\tall contended\tsent, contended\n")
	for _, name := range r.names {
		got := r.of[name]
		alone := "as above"
		if !got.waitsOnly {
			alone = fmt.Sprintf("%.2f", got.commandsAlone.perAcquisition())
		}
		all := stats.MedianOf(got.contended[time.Millisecond], func(c contended) float64 {
			return stats.Ratio(float64(c.Calls), float64(c.acquired))
		})
		fmt.Fprintf(w, "%s\t%s\t%.2f\t%.2f\t%s\n", name, alone, got.commandsContended.perAcquisition(), all,
			meter.Breakdown(got.commandsContended.sent, float64(got.commandsContended.acquired)))
	}
}

func (r *results) waitingTable(w io.Writer) {
	fmt.Fprintf(w, "Waiting: %d waiters in %d managers while another holds the lock; its own connections are not counted\n", waiters, managers)
	fmt.Fprintf(w, "contender\tcommands per waiter and s\tclient CPU\tRedis CPU\tsent, per waiter and s\n")
	for _, name := range r.names {
		got := r.of[name].waiting
		fmt.Fprintf(w, "%s\t%.2f\t%.1f %%\t%.1f %%\t%s\n", name, got.perWaiterSecond(),
			100*stats.Ratio(float64(got.ClientCPU), float64(got.Usage.Elapsed)),
			100*stats.Ratio(float64(got.RedisCPU), float64(got.Usage.Elapsed)),
			meter.Breakdown(got.sent, waiters*got.elapsed.Seconds()))
	}
}
