package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"flashsale/bench/internal/load"
	"flashsale/bench/internal/process"
	"flashsale/bench/internal/targets"
	"flashsale/bench/internal/world"
)

// hotSizes are the numbers of API processes that sell the hot item.
var hotSizes = []int{1, 2, 4, 8}

// hotFigures are the results of one size, one value a round.
type hotFigures struct {
	rate, batch, lowest []float64
	api, redis          []float64 // processor time in us per purchase
}

// measureHot measures one hot item on 1, 2, 4 and 8 API processes in turn. The load is the same
// for all, spread over the processes.
func measureHot(ctx context.Context, m *meter) (err error) {
	var procs []*process.Process
	defer func() {
		for _, p := range procs {
			err = errors.Join(err, p.Stop())
		}
	}()
	for i := range slices.Max(hotSizes) {
		p, err := hotAPI(ctx, m.world, strconv.Itoa(i))
		if err != nil {
			return err
		}
		procs = append(procs, p)
	}
	seen := make([]hotFigures, len(hotSizes))
	for round := range m.o.hot {
		for i, n := range hotSizes {
			item := fmt.Sprintf("hot-%d-%d", round, n)
			if err := hotPhase(ctx, m, item, procs[:n], &seen[i]); err != nil {
				return fmt.Errorf("hot, round %d, %d processes: %w", round+1, n, err)
			}
		}
	}
	printHot(m.out, seen)
	return nil
}

// printHot prints the medians over the rounds. The ratios are medians of each round's.
func printHot(out io.Writer, seen []hotFigures) {
	fmt.Fprintln(out, "hot item: API processes  accepted/s  to 1 process  purchases a script  lowest share  api us  redis us")
	for i, n := range hotSizes {
		f := &seen[i]
		fmt.Fprintf(out, "  %21d %11.0f %13.2f %19.1f %13.2f %7.1f %9.1f\n", n, median(f.rate), medianRatio(f.rate, seen[0].rate),
			median(f.batch), median(f.lowest), median(f.api), median(f.redis))
	}
	for i, n := range hotSizes[1:] {
		f := &seen[i+1]
		targets.AtLeast(out, fmt.Sprintf("hot_%d/hot_1", n), medianRatio(f.rate, seen[0].rate), 0.9)
		targets.AtLeast(out, fmt.Sprintf("hot_%d_lowest_share", n), slices.Min(f.lowest), 0.5)
	}
}

// hotPhase sells one item on some processes, for which each buyer gets a 202.
func hotPhase(ctx context.Context, m *meter, item string, procs []*process.Process, f *hotFigures) error {
	if err := m.createItem(ctx, item, stock, 0); err != nil {
		return err
	}
	addrs := make([]string, len(procs))
	var api time.Duration
	scripts, purchases, err := batches(ctx, procs)
	if err != nil {
		return err
	}
	for i, p := range procs {
		addrs[i] = p.Addr
		api -= p.CPU()
	}
	redis := -m.world.Redis.CPU()
	res, err := load.Drive(ctx, addrs, item, m.crowd, m.o.connections, m.o.phase, true)
	if err != nil {
		return err
	}
	redis += m.world.Redis.CPU()
	for _, p := range procs {
		api += p.CPU()
	}
	scriptsNow, purchasesNow, err := batches(ctx, procs)
	if err != nil {
		return err
	}
	accepted := res.Codes[http.StatusAccepted]
	if accepted == 0 || scriptsNow == scripts {
		return fmt.Errorf("nothing was accepted: %v", res.Codes)
	}
	f.rate = append(f.rate, res.Rate(http.StatusAccepted))
	f.batch = append(f.batch, (purchasesNow-purchases)/(scriptsNow-scripts))
	f.lowest = append(f.lowest, float64(slices.Min(res.Shares)*len(procs))/float64(accepted))
	f.api = append(f.api, float64(api.Microseconds())/float64(accepted))
	f.redis = append(f.redis, float64(redis.Microseconds())/float64(accepted))
	fmt.Fprintf(m.out, "hot %d %8.0f/s  answers %v  shares %v\n", len(procs), f.rate[len(f.rate)-1], res.Codes, res.Shares)
	_, err = m.waitDrained(ctx)
	return err
}

func hotAPI(ctx context.Context, w *world.World, name string) (*process.Process, error) {
	addr, ops := process.FreeAddr(), process.FreeAddr()
	args := append([]string{"api", "--addr", addr, "--ops-addr", ops, "--rate-buyer", "-1"}, w.Common...)
	p, err := w.Launch(ctx, "hot-"+name, w.Binary, addr, ops, args...)
	if err != nil {
		return nil, err
	}
	if err := p.Ready(ctx); err != nil {
		return nil, errors.Join(err, p.Stop())
	}
	return p, nil
}

// batches returns how many purchase scripts the processes have sent, and with how
// many purchases.
func batches(ctx context.Context, procs []*process.Process) (scripts, purchases float64, err error) {
	return histogramTotals(ctx, "flashsale_purchase_batch_requests", procs...)
}

// histogramTotals adds up the number of observations, and their values, in a histogram without
// labels of the processes' metrics.
func histogramTotals(ctx context.Context, histogram string, procs ...*process.Process) (count, sum float64, err error) {
	for _, p := range procs {
		text, err := process.Get(ctx, "http://"+p.Ops+"/metrics")
		if err != nil {
			return 0, 0, err
		}
		for line := range strings.Lines(string(text)) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
			n, err := strconv.ParseFloat(value, 64)
			switch {
			case err != nil: // a comment
			case name == histogram+"_count":
				count += n
			case name == histogram+"_sum":
				sum += n
			}
		}
	}
	return count, sum, nil
}
