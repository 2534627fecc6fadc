package queue

import (
	"context"
	"slices"
	"sync"
	"time"
)

// defaultFetchPatience is how long a fetch may hold up the other sources of a Run. After
// that they continue without waiting for it.
const defaultFetchPatience = 500 * time.Millisecond

// pool shares the workers of a Run among its sources. It decides which source may fetch
// and how many entries, and holds the tasks that wait for a worker.
type pool struct {
	workers int
	window  time.Duration // RunConfig.Ahead
	// limitAhead is how long a task waits for a worker before it is handed back.
	limitAhead time.Duration
	patience   time.Duration // RunConfig.fetchPatience
	sources    []*source
	stop       <-chan struct{} // closed when Run's context has ended
	gone       chan struct{}   // closed when no worker is left

	mu       sync.Mutex
	work     sync.Cond // signals that tasks are waiting or the pool is closed
	closed   bool
	serving  int           // workers, without those in hung
	hung     int           // workers blocked in a handler that was given up
	idle     int           // workers waiting for tasks
	queued   int           // entries of the tasks waiting for workers
	reserved int           // entries of the tasks being fetched
	ahead    float64       // handler calls for which tasks may wait while all workers are busy
	took     time.Duration // moving average of the duration of a handler call
	turn     float64       // highest pass at which a source was granted a fetch
	running  []*batch      // whose tasks are not settled, in the order of their start
}

// place is the pool's state of one source.
type place struct {
	// grant delivers the permission to fetch, with the maximum number of entries.
	grant  chan int
	asking bool
	// loaded: the source is believed to have tasks. It then takes part in the choice of
	// the next source even while it is not asking.
	loaded bool
	// more: tasks were left after the last fetch.
	more bool
	// pass is the number of entries fetched divided by the weight. The source with the
	// lowest pass is next (stride scheduling, Waldspurger and Weihl 1995).
	pass     float64
	waiting  []Leased    // for workers, in the order of their arrival
	queued   int         // their entries
	reserved int         // entries being fetched
	late     *time.Timer // ends the reservation if the fetch takes too long
	failing  bool        // the last fetch failed
}

func newPlace() place { return place{grant: make(chan int, 1), loaded: true} }

func newPool(cfg RunConfig) *pool {
	setDefault(&cfg.aheadLimit, defaultAheadLimit)
	setDefault(&cfg.fetchPatience, defaultFetchPatience)
	p := &pool{
		workers: cfg.Workers, serving: cfg.Workers, window: cfg.Ahead,
		limitAhead: cfg.aheadLimit, patience: cfg.fetchPatience, gone: make(chan struct{}),
	}
	p.work.L = &p.mu
	return p
}

// ask requests permission to fetch, which arrives on s.grant. The source then calls
// fetched, failed or withdraw.
func (p *pool) ask(s *source) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !s.loaded {
		s.loaded = true
		// A source has no claim to the share that it did not use while it had no tasks.
		s.pass = max(s.pass, p.turn)
	}
	s.asking = true
	p.dispatch()
}

// withdraw cancels a request or a grant of the source.
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

// dispatch grants the next source a fetch, if there is room.
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

// limit makes the other sources continue if the fetch of a source takes too long.
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

// overtake makes the other sources continue while a source is fetching. Its tasks may
// then exceed the room by one fetch.
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

// room is the number of entries that the source may fetch now.
func (p *pool) room(of *source) int {
	// A worker about to take waiting tasks has no room for more, even if it gets less
	// than a batch: tasks fetched for it would wait until its handler returns.
	free := p.idle
	for _, s := range p.sources {
		free -= calls(s, s.queued+s.reserved)
	}
	now := max(free, 0) * of.batch()
	wanted := now
	if ahead := p.aheadOf(of); (of.more || p.contested(of)) && 2*(p.queued+p.reserved) <= ahead {
		// At least half of the room for prefetched tasks is free.
		wanted = now + ahead - p.queued - p.reserved
	}
	return min(wanted, chunkTasks, max(now, p.share(of)))
}

