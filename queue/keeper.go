package queue

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// keeper extends the leases of one batch while its handler runs, and ends the
// handler's context when they are lost.
type keeper struct {
	ctx    context.Context // the handler's
	cancel context.CancelCauseFunc
	done   sync.WaitGroup

	mu  sync.Mutex
	end time.Time // when the leases end, at the earliest
}

// keep starts a keeper; stop must be called.
func keep(r *runner, tasks []Leased) *keeper {
	k := &keeper{end: tasks[0].LeaseUntil}
	for i := range tasks {
		if tasks[i].LeaseUntil.Before(k.end) {
			k.end = tasks[i].LeaseUntil
		}
	}
	k.ctx, k.cancel = context.WithCancelCause(r.work)
	quit := k.ctx.Done()
	k.done.Go(func() { k.loop(r, tasks, quit) })
	return k
}

// stop ends the keeper and the handler's context, and returns when no extension is under way.
func (k *keeper) stop() {
	k.cancel(nil)
	k.done.Wait()
}

func (k *keeper) until() time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.end
}

// loop extends every third of a lease, and more often while that fails.
func (k *keeper) loop(r *runner, tasks []Leased, quit <-chan struct{}) {
	every, again := r.q.cfg.Lease/3, r.q.cfg.Lease/10
	lost := time.NewTimer(time.Until(k.until()))
	defer lost.Stop()
	next := time.NewTimer(min(every, time.Until(k.until())/2))
	defer next.Stop()
	for {
		select {
		case <-quit:
			return
		case <-lost.C:
			k.lose(r, len(tasks))
			return
		case <-next.C:
		}
		start := time.Now()
		ctx, cancel := context.WithDeadline(k.ctx, k.until())
		status, err := r.q.Extend(ctx, tasks...)
		cancel()
		if k.ctx.Err() != nil {
			return
		}
		if err != nil {
			r.cfg.OnError(err)
			next.Reset(again)
			continue
		}
		if n := lostOf(tasks, status); n > 0 {
			k.lose(r, n)
			return
		}
		k.mu.Lock()
		k.end = start.Add(r.q.cfg.Lease)
		k.mu.Unlock()
		lost.Reset(time.Until(k.until()))
		next.Reset(every)
	}
}

// lostOf counts the leases that are no more ours. Those that the handler ended
// itself by Complete are none of them.
func lostOf(tasks []Leased, status []AckStatus) (n int) {
	for i, s := range status {
		if s != Done && (tasks[i].over == nil || !tasks[i].over.Load()) {
			n++
		}
	}
	return n
}

func (k *keeper) lose(r *runner, n int) {
	err := fmt.Errorf("handle tasks: %w: %d of them", ErrLeaseLost, n)
	r.cfg.OnError(err)
	k.cancel(err)
}
