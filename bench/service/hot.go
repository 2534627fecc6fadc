package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"flashsale/bench/internal/load"
	"flashsale/bench/internal/process"
	"flashsale/bench/internal/world"
	"flashsale/internal/testing/overlay"
	"flashsale/internal/testing/repo"
)

// hotSizes are the numbers of API processes that sell the hot item.
var hotSizes = []int{1, 2, 4}

// withoutLock makes the item's lock exclude no process: each process has its own lock, which
// it takes, holds, renews and passes to the script as before, and the script does not compare
// fencing tokens. All other work is the same.
var withoutLock = []overlay.Change{
	{File: "inventory/seller.go", From: "lockKey: v.keys.lock(item)}", To: `lockKey: v.keys.lock(item) + fmt.Sprintf(":%x", rand.Uint64())}`},
	{File: "inventory/lua/purchase.lua", From: "if (tonumber(sale[2] or '0') or 0) > tonumber(ARGV[2]) then", To: "if false then"},
}

// hotFigures are the results of one contender and size, one value a round.
type hotFigures struct {
	rate, batch, lowest []float64
	api, redis          []float64 // processor time in us per purchase
}

// measureHot measures one hot item on 1, 2 and 4 API processes, with the lock and without
// it in turn. The load is the same for all, spread over the processes.
func measureHot(ctx context.Context, m *meter) (err error) {
	var open []*process.Process
	defer func() {
		for _, p := range open {
			err = errors.Join(err, p.Stop())
		}
	}()
	unlocked, err := buildWithoutLock(ctx, m.world)
	if err != nil {
		return err
	}
	contenders := []struct{ name, binary string }{{"lock", m.world.Binary}, {"no lock", unlocked}}
	procs := make(map[string][]*process.Process)
	for _, c := range contenders {
		for i := range slices.Max(hotSizes) {
			p, err := hotAPI(ctx, m.world, fmt.Sprintf("%s-%d", strings.ReplaceAll(c.name, " ", "-"), i), c.binary)
			if err != nil {
				return err
			}
			open = append(open, p)
			procs[c.name] = append(procs[c.name], p)
		}
	}
	seen := make(map[string]*hotFigures)
	for round := range m.o.hot {
		for _, n := range hotSizes {
			for i := range contenders {
				// The order changes with the round, because the first phase affects the next.
				name := contenders[(i+round)%len(contenders)].name
				key := fmt.Sprintf("%d %s", n, name)
				if seen[key] == nil {
					seen[key] = new(hotFigures)
				}
				item := fmt.Sprintf("hot-%d-%d-%d", round, n, i)
				if err := hotPhase(ctx, m, key, item, procs[name][:n], seen[key]); err != nil {
					return fmt.Errorf("hot, round %d, %s: %w", round+1, key, err)
				}
			}
		}
	}
	printHot(m.out, seen)
	return nil
}

// printHot prints the medians over the rounds. The ratios are medians of each round's.
func printHot(out io.Writer, seen map[string]*hotFigures) {
	ratio := func(above, below []float64) float64 {
		ratios := make([]float64, len(above))
		for i := range above {
			ratios[i] = above[i] / below[i]
		}
		return median(ratios)
	}
	fmt.Fprintln(out, "hot item      processes        accepted/s  to 1 process  purchases a script  lowest share  api us  redis us")
	for _, name := range []string{"lock", "no lock"} {
		one := seen[fmt.Sprintf("%d %s", hotSizes[0], name)]
		for _, n := range hotSizes {
			f := seen[fmt.Sprintf("%d %s", n, name)]
			fmt.Fprintf(out, "  %-11s %9d %17.0f %13.2f %19.1f %13.2f %7.1f %9.1f\n", name, n, median(f.rate), ratio(f.rate, one.rate),
				median(f.batch), median(f.lowest), median(f.api), median(f.redis))
		}
	}
	for _, n := range hotSizes {
		fmt.Fprintf(out, "RATIO lock/no_lock_%d %.2f\n", n, ratio(seen[fmt.Sprintf("%d lock", n)].rate, seen[fmt.Sprintf("%d no lock", n)].rate))
	}
}

// hotPhase sells one item on some processes, for which each buyer gets a 202.
func hotPhase(ctx context.Context, m *meter, name, item string, procs []*process.Process, f *hotFigures) error {
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
	fmt.Fprintf(m.out, "hot %-11s %8.0f/s  answers %v  shares %v\n", name, f.rate[len(f.rate)-1], res.Codes, res.Shares)
	_, err = m.waitDrained(ctx)
	return err
}

// hotAPI starts an API process of the given build.
func hotAPI(ctx context.Context, w *world.World, name, binary string) (*process.Process, error) {
	addr, ops := process.FreeAddr(), process.FreeAddr()
	args := append([]string{"api", "--addr", addr, "--ops-addr", ops, "--rate-buyer", "-1"}, w.Common...)
	p, err := w.Launch(ctx, "hot-"+name, binary, addr, ops, args...)
	if err != nil {
		return nil, err
	}
	if err := p.Ready(ctx); err != nil {
		return nil, errors.Join(err, p.Stop())
	}
	return p, nil
}

func buildWithoutLock(ctx context.Context, w *world.World) (string, error) {
	dir := filepath.Join(w.Dir, "without-lock")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	root, err := repo.Root()
	if err != nil {
		return "", err
	}
	path, err := overlay.Write(root, dir, withoutLock)
	if err != nil {
		return "", err
	}
	binary := filepath.Join(dir, "flashsale")
	if err := repo.Build(ctx, binary, "-overlay", path); err != nil {
		return "", fmt.Errorf("without the lock: %w", err)
	}
	return binary, nil
}

// batches returns how many purchase scripts the processes have sent, and with how
// many purchases.
func batches(ctx context.Context, procs []*process.Process) (scripts, purchases float64, err error) {
	for _, p := range procs {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.Ops+"/metrics", http.NoBody)
		if err != nil {
			return 0, 0, err
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, 0, err
		}
		lines := bufio.NewScanner(res.Body)
		for lines.Scan() {
			name, value, _ := strings.Cut(lines.Text(), " ")
			n, err := strconv.ParseFloat(value, 64)
			switch {
			case err != nil: // a comment
			case name == "flashsale_purchase_batch_requests_count":
				scripts += n
			case name == "flashsale_purchase_batch_requests_sum":
				purchases += n
			}
		}
		if err := errors.Join(lines.Err(), res.Body.Close()); err != nil {
			return 0, 0, err
		}
	}
	return scripts, purchases, nil
}
