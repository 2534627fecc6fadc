package queue

import (
	"context"
	"math"
	"sync"
	"time"
)

// pool shares the workers of a Run among its sources. It decides who may fetch,
// and how many, and holds what waits for a worker.
type pool struct {
	batch   int
	workers int
	strict  bool
	window  time.Duration // RunConfig.Ahead
	sources []*source

	mu       sync.Mutex
	work     sync.Cond // there is some, or the pool is closed
	closed   bool
	idle     int           // workers that wait for work
	waiting  int           // tasks that wait for workers
	reserved int           // tasks that are being fetched
	ahead    int           // how many may wait while all workers are busy
	took     time.Duration // a moving average of a handler call
	running  map[*batch]struct{}
}

// place is what the pool keeps of a source.
type place struct {
	grant  chan int
	asking bool
	// loaded: as far as is known it has tasks. While it has, the others are
	// compared with it even when it does not ask at this moment.
	loaded bool
	// more: the last fetch left some.
	more bool
	// pass is how many tasks were taken, over the weight; who has the least is
	// next (stride scheduling, Waldspurger and Weihl 1995).
	pass  float64
	hauls []*haul // that wait, the oldest first
}

func newPlace() place { return place{grant: make(chan int, 1), loaded: true} }

func newPool(cfg RunConfig) *pool {
	p := &pool{
		batch: cfg.Batch, workers: cfg.Workers, strict: cfg.Strict, window: cfg.Ahead,
		running: make(map[*batch]struct{}),
	}
	p.work.L = &p.mu
	return p
}

// reserve waits for leave to fetch and returns how many tasks at most; 0 when
// ctx has ended. What it returns must be given to fetched.
func (p *pool) reserve(ctx context.Context, s *source) int {
	p.mu.Lock()
	if !s.loaded {
		s.loaded = true
		// The share that it did not use while it had nothing is forgotten.
		s.pass = max(s.pass, p.least(s))
	}
	s.asking = true
	p.dispatch()
	p.mu.Unlock()
	select {
	case n := <-s.grant:
		return n
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s.asking, s.loaded = false, false
	select {
	case n := <-s.grant:
		p.reserved -= n
	default:
	}
	return 0
}

// least is the lowest pass of the loaded sources but one; 0 where there is none.
func (p *pool) least(but *source) float64 {
	least := math.Inf(1)
	for _, s := range p.sources {
		if s != but && s.loaded {
			least = min(least, s.pass)
		}
	}
	if math.IsInf(least, 1) {
		return 0
	}
	return least
}

// dispatch lets the source whose turn it is fetch, if there is room.
func (p *pool) dispatch() {
	next := p.next()
	if next == nil || !next.asking || p.closed {
		return
	}
	wanted := p.idle*p.batch - p.waiting - p.reserved
	if next.more && 2*(p.waiting+p.reserved) <= p.ahead {
		// Half of the room for tasks ahead is free.
		wanted = max(wanted, 0) + p.ahead - p.waiting - p.reserved
	}
	if wanted <= 0 {
		return
	}
	n := min(wanted, chunkTasks, max(p.idle*p.batch, p.share(next)))
	next.asking = false
	p.reserved += n
	next.grant <- n
}

// share bounds how much is fetched ahead at a time of one source of several.
func (p *pool) share(of *source) int {
	weights := 0
	for _, s := range p.sources {
		if s.loaded {
			weights += s.Weight
		}
	}
	return max(1, p.ahead*of.Weight/weights)
}

// next is the source whose turn it is, or nil.
func (p *pool) next() *source {
	var next *source
	for _, s := range p.sources {
		switch {
		case !s.loaded:
		case p.strict:
			return s
		case next == nil || s.pass < next.pass:
			next = s
		}
	}
	return next
}

// fetched ends a reservation of n. h is what came of it, or nil; more says that
// there is more, and soon that the source is going to ask again at once. It is
// false when h came too late for a worker to get it.
func (p *pool) fetched(s *source, n int, h *haul, more, soon bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reserved -= n
	s.more, s.loaded = more, soon
	if h != nil {
		s.pass += float64(len(h.tasks)) / float64(s.Weight)
	}
	if h == nil || p.closed {
		p.dispatch()
		return h == nil
	}
	s.hauls = append(s.hauls, h)
	p.waiting += len(h.tasks)
	for range min(p.idle, (len(h.tasks)+p.batch-1)/p.batch) {
		p.work.Signal()
	}
	p.dispatch()
	return true
}

// busy says that no worker is free for further tasks.
func (p *pool) busy() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.idle*p.batch <= p.waiting+p.reserved
}

