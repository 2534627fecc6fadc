package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"time"

	"flashsale/bench/internal/load"
	"flashsale/bench/internal/process"
	"flashsale/internal/testing/postgresserver"
	"flashsale/queue"
)

// workerFigures are the results of one number of workers, one value a round.
type workerFigures struct {
	rate     []float64 // committed orders a second
	worker   []float64 // processor time of all workers in us per order
	postgres []float64 // the same of the server
}

// measureWorkers measures how fast different numbers of worker processes commit queued orders. The
// queue is paused while it is filled and while the processes start.
func measureWorkers(ctx context.Context, d *onDatabase) error {
	sizes := d.o.databases.workers
	if len(sizes) == 0 {
		return nil
	}
	seen := make(map[int]*workerFigures)
	for _, n := range sizes {
		seen[n] = new(workerFigures)
	}
	for round := range d.o.databases.rounds {
		for i := range sizes {
			n := sizes[(i+round)%len(sizes)] // each begins a round in turn
			if err := d.commitQueued(ctx, fmt.Sprintf("workers-%d-%d", n, round), n, seen[n]); err != nil {
				return fmt.Errorf("round %d, %d workers: %w", round+1, n, err)
			}
		}
	}
	fmt.Fprintln(d.out, "workers on Postgres  committed/s  to 1 worker  worker us  postgres us")
	for _, n := range sizes {
		f := seen[n]
		fmt.Fprintf(d.out, "%19d %12.0f %12.2f %10.1f %12.1f\n", n, median(f.rate), medianRatio(f.rate, seen[1].rate), median(f.worker), median(f.postgres))
	}
	for _, n := range sizes {
		if n > 1 {
			fmt.Fprintf(d.out, "RATIO postgres_workers_%d/1 %.2f\n", n, medianRatio(seen[n].rate, seen[1].rate))
		}
	}
	return nil
}

// commitQueued fills the queue and measures how long n workers need to empty it.
func (d *onDatabase) commitQueued(ctx context.Context, item string, n int, f *workerFigures) (err error) {
	orders, err := d.orders(0)
	if err != nil {
		return err
	}
	accepted, err := d.fillPaused(ctx, orders, item)
	if err != nil {
		return err
	}
	further, err := d.startWorkers(ctx, n-1)
	defer func() {
		for _, w := range further {
			err = errors.Join(err, w.Stop())
		}
	}()
	if err != nil {
		return err
	}
	pids := []int{d.world.Worker.PID}
	for _, w := range further {
		pids = append(pids, w.PID)
	}
	before, err := d.spent()
	if err != nil {
		return err
	}
	workers, began := process.CPUOf(pids...), time.Now()
	if err := orders.Resume(ctx); err != nil {
		return err
	}
	if _, err := d.waitDrained(ctx); err != nil {
		return err
	}
	took := time.Since(began)
	workers = process.CPUOf(pids...) - workers
	after, err := d.spent()
	if err != nil {
		return err
	}
	f.rate = append(f.rate, float64(accepted)/took.Seconds())
	f.worker = append(f.worker, float64(workers.Microseconds())/float64(accepted))
	f.postgres = append(f.postgres, float64((after.postgres-before.postgres).Microseconds())/float64(accepted))
	fmt.Fprintf(d.out, "postgres %d workers  %8.0f/s  %d orders in %.2f s\n", n, float64(accepted)/took.Seconds(), accepted, took.Seconds())
	return d.checkCommitted(ctx, item, accepted)
}

// startWorkers starts n workers and returns them when they are ready. After an error it returns
// those that it has started.
func (d *onDatabase) startWorkers(ctx context.Context, n int) (started []*process.Process, err error) {
	for i := range n {
		w, err := d.world.AnotherWorker(ctx, fmt.Sprintf("worker-%d", i+2))
		if err != nil {
			return started, err
		}
		started = append(started, w)
		if err := workerReady(ctx, w); err != nil {
			return started, err
		}
	}
	return started, nil
}

// fillPaused pauses the queue and fills it for the length of a phase.
func (d *onDatabase) fillPaused(ctx context.Context, orders *queue.Queue, item string) (accepted int, err error) {
	if err := d.createItem(ctx, item, stock, 0); err != nil {
		return 0, err
	}
	if err := orders.Pause(ctx); err != nil {
		return 0, err
	}
	res, err := load.Drive(ctx, []string{d.world.API.Addr}, item, d.crowd, d.o.connections, d.o.phase, true)
	if err != nil {
		return 0, err
	}
	accepted = res.Codes[http.StatusAccepted]
	if accepted == 0 {
		return 0, fmt.Errorf("no order was accepted: %v", res.Codes)
	}
	return accepted, nil
}

// checkCommitted fails unless the database has that many orders of an item.
func (d *onDatabase) checkCommitted(ctx context.Context, item string, want int) error {
	n := 0
	err := d.server.Do(ctx, postgresserver.Superuser, func(db *sql.DB) error {
		return db.QueryRowContext(ctx, "SELECT count(*) FROM orders WHERE item_id = $1", item).Scan(&n)
	})
	if err == nil && n != want {
		err = fmt.Errorf("%d orders of %s are in the database, and %d were accepted", n, item, want)
	}
	return err
}