// calls is the number of handler calls for n entries of a source.
func calls(s *source, n int) int { return (n + s.batch() - 1) / s.batch() }

// aheadOf is the number of entries that may wait while all workers are busy, counted in
// batches of that source.
func (p *pool) aheadOf(s *source) int {
	return int(min(chunkTasks, p.ahead*float64(s.batch())))
}

// contested reports whether another source has tasks too. That source could prefetch so
// much that no worker ever becomes idle, and a source that does not yet know whether it
// has more tasks would then starve.
func (p *pool) contested(by *source) bool {
	for _, s := range p.sources {
		if s != by && s.loaded {
			return true
		}
	}
	return false
}

// share bounds one prefetch of a source by its weight among the loaded sources.
func (p *pool) share(of *source) int {
	weights := 0
	for _, s := range p.sources {
		if s.loaded {
			weights += s.Weight
		}
	}
	return max(1, p.aheadOf(of)*of.Weight/weights)
}

// next is the source that fetches next, or nil.
func (p *pool) next() *source {
	var next *source
	for _, s := range p.sources {
		if s.loaded && (next == nil || s.pass < next.pass) {
			next = s
		}
	}
	return next
}

// failed ends the grant of a source whose fetch failed. Whether it has tasks is unknown.
func (p *pool) failed(s *source) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unreserve(s)
	s.more, s.loaded, s.failing = false, false, true
	p.dispatch()
}

// fetched ends the grant of a source and takes its tasks over; more reports whether tasks
// were left, and soon whether the source is about to ask again.
func (p *pool) fetched(s *source, tasks []Leased, more, soon bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unreserve(s)
	s.more, s.loaded, s.failing = more, soon, false
	n := entries(tasks)
	s.pass += float64(n) / float64(s.Weight)
	if len(s.waiting) == 0 {
		s.waiting = tasks
	} else {
		s.waiting = append(s.waiting, tasks...)
	}
	p.count(s, n)
	for range min(p.idle, calls(s, n)) {
		p.work.Signal()
	}
	p.dispatch()
}

// count adds to the entries that wait.
func (p *pool) count(s *source, n int) {
	s.queued += n
	p.queued += n
}

// entries is the number of entries of tasks.
func entries(tasks []Leased) int {
	n := 0
	for i := range tasks {
		n += max(1, tasks[i].Entries)
	}
	return n
}

