package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"time"

	"flashsale/bench/internal/history"
	"flashsale/bench/internal/load"
	"flashsale/bench/internal/process"
	"flashsale/internal/pause"
	orderlog "flashsale/inventory/accepted"
)

const (
	// memoryOrders is the number of orders at scale 1, each of a buyer of its own.
	memoryOrders = 200_000
	// memoryFirst is the number of orders before them, after which buffers have their usual size.
	memoryFirst = 10_000
)

// footprint is what the data of a rig uses, in bytes.
type footprint struct {
	redis    float64 // used_memory
	log      float64 // Redis's append-only file
	database float64 // the file, after a checkpoint
}

// minus is the difference, per order.
func (f footprint) minus(before footprint, orders int64) footprint {
	n := float64(orders)
	return footprint{redis: (f.redis - before.redis) / n, log: (f.log - before.log) / n, database: (f.database - before.database) / n}
}

// measureMemory accepts orders without a worker, lets a worker commit them, and prints how many
// bytes of memory and of storage each takes, in the queue and afterwards.
func measureMemory(ctx context.Context, s *sizes) (err error) {
	r, err := s.newRig(ctx, history.History{Live: 1})
	if err != nil {
		return err
	}
	t := &rotation{s: s, rigs: []*rig{r}}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.serve(ctx, "--queue-limit", strconv.Itoa(growthQueueLimit)); err != nil {
		return err
	}
	if err := r.warm(ctx, history.LiveIDs(1), 1); err != nil {
		return err
	}
	p := load.Purchases{Addr: r.world.API.Addr, Items: history.LiveIDs(1), Connections: s.o.connections}
	if err := t.fill(ctx, r, p, s.scaled(memoryFirst)); err != nil {
		return err
	}
	if _, err := r.commitAll(ctx); err != nil {
		return err
	}
	before, err := r.footprint(ctx)
	if err != nil {
		return err
	}
	if err := t.fill(ctx, r, p, s.scaled(memoryOrders)); err != nil {
		return err
	}
	orders, err := r.queued(ctx)
	if err != nil {
		return err
	}
	queued, err := r.footprint(ctx)
	if err != nil {
		return err
	}
	written, err := r.commitAll(ctx)
	if err != nil {
		return err
	}
	after, err := r.footprint(ctx)
	if err != nil {
		return err
	}
	printMemory(s, orders, queued.minus(before, orders), after.minus(before, orders), written/float64(orders))
	return nil
}

// printMemory prints the table. All values are per order.
func printMemory(s *sizes, orders int64, queued, committed footprint, written float64) {
	s.say("bytes per order, over %d orders of as many buyers", orders)
	for _, row := range []struct {
		name  string
		bytes float64
	}{
		{"Redis memory, order in the queue", queued.redis},
		{"Redis memory, order committed", committed.redis},
		{"Redis append-only file, accepted", queued.log},
		{"Redis append-only file, accepted and committed", committed.log},
		{"database file", committed.database},
		{"written to the database, its log and checkpoints", written},
	} {
		s.say("  %-50s %8.0f", row.name, row.bytes)
	}
}

// commitAll runs a worker until it has committed all orders, and removes them from the queue's
// log, as the next sweep would. It returns how many bytes were written to the database's files,
// the last checkpoint included.
func (r *rig) commitAll(ctx context.Context) (written float64, err error) {
	if err := r.work(ctx); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, r.world.Worker.Stop()) }()
	if _, err := r.waitDrained(ctx); err != nil {
		return 0, err
	}
	orders, err := r.orders(0)
	if err != nil {
		return 0, err
	}
	if err := orderlog.Trim(ctx, r.redis, orders); err != nil {
		return 0, err
	}
	own, err := r.checkpoint(ctx)
	return r.world.Worker.Written() + own, err
}

// checkpoint moves the write-ahead log into the database's file, and returns how many bytes
// this process wrote for it.
func (r *rig) checkpoint(ctx context.Context) (written float64, err error) {
	db, err := sql.Open("sqlite3", "file:"+r.path()+"?_busy_timeout=10000")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	before, err := writtenBytes()
	if err != nil {
		return 0, err
	}
	if _, err := db.ExecContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)"); err != nil {
		return 0, err
	}
	after, err := writtenBytes()
	return float64(after - before), err
}

// footprint reads what the data uses.
func (r *rig) footprint(ctx context.Context) (footprint, error) {
	text, err := r.redis.Info(ctx, "memory", "persistence").Result()
	return footprint{
		redis: process.InfoNumber(text, "used_memory"), log: process.InfoNumber(text, "aof_current_size"),
		database: fileSize(r.path()),
	}, err
}

const (
	// idleShare is how much of a core each process may use with nothing to do.
	idleShare = 0.01
	// idleSettle is how long the processes rest after the load before they are measured: they
	// collect garbage and remove what the load has left.
	idleSettle = 5 * time.Second
)

// measureIdle sells under full load, waits until all orders are committed, and measures the
// processor time that each process uses afterwards, as a share of one core.
func measureIdle(ctx context.Context, s *sizes) (err error) {
	r, err := s.newRig(ctx, history.History{Live: 1})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.start(ctx); err != nil {
		return err
	}
	if err := r.warm(ctx, history.LiveIDs(1), 1); err != nil {
		return err
	}
	p := load.Purchases{Addr: r.world.API.Addr, Items: history.LiveIDs(1), Connections: s.o.connections}
	for _, p.Async = range []bool{true, false} {
		b, err := s.crowd.Buy(ctx, p, s.o.phase)
		if err != nil {
			return err
		}
		p.First = b.Next
		if _, err := r.waitDrained(ctx); err != nil {
			return err
		}
	}
	if err := pause.OrCause(ctx, min(idleSettle, s.o.size.idle)); err != nil {
		return err
	}
	shares, err := idleShares(ctx, []*process.Process{r.world.API, r.world.Worker, r.world.Redis}, s.o.size.idle)
	if err != nil {
		return err
	}
	s.say("processor time in %v after %d orders, of one core:", s.o.size.idle, p.First)
	names := []string{"api", "worker", "redis"}
	for i, name := range names {
		s.say("  %-7s %6.2f %%", name, 100*shares[i])
	}
	for i, name := range names {
		s.atMost("idle_cpu_"+name, shares[i], idleShare)
	}
	return nil
}

// idleShares returns the share of a core that each process uses during d.
func idleShares(ctx context.Context, parts []*process.Process, d time.Duration) ([]float64, error) {
	shares := make([]float64, len(parts))
	began := time.Now()
	for i, p := range parts {
		shares[i] = -p.CPU().Seconds()
	}
	if shares[0] == 0 {
		return nil, errors.New("the system does not report the processor time of processes")
	}
	if err := pause.OrCause(ctx, d); err != nil {
		return nil, err
	}
	took := time.Since(began).Seconds()
	for i, p := range parts {
		if p.Gone() {
			return nil, fmt.Errorf("%s ended", p.Name)
		}
		shares[i] = (shares[i] + p.CPU().Seconds()) / took
	}
	return shares, nil
}
