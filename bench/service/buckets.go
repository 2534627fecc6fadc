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
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/bench/internal/load"
	"flashsale/bench/internal/process"
	"flashsale/bench/internal/server"
	"flashsale/bench/internal/targets"
	"flashsale/bench/internal/world"
	"flashsale/inventory"
)

// bucketSizes are the numbers of buckets of the items that are sold in turn. The larger one is
// also the number of partitions: each bucket has its own.
var bucketSizes = []int{1, 9}

// bucketOptions choose the measurements of divided items.
type bucketOptions struct {
	rounds int
	buyers int
}

func (o *bucketOptions) define(f *flag.FlagSet) {
	f.IntVar(&o.rounds, "buckets", 0, "rounds of selling an item of 1 and one of 9 buckets on a Redis Cluster of three masters; 0: leave it out")
	f.IntVar(&o.buyers, "buckets-crowd", 0, "buyers of an item of 8 buckets while masters of a Redis Cluster are killed; 0: leave it out")
}

func (o *bucketOptions) validate() error {
	if o.rounds < 0 {
		return errors.New("need -buckets of 0 or more")
	}
	if o.buyers != 0 && (o.buyers < 5 || o.buyers > 1_000_000) {
		return errors.New("need -buckets-crowd of 0, or from 5 to 1000000")
	}
	return nil
}

// bucketShop is the service on a Redis Cluster. The methods of meter use its world: send,
// waitDrained.
type bucketShop struct {
	*meter

	cluster *server.Cluster
}

// newBucketShop starts a Redis Cluster, and so many API processes and workers.
func newBucketShop(ctx context.Context, m *meter, fsync string, processes int) (s *bucketShop, err error) {
	dir, err := os.MkdirTemp(m.world.Dir, "buckets-")
	if err != nil {
		return nil, err
	}
	w := &world.World{Dir: dir, Binary: m.world.Binary}
	cluster, err := server.StartCluster(ctx, fsync)
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	addrs := make([]string, len(cluster.Masters))
	for i, master := range cluster.Masters {
		addrs[i] = master.Addr()
	}
	partitions := slices.Max(bucketSizes)
	s = &bucketShop{cluster: cluster, meter: &meter{
		world: w, crowd: m.crowd, o: m.o, out: m.out, partitions: partitions,
		rdb: redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs}),
	}}
	w.Common = []string{
		"--db", s.database(), "--data-dir", dir, "--redis", cluster.URL(), "--partitions", strconv.Itoa(partitions), "--log-level", "warn",
	}
	if err := s.start(ctx, processes); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// start migrates the database and starts the processes of the service.
func (s *bucketShop) start(ctx context.Context, processes int) error {
	w := s.world
	if err := w.Once(ctx, w.Binary, append([]string{"migrate", "up"}, w.Common...)...); err != nil {
		return err
	}
	for i := range processes {
		api, err := w.Another(ctx)
		if err != nil {
			return err
		}
		w.Also = append(w.Also, api)
		worker, err := w.AnotherWorker(ctx, fmt.Sprintf("worker-%d", i+1))
		if err != nil {
			return err
		}
		w.Also = append(w.Also, worker)
		if err := workerReady(ctx, worker); err != nil {
			return err
		}
	}
	return nil
}

// database is the URL of the database.
func (s *bucketShop) database() string { return "sqlite:" + filepath.Join(s.world.Dir, "bench.db") }

// apis are the API processes and their addresses.
func (s *bucketShop) apis() (procs []*process.Process, addrs []string) {
	for _, p := range s.world.Also {
		if p.Addr != "" {
			procs, addrs = append(procs, p), append(addrs, p.Addr)
		}
	}
	return procs, addrs
}

// close ends the processes before their Redis.
func (s *bucketShop) close() error {
	return errors.Join(s.rdb.Close(), s.world.Close(), s.cluster.Stop())
}

// bucketFigures are the results of one number of buckets, one value a round.
type bucketFigures struct {
	rate    []float64
	batch   []float64   // purchases in a script
	masters [][]float64 // processor time in us per purchase, the busiest master's first
}

// measureDivided measures items whose stock is divided into buckets.
func measureDivided(ctx context.Context, m *meter) error {
	if m.o.buckets.rounds > 0 {
		if err := measureBuckets(ctx, m); err != nil {
			return fmt.Errorf("buckets: %w", err)
		}
	}
	if m.o.buckets.buyers > 0 {
		if err := measureBucketsCrowd(ctx, m); err != nil {
			return fmt.Errorf("buckets, crowd: %w", err)
		}
	}
	return nil
}

