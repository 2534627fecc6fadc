package queue

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// fetch holds the tasks of one fetch until the last of them is settled.
type fetch struct {
	source *source
	tasks  []Leased
	taken  int          // number of tasks, from the front, that workers have; guarded by the pool's mutex
	at     time.Time    // when the tasks arrived
	left   atomic.Int32 // tasks that are not settled

	mu   sync.Mutex
	end  time.Time // earliest end of the leases
	runs []*batch  // running batches with tasks of this fetch
}

func newFetch(s *source, tasks []Leased) *fetch {
	h := &fetch{source: s, tasks: tasks, at: time.Now(), end: tasks[0].LeaseUntil}
	h.left.Store(int32(len(tasks))) //nolint:gosec // at most chunkTasks
	return h
}

// entries is the number of entries of tasks.
func entries(tasks []Leased) int {
	n := 0
	for i := range tasks {
		n += max(1, tasks[i].Entries)
	}
	return n
}

func (h *fetch) until() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.end
}

// part is a range of tasks of a fetch.
type part struct {
	fetch    *fetch
	from, to int
}

// release ends the renewal of the leases of a part.
func (p part) release() {
	for i := range p.fetch.tasks[p.from:p.to] {
		p.fetch.tasks[p.from+i].hold.over.Store(true)
	}
	if p.fetch.left.Add(int32(p.from-p.to)) == 0 { //nolint:gosec // at most chunkTasks
		p.fetch.source.renewer.remove(p.fetch)
	}
}

// returned collects unprocessed tasks that are handed back, in the order of their arrival.
type returned struct {
	back  []Rejection
	until time.Time // end of the last of the leases
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

// handBack returns the tasks that no worker has taken to the front of the queue. The
// caller must remove all waiting fetches from the pool together: tasks handed back
// later would overtake those handed back earlier.
func (s *source) handBack(fetches []*fetch, reason string) {
	var all returned
	for _, h := range fetches {
		rest := part{h, h.taken, len(h.tasks)}
		all.add(rest, h.until(), reason)
		rest.release()
	}
	s.acker.add(all.until, results{back: all.back})
}

// batch holds the tasks of one handler call.
type batch struct {
	source *source
	parts  []part
	tasks  []Leased        // passed to the handler
	lost   int             // tasks whose leases had ended
	ctx    context.Context // passed to the handler
	cancel context.CancelCauseFunc
	ended  atomic.Bool // set once, by the worker or by a Run that abandons the handler

	abandoned bool // Run ended before the handler returned; guarded by the pool's mutex
	givenUp   bool // the task's Timeout passed; guarded by the pool's mutex
	replaced  bool // a new worker replaces the one of this batch; only that one uses the field
}

// begin registers the handler's context with the renewer, and leaves out tasks whose
// lease was lost while they waited. The handler gets a copy of the slice, because it
// may reorder it while the renewer reads the original.
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
		ended := !now.Before(p.fetch.end) // before the renewer noticed
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

// end ends the handler's context and returns the end of the leases. first is false if
// the batch had already ended.
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

// abandon hands back the tasks of a running handler. It returns false if the handler
// has returned.
func (b *batch) abandon(to *returned) bool {
	var all returned
	for _, p := range b.parts { // not b.tasks, which the handler may change
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

// covers reports whether the batch includes the task at index i of the fetch.
func (b *batch) covers(h *fetch, i int) bool {
	for _, p := range b.parts {
		if p.fetch == h && p.from <= i && i < p.to {
			return true
		}
	}
	return false
}
