package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"syscall"
	"time"

	"flashsale/bench/internal/load"
	"flashsale/bench/internal/process"
)

// fillLimit bounds the time for a backlog to grow or shrink.
const fillLimit = 15 * time.Minute

// rotation lets rigs take turns on one machine. While one is measured, the API processes and
// workers of the others are stopped with SIGSTOP: otherwise their background work would slow
// all of them down and the ratios would hide it.
type rotation struct {
	s    *sizes
	rigs []*rig
	next int64 // number of the next purchase
}

// resume continues all rigs. Call it before they are closed: a stopped process does not react
// to SIGTERM.
func (t *rotation) resume() error {
	var errs []error
	for _, r := range t.rigs {
		errs = append(errs, r.signal(syscall.SIGCONT))
	}
	return errors.Join(errs...)
}

// only continues one rig and stops the others.
func (t *rotation) only(r *rig) error {
	var errs []error
	for _, other := range t.rigs {
		if other != r {
			errs = append(errs, other.signal(syscall.SIGSTOP))
		}
	}
	return errors.Join(append(errs, r.signal(syscall.SIGCONT))...)
}

// fill buys until so many orders are queued.
func (t *rotation) fill(ctx context.Context, r *rig, p load.Purchases, n int) error {
	p.Async = true
	began := time.Now()
	for {
		queued, err := r.queued(ctx)
		if err != nil {
			return err
		}
		if queued >= int64(n) {
			return nil
		}
		if time.Since(began) > fillLimit {
			return fmt.Errorf("%d of %d orders queued after %v", queued, n, fillLimit)
		}
		p.First = t.next
		b, err := t.s.crowd.Buy(ctx, p, fillStep(n-int(queued), t.s.o.phase))
		if err != nil {
			return err
		}
		t.next = b.Next
		if b.Codes[http.StatusAccepted] == 0 {
			return fmt.Errorf("no order was accepted: %v", b.Codes)
		}
	}
}

// fillStep is how long to buy when n orders are missing. Few orders are a matter of
// milliseconds, and a whole second would add many times as many.
func fillStep(n int, phase time.Duration) time.Duration {
	const perSecond = 30_000 // about what two cores accept
	return min(time.Duration(n)*time.Second/perSecond, time.Second, phase)
}

// clear lets a worker empty the queue.
func (r *rig) clear(ctx context.Context) error {
	if err := r.work(ctx); err != nil {
		return err
	}
	_, err := r.waitDrained(ctx)
	return errors.Join(err, r.world.worker.Stop())
}

// signal sends a signal to the API processes and the worker.
func (r *rig) signal(sig os.Signal) error {
	var errs []error
	for _, c := range append([]*process.Process{r.world.api, r.world.worker}, r.world.also...) {
		if c == nil || c.Gone() {
			continue
		}
		p, err := os.FindProcess(c.PID)
		if err == nil {
			err = p.Signal(sig)
		}
		if err != nil && !errors.Is(err, os.ErrProcessDone) {
			errs = append(errs, fmt.Errorf("signal %s: %w", c.Name, err))
		}
	}
	return errors.Join(errs...)
}
