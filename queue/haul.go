package queue

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// haul is what one fetch brought, until the last of it is settled.
type haul struct {
	source *source
	tasks  []Leased
	taken  int       // tasks from the front that workers have; the pool's
	at     time.Time // when it came
	left   atomic.Int32

	mu   sync.Mutex
	end  time.Time // when the leases end, at the earliest
	runs []*batch  // those that work on some of it
}

func newHaul(s *source, tasks []Leased) *haul {
	h := &haul{source: s, tasks: tasks, at: time.Now(), end: tasks[0].LeaseUntil}
	h.left.Store(int32(len(tasks))) //nolint:gosec // at most chunkTasks
	return h
}

func (h *haul) until() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.end
}

// part is some consecutive tasks of a haul.
type part struct {
	haul     *haul
	from, to int
}

// release says that a part of the haul is no longer in the workers' hands.
func (p part) release() {
	for i := range p.haul.tasks[p.from:p.to] {
		p.haul.tasks[p.from+i].over.Store(true)
	}
	if p.haul.left.Add(int32(p.from-p.to)) == 0 { //nolint:gosec // at most chunkTasks
		p.haul.source.keeper.remove(p.haul)
	}
}

// handBack gives back what no worker has taken. The haul must have left the pool.
func (h *haul) handBack(reason string) {
	rest := part{h, h.taken, len(h.tasks)}
	back := make([]Rejection, 0, rest.to-rest.from)
	for _, t := range h.tasks[rest.from:rest.to] {
		if !t.over.Load() {
			back = append(back, Rejection{Task: t, Uncounted: true, Reason: reason})
		}
	}
	rest.release()
	h.source.settler.add(h.until(), results{back: back})
}

// batch is what one handler call works on.
type batch struct {
	source *source
	parts  []part
	tasks  []Leased
	ctx    context.Context // the handler's
	cancel context.CancelCauseFunc
	ended  atomic.Bool // by whoever settles it, once: its worker, or an abandoning Run
}

// begin makes the handler's context known to the keeper, and leaves out tasks whose lease was
// lost while they waited.
func (b *batch) begin(work context.Context) {
	b.ctx, b.cancel = context.WithCancelCause(work)
	lost := 0
	for _, p := range b.parts {
		p.haul.mu.Lock()
		p.haul.runs = append(p.haul.runs, b)
		p.haul.mu.Unlock()
		for i := p.from; i < p.to; i++ {
			if p.haul.tasks[i].over.Load() {
				lost++
			}
		}
	}
	if len(b.parts) == 1 && lost == 0 {
		p := b.parts[0]
		b.tasks = p.haul.tasks[p.from:p.to:p.to]
		return
	}
	for _, p := range b.parts {
		for _, t := range p.haul.tasks[p.from:p.to] {
			if !t.over.Load() {
				b.tasks = append(b.tasks, t)
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
		p.haul.mu.Lock()
		for i, run := range p.haul.runs {
			if run == b {
				p.haul.runs = append(p.haul.runs[:i], p.haul.runs[i+1:]...)
				break
			}
		}
		if p.haul.end.After(until) {
			until = p.haul.end
		}
		p.haul.mu.Unlock()
		p.release()
	}
	return until, true
}

// covers says that the batch works on the task at i of the haul.
func (b *batch) covers(h *haul, i int) bool {
	for _, p := range b.parts {
		if p.haul == h && p.from <= i && i < p.to {
			return true
		}
	}
	return false
}
