// Command peers compares this service with other common ways to build one: the same requests,
// the same load, the same checker. Each contender runs as processes of its own and is killed
// with SIGKILL during a sale. It prints a Markdown table and targets:
//
//	BAR peers_lost 0 0 met
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"flashsale/bench/internal/load"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := dispatch(ctx, os.Args[1:])
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench/peers:", err)
		os.Exit(1)
	}
}

// dispatch runs the benchmark, or one of the contenders that it starts of its own binary.
func dispatch(ctx context.Context, args []string) error {
	if len(args) > 0 && args[0] == serveCommand {
		return serve(ctx, args[1:])
	}
	return run(ctx, args, os.Stdout, os.Stderr)
}

type options struct {
	rounds      int
	phase       time.Duration
	only        string
	kills       int
	connections int
}

func parse(args []string, errout io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("bench/peers", flag.ContinueOnError)
	f.SetOutput(errout)
	f.IntVar(&o.rounds, "rounds", 3, "rounds; medians are printed")
	f.DurationVar(&o.phase, "phase", 4*time.Second, "length of one measurement; the sale of the kill run has as many units as are sold in that time")
	f.IntVar(&o.kills, "kills", 5, "how often each contender is killed during its sale")
	f.StringVar(&o.only, "only", "", "contenders, separated by commas, of "+names(contenders())+"; all by default")
	f.IntVar(&o.connections, "connections", 128, "keep-alive connections")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	if o.rounds < 1 || o.phase < 100*time.Millisecond || o.connections < 2 || o.kills < 1 || o.kills > 100 {
		return o, errors.New("need at least 1 round, 100ms a phase, 2 connections, and 1 to 100 kills")
	}
	return o, nil
}

func run(ctx context.Context, args []string, out, errout io.Writer) error {
	o, err := parse(args, errout)
	if err != nil {
		return err
	}
	all, err := choose(o.only)
	if err != nil {
		return err
	}
	crowd, err := load.NewCrowd(load.Buyers)
	if err != nil {
		return err
	}
	r, err := measure(ctx, o, all, crowd, errout)
	if err != nil {
		return err
	}
	r.print(out)
	return r.fault()
}
