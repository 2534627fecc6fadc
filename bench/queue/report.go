package main

import (
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
	"time"

	"flashsale/bench/internal/meter"
	"flashsale/bench/internal/stats"
)

// report writes the tables of the phases that were run, then the bars.
func (r *results) report(out io.Writer) error {
	for _, table := range []func(io.Writer){
		r.enqueueTable, r.endToEndTable, r.mixedTable, r.latencyTable, r.recoveryTable, r.depthTable, r.commandsTable,
	} {
		w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		table(w)
		if err := w.Flush(); err != nil {
			return err
		}
	}
	r.bars(out)
	return nil
}

// table writes a title, a heading and one line for each contender for which line returns one;
// nothing if there are no lines.
func (r *results) table(w io.Writer, title, heading string, line func(*result) string) {
	begun := false
	for _, name := range r.names {
		text := line(r.of[name])
		if text == "" {
			continue
		}
		if !begun {
			fmt.Fprintf(w, "%s\n%s\n", title, heading)
			begun = true
		}
		fmt.Fprintf(w, "%s\t%s\n", name, text)
	}
	if begun {
		fmt.Fprintln(w)
	}
}

func (r *results) enqueueTable(w io.Writer) {
	if len(r.enqueued) == 0 {
		return
	}
	fmt.Fprintf(w, "Enqueue: %d bytes a task, producers without pause; CPU per task\nproducers", payloadSize)
	for _, n := range producers {
		fmt.Fprintf(w, "\t%d: /s\tclient us\tRedis us", n)
	}
	fmt.Fprintln(w)
	for _, name := range r.ways {
		fmt.Fprint(w, name)
		for _, n := range producers {
			all := r.enqueued[enqueuing{name, n}]
			fmt.Fprintf(w, "\t%.0f\t%.1f\t%.1f", r.speed(name, n),
				stats.MedianOf(all, func(e enqueued) float64 { return stats.Per(e.ClientCPU, int(e.tasks)) }),
				stats.MedianOf(all, func(e enqueued) float64 { return stats.Per(e.RedisCPU, int(e.tasks)) }))
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintln(w)
}

func (r *results) endToEndTable(w io.Writer) {
	r.table(w, fmt.Sprintf("End to end: tasks that do nothing, all added before the work begins, concurrency %d; CPU per task", concurrency),
		"contender\ttasks/s\tclient us\tRedis us\tcommands\tadding: Redis us\tMB per 100,000 pending\tran again",
		func(got *result) string {
			if len(got.endToEnd) == 0 {
				return ""
			}
			m := func(pick func(endToEnd) float64) float64 { return stats.MedianOf(got.endToEnd, pick) }
			var again int64
			for _, e := range got.endToEnd {
				again += e.duplicates
			}
			return fmt.Sprintf("%.0f\t%.1f\t%.1f\t%.2f\t%.1f\t%.1f\t%d", got.endToEndSpeed(),
				m(func(e endToEnd) float64 { return stats.Per(e.ClientCPU, e.tasks) }),
				m(func(e endToEnd) float64 { return stats.Per(e.RedisCPU, e.tasks) }),
				m(func(e endToEnd) float64 { return stats.Ratio(float64(e.Calls), float64(e.tasks)) }),
				m(func(e endToEnd) float64 { return stats.Per(e.adding.RedisCPU, e.tasks) }),
				m(endToEnd.bytesPerTask)*100_000/1e6, again)
		})
}

func (r *results) mixedTable(w io.Writer) {
	r.table(w, fmt.Sprintf("Mixed: 1 %% fail once and run again after %s, 1 %% are due %s after they were added", retryDelay, delayedBy),
		"contender\ttasks\tall done in s\ttasks/s\tran again\tran early\tleft",
		func(got *result) string {
			if len(got.mixed) == 0 {
				return ""
			}
			var o outcome
			for _, m := range got.mixed {
				o = o.plus(m.outcome)
			}
			seconds := stats.MedianOf(got.mixed, func(m mixed) float64 { return m.Elapsed.Seconds() })
			return fmt.Sprintf("%d\t%.2f\t%.0f\t%d\t%d\t%d", got.mixed[0].tasks, seconds,
				stats.Ratio(float64(got.mixed[0].tasks), seconds), o.duplicates, o.early, o.left)
		})
}

func (r *results) latencyTable(w io.Writer) {
	r.table(w, fmt.Sprintf("Empty queue: %d single tasks %s to %s apart, from enqueue to handler, ms", singles, gapMin, gapMax),
		"contender\tp50\tp99\tlongest\tclient CPU\tRedis CPU",
		func(got *result) string {
			times := pooled(got.latency)
			if len(times) == 0 {
				return ""
			}
			percent := func(cpu func(latency) time.Duration) float64 {
				return stats.MedianOf(got.latency, func(l latency) float64 {
					return 100 * stats.Ratio(float64(cpu(l)), float64(l.Elapsed))
				})
			}
			return fmt.Sprintf("%.2f\t%.2f\t%.2f\t%.1f %%\t%.1f %%",
				millis(quantile(times, 50)), millis(quantile(times, 99)), millis(times[len(times)-1]),
				percent(func(l latency) time.Duration { return l.ClientCPU }),
				percent(func(l latency) time.Duration { return l.RedisCPU }))
		})
}

func (r *results) recoveryTable(w io.Writer) {
	r.table(w, fmt.Sprintf("Recovery: from kill -9 of a worker that holds %d tasks until all have begun elsewhere", heldTasks),
		"contender\tlease s\tseconds",
		func(got *result) string {
			if len(got.recovery) == 0 {
				return ""
			}
			seconds := strconv.FormatFloat(stats.MedianOf(got.recovery, recovery.seconds), 'f', 2, 64)
			for _, rec := range got.recovery {
				if rec.late {
					seconds = "more than " + strconv.FormatFloat(rec.seconds(), 'f', 0, 64)
				}
			}
			lease := 30.0 // asynq's, which cannot be configured
			if got.ours {
				lease = recoveryLease.Seconds()
			}
			return fmt.Sprintf("%.0f\t%s", lease, seconds)
		})
}

func (r *results) depthTable(w io.Writer) {
	r.table(w, "Depth: work that adds a task for each that it finishes, so that as many stay pending; CPU per task",
		"contender\tpending\ttasks/s\tRedis us\tpending\ttasks/s\tRedis us\tran again\tlost",
		func(got *result) string {
			few, many := got.depthSpeeds()
			if few == 0 {
				return ""
			}
			redis := func(rounds []depth) float64 {
				return stats.MedianOf(rounds, func(d depth) float64 { return stats.Per(d.RedisCPU, int(d.tasks)) })
			}
			return fmt.Sprintf("%s\t%.0f\t%.1f\t%s\t%.0f\t%.1f\t%d\t%d", short(shallow), few, redis(got.depth[0]),
				short(got.deep), many, redis(got.depth[1]), got.depthOutcome.duplicates, got.depthOutcome.missing)
		})
}

func (r *results) commandsTable(w io.Writer) {
	r.table(w, "Commands that clients send (MONITOR), per task, and per second by a worker with nothing to do",
		"contender\tadding\tworking\tidle/s\tsent while working, per task",
		func(got *result) string {
			c := got.commands
			if c.idleElapsed == 0 {
				return ""
			}
			return fmt.Sprintf("%.2f\t%.2f\t%.1f\t%s", float64(sum(c.adding))/countedTasks, float64(sum(c.working))/countedTasks,
				float64(sum(c.idle))/c.idleElapsed.Seconds(), meter.Breakdown(c.working, countedTasks))
		})
}

// short writes a round number in short form: 1k, 1M.
func short(n int) string {
	switch {
	case n >= 1_000_000 && n%1_000_000 == 0:
		return strconv.Itoa(n/1_000_000) + "M"
	case n >= 1_000 && n%1_000 == 0:
		return strconv.Itoa(n/1_000) + "k"
	default:
		return strconv.Itoa(n)
	}
}
