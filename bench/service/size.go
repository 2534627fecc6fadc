package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"flashsale/bench/internal/load"
	"flashsale/bench/internal/targets"
	"flashsale/internal/testing/repo"
)

// sizeOptions choose and scale the size measurements.
type sizeOptions struct {
	on    bool
	only  string  // names of measurements, separated by commas; empty: all
	scale float64 // factor for the numbers of orders, sales and queued tasks

	groups string        // of -only growth, separated by commas; empty: all
	turns  int           // how often each setting of -only growth is measured
	rows   int           // largest number of rows in the database of -only growth
	idle   time.Duration // length of -only idle
}

func (o *sizeOptions) define(f *flag.FlagSet) {
	f.BoolVar(&o.on, "size", false, "measure the service as it grows: large, many and ended sales, latency, memory; needs -rounds 0")
	f.StringVar(&o.only, "only", "", "measurements of -size, separated by commas, of "+strings.Join(sizeNames(), ", ")+"; empty: all")
	f.Float64Var(&o.scale, "scale", 1, "factor for the sizes of -size, above 0 and at most 1; the targets are meant for 1")
	f.StringVar(&o.groups, "groups", "", "groups of -only growth, separated by commas, of "+strings.Join(growthNames(), ", ")+"; empty: all")
	f.IntVar(&o.turns, "turns", 3, "how often each setting of -only growth is measured; 1 or more")
	f.IntVar(&o.rows, "rows", 1_000_000, fmt.Sprintf("largest number of rows in the database of -only growth, times -scale; %d or more", growthFewestRows))
	f.DurationVar(&o.idle, "idle", 10*time.Second, "how long -only idle measures; 100ms or more")
}

func (o *sizeOptions) validate(rounds int) error {
	if o.on && rounds > 0 {
		return errors.New("-size needs -rounds 0: its processes need the machine to themselves")
	}
	if !(o.scale > 0 && o.scale <= 1) {
		return errors.New("-scale must be above 0 and at most 1")
	}
	if o.turns < 1 || o.rows < growthFewestRows || o.idle < 100*time.Millisecond {
		return fmt.Errorf("need -turns of at least 1, -rows of at least %d and -idle of at least 100ms", growthFewestRows)
	}
	_, sizesErr := chosenSizes(o.only)
	_, groupsErr := chosenGroups(o.groups)
	return errors.Join(sizesErr, groupsErr)
}

// sizeMeasurement is one entry of -size. run prints explanations with say, and a BAR line for
// each target with atLeast or atMost.
type sizeMeasurement struct {
	name  string
	about string
	run   func(ctx context.Context, s *sizes) error
}

// sizeMeasurements returns all measurements in the order in which they run.
func sizeMeasurements() []sizeMeasurement {
	return []sizeMeasurement{
		{"payers", "order commits beside concurrent payments", measurePayers},
		{"payers_postgres", "the same on a Postgres that it starts", measurePayersPostgres},
		{"storage", "bytes the worker writes per order in a large database", measureStorage},
		{"rebuild", "time until many sales are open after a loss of Redis, and other requests meanwhile", measureRebuild},
		{"ended", "Redis memory that ended sales keep", measureEnded},
		{"inspect", "how long inspections block a sale, and what reconciliation costs", measureInspect},
		{"marks", "sold-out answers while units return", measureMarks},
		{"shop", "purchases in a shop with a long history, against an empty one", measureShop},
		{"growth", "purchases with more items, queued orders, rows, connections and API processes", measureGrowth},
		{"latency", "latency of purchases that arrive at a fixed rate, whatever the answers", measureLatency},
		{"memory", "bytes per order in Redis and in the database", measureMemory},
		{"idle", "processor time of the processes with nothing to do", measureIdle},
	}
}

func sizeNames() []string {
	var names []string
	for _, m := range sizeMeasurements() {
		names = append(names, m.name)
	}
	return names
}

// chosenSizes returns the measurements named in only, in the order of the list.
func chosenSizes(only string) ([]sizeMeasurement, error) {
	if only == "" {
		return sizeMeasurements(), nil
	}
	wanted := make(map[string]bool)
	for name := range strings.SplitSeq(only, ",") {
		wanted[strings.TrimSpace(name)] = true
	}
	var chosen []sizeMeasurement
	for _, m := range sizeMeasurements() {
		if wanted[m.name] {
			chosen = append(chosen, m)
			delete(wanted, m.name)
		}
	}
	for name := range wanted {
		return nil, fmt.Errorf("-only: unknown measurement %q; known: %s", name, strings.Join(sizeNames(), ", "))
	}
	return chosen, nil
}

// sizes is shared by all size measurements.
type sizes struct {
	o      options
	out    io.Writer
	dir    string      // removed at the end
	binary string      // the service
	crowd  *load.Crowd // tokens of buyers
}

// measureSizes runs the chosen measurements one after the other. One that fails
// does not stop the next; the errors are returned together.
func measureSizes(ctx context.Context, o options, out io.Writer) (err error) {
	chosen, err := chosenSizes(o.size.only)
	if err != nil {
		return err
	}
	s, err := newSizes(o, out, load.Buyers)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.build(ctx); err != nil {
		return err
	}
	fmt.Fprintf(out, "size: scale %g, %d connections, %v a phase, appendfsync %s\n", o.size.scale, o.connections, o.phase, o.fsync)
	var errs []error
	for _, m := range chosen {
		if ctx.Err() != nil {
			return errors.Join(append(errs, ctx.Err())...)
		}
		fmt.Fprintf(out, "%s: %s (load average %s)\n", m.name, m.about, loadAverage())
		began := time.Now()
		switch err := m.run(ctx, s); {
		case err != nil:
			s.say("failed: %v", err)
			errs = append(errs, fmt.Errorf("size measurement %s: %w", m.name, err))
		default:
			s.say("took %.0f s", time.Since(began).Seconds())
		}
	}
	return errors.Join(errs...)
}

// newSizes makes a folder and signs tokens for so many buyers.
func newSizes(o options, out io.Writer, crowdSize int) (*sizes, error) {
	c, err := load.NewCrowd(crowdSize)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "flashsale-size-")
	if err != nil {
		return nil, err
	}
	return &sizes{o: o, out: out, dir: dir, crowd: c}, nil
}

// build builds the service.
func (s *sizes) build(ctx context.Context) error {
	s.binary = filepath.Join(s.dir, "flashsale")
	return repo.Build(ctx, s.binary)
}

func (s *sizes) close() error { return os.RemoveAll(s.dir) }

// scaled is a full size times -scale, at least 1.
func (s *sizes) scaled(full int) int { return max(1, int(float64(full)*s.o.size.scale)) }

// say prints a line that explains figures.
func (s *sizes) say(format string, args ...any) {
	fmt.Fprintf(s.out, "  "+format+"\n", args...)
}

// atLeast prints a figure that must not be below its target.
func (s *sizes) atLeast(name string, value, target float64) {
	targets.AtLeast(s.out, name, value, target)
}

// atMost prints a figure that must not be above its target.
func (s *sizes) atMost(name string, value, target float64) {
	targets.AtMost(s.out, name, value, target)
}

// loadAverage is the machine's load over 1, 5 and 15 minutes; "unknown" where the
// system does not report it.
func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	f := strings.Fields(string(text))
	if err != nil || len(f) < 3 {
		return "unknown"
	}
	return strings.Join(f[:3], " ")
}
