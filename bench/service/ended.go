package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"flashsale/bench/internal/history"
	"flashsale/internal/pause"
)

const (
	// The sizes at scale 1: 10 million orders, about 2 GB of Redis.
	endedSales, endedOrders = 100, 100_000
	// endedLeft is the share of the memory that may still be used afterwards.
	endedLeft = 0.05
	// endedSlow is what counts as a slow command, in microseconds.
	endedSlow = 20_000
	// endedProbes is how many purchases of ended sales are made in the end.
	endedProbes = 100
)

// measureEnded loads sales, sets their end to two days ago, and measures how much of their
// memory is in use after a worker has swept, how many commands of Redis were slow meanwhile,
// and whether purchases load any of it again.
func measureEnded(ctx context.Context, s *sizes) (err error) {
	orders := s.scaled(endedOrders)
	r, err := s.newRig(ctx, history.History{Live: endedSales, LiveOrders: orders})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	empty, err := r.usedMemory(ctx) // before the API, which loads the sales when it starts
	if err != nil {
		return err
	}
	if err := r.serve(ctx); err != nil {
		return err
	}
	if err := r.warm(ctx, history.LiveIDs(endedSales), 4); err != nil {
		return err
	}
	full, err := r.usedMemory(ctx)
	if err != nil {
		return err
	}
	s.say("%d sales of %d orders: %.0f MB of Redis, %d bytes per order", endedSales, orders, float64(full-empty)/1e6, (full-empty)/int64(endedSales*orders))
	if err := r.endSales(ctx); err != nil {
		return err
	}
	if err := errors.Join(r.redis.ConfigSet(ctx, "slowlog-log-slower-than", strconv.Itoa(endedSlow)).Err(),
		r.redis.Do(ctx, "SLOWLOG", "RESET").Err()); err != nil {
		return err
	}
	began := time.Now()
	if err := r.work(ctx); err != nil {
		return err
	}
	used, err := r.freed(ctx)
	if err != nil {
		return err
	}
	s.say("freed within %.1f s of the worker's start", time.Since(began).Seconds())
	slow, err := r.redis.Do(ctx, "SLOWLOG", "LEN").Int64()
	if err != nil {
		return err
	}
	s.atMost("ended_memory_left", float64(used-empty)/float64(full-empty), endedLeft)
	s.atMost("ended_slow_commands", float64(slow), 0)
	return r.probeEnded(ctx, s)
}

// usedMemory is what Redis uses for its data, without its own overhead.
func (r *rig) usedMemory(ctx context.Context) (int64, error) {
	info, err := r.redis.InfoMap(ctx, "memory").Result()
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(info["Memory"]["used_memory_dataset"], 10, 64)
}

// endSales sets the end of all sales to two days ago, in the database and in Redis, as
// they would be if they had been created with it.
func (r *rig) endSales(ctx context.Context) (err error) {
	db, err := sql.Open("sqlite3", "file:"+r.path()+"?_busy_timeout=10000&_txlock=immediate")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	over := time.Now().Add(-48 * time.Hour).UnixMilli()
	if _, err := db.ExecContext(ctx, "UPDATE items SET opens_at = MIN(opens_at, ?1 - 1), closes_at = ?1", over); err != nil {
		return err
	}
	for _, item := range history.LiveIDs(endedSales) {
		if err := r.redis.HSet(ctx, "fs:{p0}:sale:"+item, "closes_ms", over).Err(); err != nil {
			return err
		}
	}
	return nil
}

// freed waits until the sales' keys are gone and Redis has freed their memory, and
// returns how much memory is in use then.
func (r *rig) freed(ctx context.Context) (int64, error) {
	for began := time.Now(); ; {
		keys, err := r.endedKeys(ctx)
		if err != nil {
			return 0, err
		}
		info, err := r.redis.InfoMap(ctx, "memory").Result()
		if err != nil {
			return 0, err
		}
		if keys == 0 && info["Memory"]["lazyfree_pending_objects"] == "0" {
			return r.usedMemory(ctx)
		}
		if time.Since(began) > recoveryLimit {
			return 0, fmt.Errorf("%d keys of ended sales are in Redis after %v", keys, recoveryLimit)
		}
		if err := pause.OrCause(ctx, 100*time.Millisecond); err != nil {
			return 0, err
		}
	}
}

// endedKeys is how many keys of the sales are in Redis.
func (r *rig) endedKeys(ctx context.Context) (n int64, err error) {
	for _, item := range history.LiveIDs(endedSales) {
		there, err := r.redis.Exists(ctx, "fs:{p0}:sale:"+item, "fs:{p0}:idempotency:"+item, "fs:{p0}:buyers:"+item, "fs:{p0}:accepted:"+item).Result()
		if err != nil {
			return 0, err
		}
		n += there
	}
	return n, nil
}

// probeEnded buys of ended sales, and prints how many of their keys are in Redis then.
func (r *rig) probeEnded(ctx context.Context, s *sizes) error {
	for i := range endedProbes {
		item := history.LiveID(i % endedSales)
		status, body, err := r.send(ctx, r.world.API.Addr, "/v1/items/"+item+"/orders", `{"quantity":1}`, i, "Idempotency-Key", "k")
		if err != nil {
			return err
		}
		if status != http.StatusConflict || !strings.Contains(string(body), "sale_closed") {
			return fmt.Errorf("purchase of ended sale %s: %d %s", item, status, body)
		}
	}
	back, err := r.endedKeys(ctx)
	if err != nil {
		return err
	}
	s.atMost("ended_keys_loaded", float64(back), 0)
	return nil
}
