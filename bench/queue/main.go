// Command queue compares the task queue of this repository with asynq, side by
// side in one run on one redis-server of its own, and prints tables and bars:
//
//	BAR queue_batch64/asynq 21.30 20.00 met
//
// The contenders take turns within each round, each round begins with another
// one, and medians over the rounds are printed, for the machine's speed drifts.
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
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9"

	"flashsale/bench/internal/server"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := dispatch(ctx, os.Args[1:])
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench/queue:", err)
		os.Exit(1)
	}
}

// dispatch runs the benchmark, or the worker that the benchmark starts of its
// own binary in order to kill it.
func dispatch(ctx context.Context, args []string) error {
	if len(args) > 0 && args[0] == workerCommand {
		return runWorker(ctx, args[1:], os.Stdout)
	}
	return run(ctx, args, os.Stdout, os.Stderr)
}

type options struct {
	rounds        int
	tasks         int
	only          string
	phases        string
	appendFsync   string
	profile       string
	recoveryAsynq bool
	depthAsynq    bool
}

// The phases, in the order in which they run.
const (
	phaseEnqueue  = "enqueue"
	phaseEndToEnd = "endtoend"
	phaseMixed    = "mixed"
	phaseLatency  = "latency"
	phaseRecovery = "recovery"
	phaseDepth    = "depth"
	phaseCommands = "commands"
)

var allPhases = []string{
	phaseEnqueue, phaseEndToEnd, phaseMixed, phaseLatency, phaseRecovery, phaseDepth, phaseCommands,
}

func parse(args []string, errout io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("bench/queue", flag.ContinueOnError)
	f.SetOutput(errout)
	f.IntVar(&o.rounds, "rounds", 3, "rounds; medians are printed")
	f.IntVar(&o.tasks, "tasks", 100_000, "tasks end to end; a fifth of it with failures, ten times as many pending")
	f.StringVar(&o.only, "only", "", "contenders, separated by commas; all by default")
	f.StringVar(&o.phases, "phases", "", "phases, separated by commas, of "+strings.Join(allPhases, ", ")+"; all by default")
	f.StringVar(&o.appendFsync, "appendfsync", "", "everysec or always; by default Redis writes nothing to disk")
	f.StringVar(&o.profile, "profile", "", "folder for CPU profiles of our tasks end to end")
	f.BoolVar(&o.recoveryAsynq, "recovery-asynq", false, "recovery of asynq too, once; it takes up to 90 s")
	f.BoolVar(&o.depthAsynq, "depth-asynq", false, "the phase depth for asynq too; it takes minutes to fill")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	if o.rounds < 1 || o.tasks < 1000 || o.tasks > 1_000_000 {
		return o, errors.New("need at least 1 round, and 1,000 to 1,000,000 tasks")
	}
	if !slices.Contains([]string{"", "everysec", "always"}, o.appendFsync) {
		return o, fmt.Errorf("appendfsync %q, want everysec or always", o.appendFsync)
	}
	for _, phase := range o.chosenPhases() {
		if !slices.Contains(allPhases, phase) {
			return o, fmt.Errorf("no phase %q, there are %s", phase, strings.Join(allPhases, ", "))
		}
	}
	return o, nil
}

func (o options) chosenPhases() []string {
	if o.phases == "" {
		return allPhases
	}
	return strings.Split(o.phases, ",")
}

func (o options) wants(phase string) bool { return slices.Contains(o.chosenPhases(), phase) }

func run(ctx context.Context, args []string, out, errout io.Writer) (err error) {
	o, err := parse(args, errout)
	if err != nil {
		return err
	}
	all, err := choose(o.only)
	if err != nil {
		return err
	}
	s, err := server.Start(ctx, "", o.appendFsync)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	admin := redis.NewClient(&redis.Options{Addr: s.Addr(), ReadTimeout: patience})
	defer func() { err = errors.Join(err, admin.Close()) }()
	b := &bench{opts: o, addr: s.Addr(), admin: admin, progress: errout}
	r, err := b.run(ctx, all)
	if err != nil {
		return err
	}
	if err := r.report(out); err != nil {
		return err
	}
	return r.faults()
}