// take waits for the next batch, whose handler is to run on work; nil when the
// pool is closed.
func (p *pool) take(work context.Context) *batch {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle++
	if p.waiting == 0 {
		p.dispatch()
	}
	for p.waiting == 0 && !p.closed {
		p.work.Wait()
	}
	p.idle--
	if p.closed {
		return nil
	}
	b := p.pop()
	b.begin(work)
	p.running[b] = struct{}{}
	p.dispatch() // it may be time to fetch ahead
	return b
}

// pop takes up to a batch of the tasks that wait, all of one source: the first
// that has any where the order is strict, otherwise the one that waits longest.
func (p *pool) pop() *batch {
	var from *source
	for _, s := range p.sources {
		if len(s.hauls) > 0 && (from == nil || !p.strict && s.hauls[0].at.Before(from.hauls[0].at)) {
			from = s
		}
	}
	b := &batch{source: from}
	for room := p.batch; room > 0 && len(from.hauls) > 0; {
		h := from.hauls[0]
		n := min(room, len(h.tasks)-h.taken)
		b.parts = append(b.parts, part{h, h.taken, h.taken + n})
		h.taken += n
		room -= n
		p.waiting -= n
		if h.taken == len(h.tasks) {
			from.hauls[0] = nil
			from.hauls = from.hauls[1:]
		}
	}
	return b
}

// finished says that a handler call is over and how long it took.
func (p *pool) finished(b *batch, took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.running, b)
	p.took += (took - p.took) / 8
	if took > p.took {
		p.took = took // one slow call is enough to be careful
	}
	p.ahead = 0
	if p.window > 0 {
		calls := float64(p.workers) * float64(p.window) / float64(max(p.took, time.Microsecond))
		p.ahead = int(min(chunkTasks, calls*float64(p.batch)))
	}
}

// watch hands back what was fetched ahead and has waited too long, because the
// handlers have become slow since. It ends with quit.
func (p *pool) watch(quit <-chan struct{}) {
	tick := time.NewTicker(aheadLimit / 2)
	defer tick.Stop()
	for {
		select {
		case <-quit:
			return
		case <-tick.C:
		}
		p.mu.Lock()
		var late []*haul
		if p.idle == 0 && p.waiting > 0 {
			late = p.drop(func(h *haul) bool { return time.Since(h.at) > aheadLimit })
		}
		if len(late) > 0 {
			p.ahead = 0 // until a call shows that it may be more again
		}
		p.mu.Unlock()
		for _, h := range late {
			h.handBack("handed back: its worker was busy")
		}
	}
}

// drop removes hauls that wait.
func (p *pool) drop(which func(*haul) bool) (dropped []*haul) {
	for _, s := range p.sources {
		var kept []*haul
		for _, h := range s.hauls {
			if which(h) {
				dropped = append(dropped, h)
				p.waiting -= len(h.tasks) - h.taken
			} else {
				kept = append(kept, h)
			}
		}
		s.hauls = kept
	}
	return dropped
}

// close ends fetching and taking, and hands back what waits.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	waiting := p.drop(func(*haul) bool { return true })
	p.work.Broadcast()
	p.mu.Unlock()
	for _, h := range waiting {
		h.handBack("handed back at shutdown")
	}
}

// abandon takes the tasks of all handlers that still run from them, and says how
// many those are.
func (p *pool) abandon() (n int) {
	p.mu.Lock()
	running := make([]*batch, 0, len(p.running))
	for b := range p.running {
		running = append(running, b)
	}
	p.mu.Unlock()
	for _, b := range running {
		if until, first := b.end(); first {
			n++
			back := make([]Rejection, len(b.tasks))
			for i, t := range b.tasks {
				back[i] = Rejection{Task: t, Uncounted: true, Reason: "handed back at shutdown"}
			}
			b.source.settler.add(until, results{back: back})
		}
	}
	return n
}