// measureBuckets sells an item of 1 bucket and one of 9 buckets in turn, under the same load.
func measureBuckets(ctx context.Context, m *meter) (err error) {
	s, err := newBucketShop(ctx, m, m.o.fsync, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.printPartitions(ctx); err != nil {
		return err
	}
	seen := make([]bucketFigures, len(bucketSizes))
	for i := range seen {
		seen[i].masters = make([][]float64, server.Masters)
	}
	for round := range m.o.buckets.rounds {
		for i, n := range bucketSizes {
			if err := s.phase(ctx, fmt.Sprintf("buckets-%d-%d", round, n), n, &seen[i]); err != nil {
				return fmt.Errorf("round %d, %d buckets: %w", round+1, n, err)
			}
		}
	}
	printBuckets(m.out, seen)
	return nil
}

// printPartitions prints how many partitions, and so buckets of the larger item, each master has.
func (s *bucketShop) printPartitions(ctx context.Context) error {
	cluster, ok := s.rdb.(*redis.ClusterClient)
	if !ok {
		return errors.New("the client is not one of a cluster")
	}
	of := make(map[string]int)
	for partition := range s.partitions {
		master, err := cluster.MasterForKey(ctx, inventory.QueuePrefix(partition, s.partitions))
		if err != nil {
			return err
		}
		of[master.Options().Addr]++
	}
	fmt.Fprint(s.out, "buckets: partitions of each master:")
	for _, master := range s.cluster.Masters {
		fmt.Fprintf(s.out, " %d", of[master.Addr()])
	}
	fmt.Fprintln(s.out)
	return nil
}

// phase sells one item, for which each buyer gets a 202.
func (s *bucketShop) phase(ctx context.Context, item string, buckets int, f *bucketFigures) error {
	procs, addrs := s.apis()
	if err := createDividedItem(ctx, addrs[0], item, stock, 0, 1, buckets); err != nil {
		return err
	}
	scripts, purchases, err := batches(ctx, procs)
	if err != nil {
		return err
	}
	before := s.masterTimes()
	res, err := load.Drive(ctx, addrs, item, s.crowd, s.o.connections, s.o.phase, true)
	if err != nil {
		return err
	}
	used := s.masterTimes()
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
	each := make([]float64, len(used))
	for i := range used {
		each[i] = float64((used[i] - before[i]).Microseconds()) / float64(accepted)
	}
	fmt.Fprintf(s.out, "buckets %d %8.0f/s  answers %v  masters us %.1f\n", buckets, f.rate[len(f.rate)-1], res.Codes, each)
	slices.SortFunc(each, func(a, b float64) int { return cmp.Compare(b, a) })
	for i, us := range each {
		f.masters[i] = append(f.masters[i], us)
	}
	_, err = s.waitDrained(ctx)
	return err
}

// masterTimes is the processor time that each master has used so far.
func (s *bucketShop) masterTimes() []time.Duration {
	times := make([]time.Duration, len(s.cluster.Masters))
	for i, master := range s.cluster.Masters {
		times[i] = process.CPUOf(master.Pid())
	}
	return times
}

// printBuckets prints the medians over the rounds. The ratios are medians of each round's.
func printBuckets(out io.Writer, seen []bucketFigures) {
	fmt.Fprintln(out, "divided item: buckets  accepted/s  to 1 bucket  purchases a script  busiest master us  to 1 bucket  second us  third us")
	for i, n := range bucketSizes {
		f := &seen[i]
		fmt.Fprintf(out, "  %19d %11.0f %12.2f %19.1f %18.1f %12.2f %10.1f %9.1f\n", n, median(f.rate), medianRatio(f.rate, seen[0].rate),
			median(f.batch), median(f.masters[0]), medianRatio(f.masters[0], seen[0].masters[0]), median(f.masters[1]), median(f.masters[2]))
	}
	one, many := &seen[0], &seen[len(seen)-1]
	targets.AtMost(out, "buckets_busiest_master", medianRatio(many.masters[0], one.masters[0]), 0.5)
	targets.AtLeast(out, "buckets_rate", medianRatio(many.rate, one.rate), 0.9)
}
