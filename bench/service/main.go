// Command bench measures the purchase path against an empty Gin handler that
// reads and writes the same JSON, in the same run on the same machine, and
// prints the ratios with their bars:
//
//	BAR accepted/empty 0.61 0.50 met
//
// Every server is a process of its own: a redis-server, the service's API and
// worker, the empty handler, and a purchase that polls for a lock of its own.
// The load is closed-loop over keep-alive connections, one distinct buyer with
// a token of their own for each request. Phases are interleaved over rounds and
// medians are printed, for the machine's speed drifts.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"flashsale/bench/internal/baseline"
	"flashsale/bench/internal/load"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 2 && args[0] == "empty" {
		return baseline.ServeEmpty(ctx, args[1])
	}
	if len(args) == 4 && args[0] == "polling" {
		return baseline.ServePolling(ctx, args[1], args[2], args[3])
	}
	if len(args) > 0 && args[0] == "soak" {
		return soak(ctx, args[1:], out)
	}
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	o := options{}
	f.IntVar(&o.connections, "connections", 128, "keep-alive connections")
	f.IntVar(&o.rounds, "rounds", 3, "rounds; medians are printed")
	f.DurationVar(&o.phase, "phase", 4*time.Second, "length of one phase")
	f.StringVar(&o.fsync, "appendfsync", "everysec", "Redis: always, everysec or no")
	f.StringVar(&o.profile, "profile", "", "folder for CPU profiles of API and worker, taken in the accepted and committed phases")
	f.BoolVar(&o.commands, "commands", false, "print what Redis spent on each command")
	f.IntVar(&o.expiry, "expiry", 0, "number of unpaid orders whose expiry delay is measured; 0: skip")
	f.IntVar(&o.visible, "visible", 0, "repetitions of measuring how soon another process sells a returned unit; 0: skip")
	f.DurationVar(&o.spread, "spread", time.Minute, "time over which the orders of -expiry fall due")
	f.IntVar(&o.streams, "streams", 0, "event streams of which to measure the memory that each costs; 0: leave it out")
	f.IntVar(&o.pages, "pages", 0, "open shop pages whose effect on the throughput is measured; 0: leave it out")
	f.IntVar(&o.reads, "reads", 0, "rounds of reading an item's page against an empty handler, and the table of the cache's defences; 0: leave it out")
	f.IntVar(&o.hot, "hot", 0, "rounds of selling one hot item on 1, 2, 4 and 8 API processes; 0: leave it out")
	recovery := f.String("recovery", "", "orders of a sale, as in 10000,1000000, of which to measure how soon it is open after Redis lost everything; empty: leave it out")
	f.BoolVar(&o.overload, "overload", false, "measure, last, what several times the top rate leaves of the throughput")
	f.BoolVar(&o.skipPolling, "skip-polling", false, "leave out the polling lock")
	o.databases.define(f)
	o.capacity.define(f)
	o.buckets.define(f)
	o.size.define(f)
	if err := f.Parse(args); err != nil {
		return err
	}
	if err := errors.Join(o.size.validate(o.rounds), o.databases.validate(), o.capacity.validate(o.rounds), o.buckets.validate()); err != nil {
		return err
	}
	var err error
	if o.recovery, err = parseSizes(*recovery); err != nil {
		return err
	}
	if o.visible < 0 || o.reads < 0 || o.streams < 0 || o.hot < 0 || o.pages < 0 {
		return errors.New("need -visible, -reads, -streams, -pages and -hot of 0 or more")
	}
	if o.expiry < 0 || o.expiry > load.Buyers || o.spread < time.Second {
		return fmt.Errorf("need -expiry from 0 to %d, over a second or more", load.Buyers)
	}
	if o.connections < 1 || o.rounds < 0 || o.phase < 100*time.Millisecond {
		return errors.New("need at least 1 connection, no fewer than 0 rounds and 100ms a phase")
	}
	if o.size.on {
		return measureSizes(ctx, o, out)
	}
	return measure(ctx, o, out)
}

type options struct {
	connections int
	rounds      int
	phase       time.Duration
	fsync       string
	profile     string
	commands    bool
	skipPolling bool
	overload    bool
	expiry      int
	visible     int
	reads       int
	hot         int
	streams     int
	pages       int
	recovery    []int
	spread      time.Duration
	size        sizeOptions
	databases   databaseOptions
	capacity    capacityOptions
	buckets     bucketOptions
}

// median of the values; 0 when there are none.
func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Clone(v)
	slices.Sort(s)
	if len(s)%2 == 1 {
		return s[len(s)/2]
	}
	return (s[len(s)/2-1] + s[len(s)/2]) / 2
}
