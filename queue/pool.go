package queue

import (
	"context"
	"slices"
	"sync"
	"time"
)

// defaultFetchPatience is how long a fetch may keep the other sources of a Run
// waiting. One whose Redis does not answer goes on without its place.
const defaultFetchPatience = 500 * time.Millisecond

// pool shares the workers of a Run among its sources. It decides who may fetch,
// and how many, and holds what waits for a worker.
type pool struct {
	workers int
	strict  bool
	window  time.Duration // RunConfig.Ahead
	// limitAhead is how long a task waits for a worker before it is handed back.
	limitAhead time.Duration
	patience   time.Duration // RunConfig.fetchPatience
	sources    []*source
	stop       <-chan struct{} // closed when Run is to end
	gone       chan struct{}   // closed when no worker is left

	mu       sync.Mutex
	work     sync.Cond // there is some, or the pool is closed
	closed   bool
	serving  int           // workers, but for those that hang
	hung     int           // that a handler was given up in, which still runs
	idle     int           // workers that wait for work
	waiting  int           // tasks that wait for workers
	reserved int           // tasks that are being fetched
	ahead    float64       // for how many handler calls tasks may wait while all workers are busy
	took     time.Duration // a moving average of a handler call
	turn     float64       // the highest pass at which a source was let fetch
	running  []*batch      // in the order in which they began
}

// place is what the pool keeps of a source.
type place struct {
	// grant is where leave to fetch comes: how many tasks at most.
	grant  chan int
	asking bool
	// loaded: as far as is known it has tasks. While it has, the others are
	// compared with it even when it does not ask at this moment.
	loaded bool
	// more: the last fetch left some.
	more bool
	// pass is how many tasks were taken, over the weight; who has the least is
	// next (stride scheduling, Waldspurger and Weihl 1995).
	pass     float64
	hauls    []*haul     // that wait, the oldest first
	waiting  int         // tasks of these
	reserved int         // tasks that are being fetched
	late     *time.Timer // ends that when it takes too long
	failing  bool        // the last fetch failed
}

func newPlace() place { return place{grant: make(chan int, 1), loaded: true} }

func newPool(cfg RunConfig) *pool {
	setDefault(&cfg.aheadLimit, defaultAheadLimit)
	setDefault(&cfg.fetchPatience, defaultFetchPatience)
	p := &pool{
		workers: cfg.Workers, serving: cfg.Workers, strict: cfg.Strict, window: cfg.Ahead,
		limitAhead: cfg.aheadLimit, patience: cfg.fetchPatience, gone: make(chan struct{}),
	}
	p.work.L = &p.mu
	return p
}

// ask asks for leave to fetch. It comes on s.grant, and is ended by fetched or withdraw.
func (p *pool) ask(s *source) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !s.loaded {
		s.loaded = true
		// The share that it did not use while it had nothing is forgotten.
		s.pass = max(s.pass, p.turn)
	}
	s.asking = true
	p.dispatch()
}

// withdraw says that the source is not going to fetch now, whether it had leave or not.
func (p *pool) withdraw(s *source) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.asking, s.loaded = false, false
	select {
	case <-s.grant:
	default:
	}
	p.unreserve(s)
	p.dispatch()
}

// dispatch lets the source whose turn it is fetch, if there is room.
func (p *pool) dispatch() {
	next := p.next()
	if next == nil || !next.asking || p.closed {
		return
	}
	n := p.room(next)
	if n <= 0 {
		return
	}
	next.asking = false
	next.reserved = n
	p.reserved += n
	p.turn = max(p.turn, next.pass)
	next.grant <- n
	switch {
	case len(p.sources) == 1:
	case next.failing:
		p.overtake(next)
	default:
		p.limit(next)
	}
}

// limit lets the others go on when the fetch of a source takes too long.
func (p *pool) limit(s *source) {
	var timer *time.Timer
	timer = time.AfterFunc(p.patience, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if s.late == timer {
			p.overtake(s)
		}
	})
	s.late = timer
}

// overtake lets the others go on while a source fetches. What it brings in the
// end may be more than there is room for, by one fetch.
func (p *pool) overtake(s *source) {
	p.unreserve(s)
	s.loaded = false
	p.dispatch()
}

func (p *pool) unreserve(s *source) {
	p.reserved -= s.reserved
	s.reserved = 0
	if s.late != nil {
		s.late.Stop()
		s.late = nil
	}
}

// room is how many tasks the source may fetch now.
func (p *pool) room(of *source) int {
	// A worker that is about to take what waits has no room for more, even if it
	// gets less than a batch: what is fetched then would wait for its handler.
	free := p.idle
	for _, s := range p.sources {
		free -= calls(s, s.waiting+s.reserved)
	}
	now := max(free, 0) * of.batch()
	wanted := now
	if ahead := p.aheadOf(of); (of.more || p.contested(of)) && 2*(p.waiting+p.reserved) <= ahead {
		// Half of the room for tasks ahead is free.
		wanted = now + ahead - p.waiting - p.reserved
	}
	return min(wanted, chunkTasks, max(now, p.share(of)))
}

// calls is how many handler calls n tasks of a source take.
func calls(s *source, n int) int { return (n + s.batch() - 1) / s.batch() }

// aheadOf is how many tasks may wait while all workers are busy, if they are of that source.
func (p *pool) aheadOf(s *source) int {
	return int(min(chunkTasks, p.ahead*float64(s.batch())))
}