// take waits for the next batch; work is the parent of its handler's context. It
// returns nil when Run ends.
func (p *pool) take(work context.Context) *batch {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle++
	if p.queued == 0 {
		p.dispatch()
	}
	for p.queued == 0 && !p.closed {
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
	b.ctx, b.cancel = context.WithCancelCause(work)
	p.running = append(p.running, b)
	p.dispatch() // there may be room to prefetch
	return b
}

// over reports whether no more handler calls may begin. Run sets closed shortly after
// its context ends, so stop is checked too.
func (p *pool) over() bool {
	select {
	case <-p.stop:
		return true
	default:
		return p.closed
	}
}

// pop takes up to a batch of waiting entries, but at least one task, from the source
// whose tasks have waited longest. It leaves out tasks whose lease has ended before renew
// noticed.
func (p *pool) pop() *batch {
	var from *source
	for _, s := range p.sources {
		if len(s.waiting) > 0 && (from == nil || s.waiting[0].FetchedAt.Before(from.waiting[0].FetchedAt)) {
			from = s
		}
	}
	b := &batch{source: from}
	size, n := entries(from.waiting[:1]), 1
	for ; n < len(from.waiting); n++ {
		more := entries(from.waiting[n : n+1])
		if size+more > from.batch() {
			break
		}
		size += more
	}
	b.tasks, from.waiting = from.waiting[:n:n], from.waiting[n:]
	if len(from.waiting) == 0 {
		from.waiting = nil // frees the payloads
	}
	p.count(from, -size)
	now := time.Now()
	b.given = make([]Leased, 0, n) // the handler may reorder them while renew reads b.tasks
	for i := range b.tasks {
		if now.Before(b.tasks[i].hold.end) {
			b.given = append(b.given, b.tasks[i])
		}
	}
	if b.lost = n - len(b.given); b.lost > 0 {
		b.tasks = slices.Clone(b.given)
	}
	return b
}

// finished passes the outcome of a handler call to the acker, unless its tasks were settled
// earlier because the handler had been given up. It returns true if the worker must end
// because another has replaced it.
func (p *pool) finished(b *batch, o results, took time.Duration) (replaced bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settle(b, o)
	if b.givenUp {
		p.hung--
		if p.serving == p.workers {
			return true
		}
		p.serving++
		return false
	}
	p.took += (took - p.took) / 8
	if took > p.took {
		p.took = took // prefetch less after a single slow call
	}
	p.ahead = max(0, float64(p.workers)*float64(p.window)/float64(max(p.took, time.Microsecond)))
	return false
}

// settle passes the outcome of a batch to the acker and ends its context. It returns false
// if that was done before.
func (p *pool) settle(b *batch, o results) bool {
	i := slices.Index(p.running, b)
	if i < 0 {
		return false
	}
	p.running = slices.Delete(p.running, i, i+1)
	b.cancel(nil)
	b.source.acker.add(lastEnd(b.tasks), o)
	return true
}

// lastEnd is the end of the last of the leases.
func lastEnd(tasks []Leased) (until time.Time) {
	for i := range tasks {
		if end := tasks[i].hold.end; end.After(until) {
			until = end
		}
	}
	return until
}

// handedBack are the rejections of tasks that were not processed.
func handedBack(tasks []Leased, reason string) results {
	var o results
	for i := range tasks {
		if !tasks[i].settled() {
			o.back = append(o.back, Rejection{Task: tasks[i], Uncounted: true, Reason: reason})
		}
	}
	return o
}

// giveUp fails the task of a handler that did not return after its Timeout. given is
// false if the handler has returned in the meantime; replace reports whether the caller
// must start another worker.
func (p *pool) giveUp(b *batch) (given, replace bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.settle(b, sortOut(b.given, []error{ErrTimeout}, b.ctx.Err() != nil)) {
		return false, false
	}
	b.givenUp = true
	p.hung++
	if p.hung > p.workers || p.over() {
		p.serving--
		return true, false
	}
	return true, true
}

// watch hands back prefetched tasks that have waited too long because the handlers have
// become slower. It ends with quit.
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
			p.returnOverdue(s)
		}
	}
}

// returnOverdue hands back all waiting tasks of a source if the oldest has waited too long.
// Later tasks would wait even longer, and if they were handed back separately they
// would overtake the older ones. For the same reason nothing is handed back during a
// fetch; with ahead at 0 that fetch is the last one.
func (p *pool) returnOverdue(s *source) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.idle > 0 || len(s.waiting) == 0 || time.Since(s.waiting[0].FetchedAt) <= p.limitAhead {
		return
	}
	p.ahead = 0 // until a handler call returns
	if s.reserved == 0 {
		p.returnWaiting(s, "handed back: its worker was busy")
	}
}

// handBack hands back the waiting tasks of a source at the end of Run.
func (p *pool) handBack(s *source) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.returnWaiting(s, "handed back at shutdown")
}

func (p *pool) returnWaiting(s *source, reason string) {
	s.acker.add(lastEnd(s.waiting), handedBack(s.waiting, reason))
	p.count(s, -s.queued)
	s.waiting = nil
}

// close ends granting fetches and taking batches.
func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.work.Broadcast()
}

// abandon hands back the tasks of all running handlers, in the order in which they were
// started. It returns the number of handlers that are still running, including those given
// up earlier.
func (p *pool) abandon() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n = len(p.running) + p.hung
	for len(p.running) > 0 {
		b := p.running[len(p.running)-1] // the last first, because each goes to the front
		p.settle(b, handedBack(b.tasks, "handed back at shutdown"))
	}
	return n
}
