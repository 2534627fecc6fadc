package queue

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// renewer extends the leases of a source's fetched and unsettled tasks, and ends the
// handlers' contexts when leases are lost.
type renewer struct {
	s    *source
	quit chan struct{}

	mu      sync.Mutex
	fetches map[*fetch]struct{}
}

func newRenewer(s *source) *renewer {
	return &renewer{s: s, quit: make(chan struct{}), fetches: make(map[*fetch]struct{})}
}

func (k *renewer) add(h *fetch) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fetches[h] = struct{}{}
}

func (k *renewer) remove(h *fetch) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.fetches, h)
}

// close ends loop without waiting for it.
func (k *renewer) close() { close(k.quit) }

// loop extends every lease with less than two thirds of its time left. It checks often
// enough to extend a lease before half of its time has passed, and more often while
// extending fails.
func (k *renewer) loop() {
	lease := k.s.Queue.cfg.Lease
	every, again := lease/6, lease/10
	timer := time.NewTimer(every)
	defer timer.Stop()
	ctx, cancel := context.WithCancel(k.s.r.work)
	defer cancel()
	go func() {
		<-k.quit
		cancel()
	}()
	for {
		select {
		case <-k.quit:
			return
		case <-timer.C:
		}
		pause := every
		k.expire()
		if !k.extend(ctx) {
			pause = again
		}
		if end := k.expire(); !end.IsZero() {
			pause = min(pause, max(time.Until(end), time.Millisecond))
		}
		timer.Reset(pause)
	}
}

// expire gives up the leases that were not extended in time and returns the end of the
// next one; zero if there is none.
func (k *renewer) expire() (next time.Time) {
	now := time.Now()
	for _, h := range k.held() {
		end := h.until()
		if !now.Before(end) {
			k.lose(h, nil)
			continue
		}
		if next.IsZero() || end.Before(next) {
			next = end
		}
	}
	return next
}

// held lists the fetches with unsettled tasks.
func (k *renewer) held() []*fetch {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := make([]*fetch, 0, len(k.fetches))
	for h := range k.fetches {
		all = append(all, h)
	}
	return all
}

// extend extends the leases that are due, within the time that the first of them has
// left. It returns false if that failed.
func (k *renewer) extend(ctx context.Context) bool {
	q := k.s.Queue
	var due []*fetch
	var tasks []Leased
	var first time.Time
	for _, h := range k.held() {
		end := h.until()
		// A handler may still be working under an ended lease. Its deadline must not cut
		// the call for the other leases short.
		if left := time.Until(end); left <= 0 || left >= q.cfg.Lease*2/3 {
			continue
		}
		due = append(due, h)
		if first.IsZero() || end.Before(first) {
			first = end
		}
		for i := range h.tasks {
			if !h.tasks[i].hold.over.Load() {
				tasks = append(tasks, h.tasks[i])
			}
		}
	}
	if len(tasks) == 0 {
		return true
	}
	start := time.Now()
	limited, cancel := context.WithDeadline(ctx, first)
	defer cancel()
	status, err := q.Extend(limited, tasks...)
	if err != nil {
		if ctx.Err() == nil {
			k.s.r.cfg.OnError(err)
		}
		return false
	}
	lost := make(map[string]bool)
	for i, s := range status {
		if s != StatusOK {
			lost[tasks[i].Token+tasks[i].ID] = true
		}
	}
	for _, h := range due {
		h.mu.Lock()
		h.end = start.Add(q.cfg.Lease)
		h.mu.Unlock()
		if len(lost) > 0 {
			k.lose(h, lost)
		}
	}
	return true
}

// lose ends the contexts of handlers whose tasks have lost their leases, and keeps
// waiting tasks from starting. A nil set means all tasks of the fetch.
func (k *renewer) lose(h *fetch, lost map[string]bool) {
	n := 0
	ended := make(map[*batch]bool)
	h.mu.Lock()
	for i := range h.tasks {
		t := &h.tasks[i]
		if lost != nil && !lost[t.Token+t.ID] || !t.hold.over.CompareAndSwap(false, true) {
			continue
		}
		n++
		for _, b := range h.runs {
			if b.covers(h, i) {
				ended[b] = true
			}
		}
	}
	h.mu.Unlock()
	if n == 0 {
		return
	}
	err := fmt.Errorf("handle tasks: %w: %d of them", ErrLeaseLost, n)
	k.s.r.cfg.OnError(err)
	for b := range ended {
		b.cancel(err)
	}
}
