package queue

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// fetch is what one fetch brought, until the last of it is settled.
type fetch struct {
	source *source
	tasks  []Leased
	taken  int       // tasks from the front that workers have; the pool's
	at     time.Time // when it came
	left   atomic.Int32

	mu   sync.Mutex
	end  time.Time // when the leases end, at the earliest
	runs []*batch  // those that work on some of it
}

func newFetch(s *source, tasks []Leased) *fetch {
	h := &fetch{source: s, tasks: tasks, at: time.Now(), end: tasks[0].LeaseUntil}
	h.left.Store(int32(len(tasks))) //nolint:gosec // at most chunkTasks
	return h
}

func (h *fetch) until() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.end
}

// part is some consecutive tasks of a fetch.
type part struct {
	fetch    *fetch
	from, to int
}

// release says that a part of the fetch is no longer in the workers' hands.
func (p part) release() {
	for i := range p.fetch.tasks[p.from:p.to] {
		p.fetch.tasks[p.from+i].hold.over.Store(true)
	}
	if p.fetch.left.Add(int32(p.from-p.to)) == 0 { //nolint:gosec // at most chunkTasks
		p.fetch.source.renewer.remove(p.fetch)
	}
}

// returned gathers tasks that nobody has worked on, in the order in which they came.
type returned struct {
	back  []Rejection
	until time.Time // when the last of the leases ends
}

func (r *returned) add(p part, until time.Time, reason string) {
	for _, t := range p.fetch.tasks[p.from:p.to] {
		if !t.hold.over.Load() {
			r.back = append(r.back, Rejection{Task: t, Uncounted: true, Reason: reason})
		}
	}
	if until.After(r.until) {
		r.until = until
	}
}

// handBack gives back what no worker has taken. The fetches must have left the
// pool, all that waited at once: what is handed back goes to the front of the
// queue, and so would get in front of what was handed back before.
func (s *source) handBack(fetches []*fetch, reason string) {
	var all returned
	for _, h := range fetches {
		rest := part{h, h.taken, len(h.tasks)}
		all.add(rest, h.until(), reason)
		rest.release()
	}
	s.acker.add(all.until, results{back: all.back})
}

// batch is what one handler call works on.
type batch struct {
	source *source
	parts  []part
	tasks  []Leased        // the handler's
	lost   int             // tasks whose leases had ended
	ctx    context.Context // the handler's
	cancel context.CancelCauseFunc
	ended  atomic.Bool // by whoever settles it, once: its worker, or an abandoning Run

	abandoned bool // by Run at its end; the pool's
	givenUp   bool // because the task's time was over; the pool's
	replaced  bool // another worker has taken the place of its worker, whose field this is
}

// begin makes the handler's context known to the renewer, and leaves out tasks
// whose lease was lost while they waited. The handler may reorder what it gets,
// so that is a copy of what the renewer looks at.
func (b *batch) begin(work context.Context) {
	b.ctx, b.cancel = context.WithCancelCause(work)
	now, n := time.Now(), 0
	for _, p := range b.parts {
		n += p.to - p.from
	}
	b.tasks = make([]Leased, 0, n)
	for _, p := range b.parts {
		p.fetch.mu.Lock()
		p.fetch.runs = append(p.fetch.runs, b)
		ended := !now.Before(p.fetch.end) // and the renewer was not in time to see it
		p.fetch.mu.Unlock()
		for i := p.from; i < p.to; i++ {
			t := &p.fetch.tasks[i]
			switch {
			case ended && t.hold.over.CompareAndSwap(false, true):
				b.lost++
			case !t.hold.over.Load():
				b.tasks = append(b.tasks, *t)
			}
		}
	}
}

// end ends the handler's context and returns until when the leases run. It is
// false for whoever comes second.
func (b *batch) end() (until time.Time, first bool) {
	if !b.ended.CompareAndSwap(false, true) {
		return until, false
	}
	b.cancel(nil)
	for _, p := range b.parts {
		p.fetch.mu.Lock()
		for i, run := range p.fetch.runs {
			if run == b {
				p.fetch.runs = append(p.fetch.runs[:i], p.fetch.runs[i+1:]...)
				break
			}
		}
		if p.fetch.end.After(until) {
			until = p.fetch.end
		}
		p.fetch.mu.Unlock()
		p.release()
	}
	return until, true
}

// abandon takes the batch's tasks from its handler. It is false where that has returned.
func (b *batch) abandon(to *returned) bool {
	var all returned
	for _, p := range b.parts { // and not b.tasks, which are the handler's
		all.add(p, p.fetch.until(), "handed back at shutdown")
	}
	if _, first := b.end(); !first {
		return false
	}
	b.abandoned = true
	to.back = append(to.back, all.back...)
	if all.until.After(to.until) {
		to.until = all.until
	}
	return true
}

// covers says that the batch works on the task at i of the fetch.
func (b *batch) covers(h *fetch, i int) bool {
	for _, p := range b.parts {
		if p.fetch == h && p.from <= i && i < p.to {
			return true
		}
	}
	return false
}