// contested says that another source has tasks too. It could fetch ahead so that
// no worker is ever free, and one that does not know of more of its own, because
// it came just now, would wait for ever.
func (p *pool) contested(by *source) bool {
	for _, s := range p.sources {
		if s != by && s.loaded {
			return true
		}
	}
	return false
}

// share bounds how much is fetched ahead at a time of one source of several.
func (p *pool) share(of *source) int {
	weights := 0
	for _, s := range p.sources {
		if s.loaded {
			weights += s.Weight
		}
	}
	return max(1, p.aheadOf(of)*of.Weight/weights)
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

// failed ends what was granted to a source: nobody knows what it has.
func (p *pool) failed(s *source) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unreserve(s)
	s.more, s.loaded, s.failing = false, false, true
	p.dispatch()
}

// fetched ends what was granted to a source. h is what came of it, or nil; more
// says that there is more, and soon that the source is going to ask again at once.
func (p *pool) fetched(s *source, h *haul, more, soon bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unreserve(s)
	s.more, s.loaded, s.failing = more, soon, false
	if h != nil {
		n := len(h.tasks)
		s.pass += float64(n) / float64(s.Weight)
		s.hauls = append(s.hauls, h)
		s.waiting += n
		p.waiting += n
		for range min(p.idle, calls(s, n)) {
			p.work.Signal()
		}
	}
	p.dispatch()
}

// take waits for the next batch, whose handler is to run on work; nil when Run is to end.
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
	if p.over() {
		p.serving--
		if p.serving+p.hung == 0 {
			close(p.gone)
		}
		return nil
	}
	b := p.pop()
	b.begin(work)
	p.running = append(p.running, b)
	p.dispatch() // it may be time to fetch ahead
	return b
}

// over says that no handler call is to begin. The end of Run's context is seen here
// at once, and closed comes a moment later.
func (p *pool) over() bool {
	select {
	case <-p.stop:
		return true
	default:
		return p.closed
	}
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
	for room := from.batch(); room > 0 && len(from.hauls) > 0; {
		h := from.hauls[0]
		n := min(room, len(h.tasks)-h.taken)
		b.parts = append(b.parts, part{h, h.taken, h.taken + n})
		h.taken += n
		room -= n
		from.waiting -= n
		p.waiting -= n
		if h.taken == len(h.tasks) {
			from.hauls[0] = nil
			from.hauls = from.hauls[1:]
		}
	}
	return b
}

// finished says that a handler call is over and how long it took. It is true where
// another worker has taken the place of the one that made the call.
func (p *pool) finished(b *batch, took time.Duration) (replaced bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if b.givenUp {
		p.hung--
		if p.serving == p.workers {
			return true
		}
		p.serving++
		return false
	}
	p.remove(b)
	p.took += (took - p.took) / 8
	if took > p.took {
		p.took = took // one slow call is enough to be careful
	}
	p.ahead = max(0, float64(p.workers)*float64(p.window)/float64(max(p.took, time.Microsecond)))
	return false
}

// remove takes a batch from those that run.
func (p *pool) remove(b *batch) {
	p.running = slices.DeleteFunc(p.running, func(r *batch) bool { return r == b })
	if p.closed {
		p.work.Broadcast() // abandon may wait for it
	}
}

// giveUp takes a task from a handler that did not return when its time was over,
// and fails it. given is false where the handler has returned just now; replace
// says that another worker is to begin.
func (p *pool) giveUp(b *batch) (given, replace bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	o := sortOut(b.tasks, []error{ErrTimeout}, b.ctx.Err() != nil)
	until, first := b.end()
	if !first {
		return false, false
	}
	b.source.settler.add(until, o)
	p.remove(b)
	b.givenUp = true
	p.hung++
	if p.hung > p.workers || p.over() {
		p.serving--
		return true, false
	}
	return true, true
}

// watch hands back what was fetched ahead and has waited too long, because the
// handlers have become slow since. It ends with quit.
func (p *pool) watch(quit <-chan struct{}) {
	tick := time.NewTicker(p.limitAhead / 2)
	defer tick.Stop()
	for {
		select {
		case <-quit:
			return
		case <-tick.C:
		}
		for _, s := range p.sources {
			s.handBack(p.overdue(s), "handed back: its worker was busy")
		}
	}
}

// overdue removes what waits of a source if the first of it has waited too long.
// What came later would wait longer still, and handed back later it would get in
// front of what is older. For the same reason nothing is removed while a fetch is
// under way; without room for tasks ahead it is the last one.
func (p *pool) overdue(s *source) []*haul {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.idle > 0 || len(s.hauls) == 0 || time.Since(s.hauls[0].at) <= p.limitAhead {
		return nil
	}
	p.ahead = 0 // until a call shows that it may be more again
	if s.reserved > 0 {
		return nil
	}
	return p.drop(s)
}

// clear removes what waits of a source.
func (p *pool) clear(s *source) []*haul {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.drop(s)
}

func (p *pool) drop(s *source) []*haul {
	hauls := s.hauls
	p.waiting -= s.waiting
	s.hauls, s.waiting = nil, 0
	return hauls
}

// close ends fetching and taking.
func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.work.Broadcast()
}

// abandon takes the tasks of all handlers that still run from them, and returns how
// many handlers run, with those that were given up before.
func (p *pool) abandon() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.sources {
		var all returned
		for _, b := range p.running {
			if b.source == s && b.abandon(&all) {
				n++
			}
		}
		s.settler.add(all.until, results{back: all.back})
	}
	// The others returned just now. The settler must not end before it has learned of them.
	for slices.ContainsFunc(p.running, func(b *batch) bool { return !b.abandoned }) {
		p.work.Wait()
	}
	return n + p.hung
}
