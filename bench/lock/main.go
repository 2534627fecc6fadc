// Command lock compares the lock of this repository with other Redis locks for
// Go, side by side in one run on one redis-server of its own, and prints tables
// and bars:
//
//	BAR lock_uncontended_1/fastest 1.12 0.95 met
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
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/bench/internal/server"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench/lock:", err)
		os.Exit(1)
	}
}

type options struct {
	rounds   int
	duration time.Duration
	only     string
	profile  string
	rest     time.Duration
	phases   string
}

// The phases. The commands are counted once, the others run in every round.
const (
	phaseUncontended = "uncontended"
	phaseContended   = "contended"
	phaseCommands    = "commands"
)

var allPhases = []string{phaseUncontended, phaseContended, phaseCommands}

// runs reports whether a phase was chosen.
func (o options) runs(phase string) bool { return slices.Contains(o.chosen(), phase) }

func (o options) chosen() []string {
	if o.phases == "" {
		return allPhases
	}
	return strings.Split(o.phases, ",")
}

func parse(args []string, errout io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("bench/lock", flag.ContinueOnError)
	f.SetOutput(errout)
	f.IntVar(&o.rounds, "rounds", 5, "rounds; medians are printed")
	f.DurationVar(&o.duration, "duration", time.Second, "length of one phase of one contender")
	f.StringVar(&o.only, "only", "", "contenders, separated by commas; all by default")
	f.StringVar(&o.profile, "profile", "", "folder for CPU profiles of our uncontended phases")
	f.DurationVar(&o.rest, "rest", 0, "pause of a goroutine between its release and its next acquire; below 20ms, or the queue is empty")
	f.StringVar(&o.phases, "phases", "", "phases, separated by commas, of "+strings.Join(allPhases, ", ")+"; all by default")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	for _, phase := range o.chosen() {
		if !slices.Contains(allPhases, phase) {
			return o, fmt.Errorf("no phase %q, there are %s", phase, strings.Join(allPhases, ", "))
		}
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	if o.rounds < 1 || o.duration < 100*time.Millisecond {
		return o, errors.New("need at least 1 round and 100ms a phase")
	}
	if o.rest < 0 || o.rest > 20*time.Millisecond {
		return o, errors.New("rest must be 0 to 20ms")
	}
	return o, nil
}

func run(ctx context.Context, args []string, out, errout io.Writer) (err error) {
	o, err := parse(args, errout)
	if err != nil {
		return err
	}
	all, err := choose(o.only)
	if err != nil {
		return err
	}
	s, err := server.Start(ctx, "", "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	admin := redis.NewClient(&redis.Options{Addr: s.Addr()})
	defer func() { err = errors.Join(err, admin.Close()) }()
	b := &bench{opts: o, addr: s.Addr(), admin: admin, progress: errout}
	r, err := b.run(ctx, all)
	if err != nil {
		return err
	}
	if err := r.report(out); err != nil {
		return err
	}
	if got := r.of[oursName]; got != nil && got.overlaps+got.stalled > 0 {
		return fmt.Errorf("our lock: held by two at once %d times, %d goroutines stalled", got.overlaps, got.stalled)
	}
	return nil
}
