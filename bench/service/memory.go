package main

import (
	"context"
	"database/sql"
	"errors"
	"strconv"

	"flashsale/bench/internal/load"
	"flashsale/bench/internal/process"
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
	r, err := s.newRig(ctx, history{live: 1})
	if err != nil {
		return err
	}
	t := &rotation{s: s, rigs: []*rig{r}}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.serve(ctx, "--queue-limit", strconv.Itoa(growthQueueLimit)); err != nil {
		return err
	}
	if err := r.warm(ctx, liveIDs(1), 1); err != nil {
		return err
	}
	p := load.Purchases{Addr: r.world.api.Addr, Items: liveIDs(1), Connections: s.o.connections}
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
	defer func() { err = errors.Join(err, r.world.worker.Stop()) }()
	if _, err := r.waitDrained(ctx); err != nil {
		return 0, err
	}
	orders, err := r.orders()
	if err != nil {
		return 0, err
	}
	if err := orderlog.Trim(ctx, r.redis, orders); err != nil {
		return 0, err
	}
	own, err := r.checkpoint(ctx)
	return r.world.worker.Written() + own, err
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
