package queue

import (
	"slices"
	"sync"
	"time"
)

// defaultPatience is the default of RunConfig.patience. Tests raise it.
var defaultPatience = 500 * time.Millisecond

// pool shares the workers of a Run among its sources. It decides which source may fetch
// and how many entries, and holds the batches that wait for a worker or are with one.
type pool struct {
	workers int
	window  time.Duration // RunConfig.Ahead
	// patience is how long a fetch may hold up the other sources, and how long a batch waits
	// for a worker before it is handed back.
	patience time.Duration
	sources  []*source
	run      func(b *batch)  // runner.begin
	stop     <-chan struct{} // closed when Run's context has ended
	gone     chan struct{}   // closed when the pool is closed and no handler runs

	mu       sync.Mutex
	closed   bool
	active   int           // handlers that run, without those in hung
	hung     int           // handlers that were given up and have not returned
	reserved int           // handler calls for which tasks are being fetched
	ahead    int           // handler calls for which tasks may wait while all workers are busy
	took     time.Duration // moving average of the duration of a handler call
	turn     float64       // highest pass at which a source was granted a fetch
	waiting  []*batch      // for a worker, in the order of their arrival
	running  []*batch      // whose tasks are not settled, in the order of their start
}

// poolState is the pool's state of one source.
type poolState struct {
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
	reserved int         // handler calls for which tasks are being fetched
	late     *time.Timer // ends the reservation if the fetch takes too long
	failing  bool        // the last fetch failed
}

func newPool(cfg RunConfig) *pool {
	setDefault(&cfg.patience, defaultPatience)
	return &pool{workers: cfg.Workers, window: cfg.Ahead, patience: cfg.patience, gone: make(chan struct{})}
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

// dispatch starts the handlers of waiting batches while workers are free, and grants the
// next source a fetch if there is room.
func (p *pool) dispatch() {
	for len(p.waiting) > 0 && p.busy() < p.workers && !p.over() {
		b := p.waiting[0]
		p.waiting = p.waiting[1:]
		p.running = append(p.running, b)
		p.active++
		b.give()
		p.run(b)
	}
	next, weights := p.next()
	if next == nil || !next.asking || p.closed {
		return
	}
	n := p.room(next, weights)
	if n <= 0 {
		return
	}
	next.asking = false
	next.reserved = (n + next.batch() - 1) / next.batch()
	p.reserved += next.reserved
	p.turn = max(p.turn, next.pass)
	next.grant <- n
	if next.failing {
		p.overtake(next)
	} else {
		p.limit(next)
	}
}

// busy is the number of workers that are taken. A handler that was given up takes none,
// except those beyond the number of workers.
func (p *pool) busy() int { return p.active + max(0, p.hung-p.workers) }

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

// room is the number of entries that the source may fetch now. weights is the sum of the
// weights of the loaded sources.
func (p *pool) room(of *source, weights int) int {
	free := p.workers - p.busy() - len(p.waiting) - p.reserved // below 0: so many calls wait
	calls := max(free, 0)
	// A source that does not know whether it has more tasks may prefetch if another one is
	// loaded, because that one would wait for it.
	most := min(p.ahead, chunkTasks/of.batch())
	if ahead := most + min(free, 0); (of.more || weights > of.Weight) && 2*ahead >= most {
		// At least half of the room for prefetched tasks is free. A source may fill its share.
		calls = min(calls+ahead, max(calls, 1, most*of.Weight/weights))
	}
	return min(min(calls, chunkTasks)*of.batch(), chunkTasks) // the number of workers has no bound
}

// next is the source that fetches next, or nil, and the sum of the weights of the loaded ones.
func (p *pool) next() (next *source, weights int) {
	for _, s := range p.sources {
		if !s.loaded {
			continue
		}
		weights += s.Weight
		if next == nil || s.pass < next.pass {
			next = s
		}
	}
	return next, weights
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
	s.pass += float64(entries(tasks)) / float64(s.Weight)
	for len(tasks) > 0 {
		size, n := entries(tasks[:1]), 1
		for ; n < len(tasks); n++ {
			if size += entries(tasks[n : n+1]); size > s.batch() {
				break
			}
		}
		p.waiting = append(p.waiting, &batch{source: s, tasks: tasks[:n:n]})
		tasks = tasks[n:]
	}
	p.dispatch()
}

// entries is the number of entries of tasks.
func entries(tasks []Leased) int {
	n := 0
	for i := range tasks {
		n += max(1, tasks[i].Entries)
	}
	return n
}

// over reports whether no more handler calls may begin. Run closes the pool shortly after
// its context ends, so stop is checked too.
func (p *pool) over() bool {
	select {
	case <-p.stop:
		return true
	default:
		return p.closed
	}
}

// finished passes the outcome of a handler call to the acker, unless its tasks were settled
// earlier because the handler had been given up.
func (p *pool) finished(b *batch, o results, took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settle(b, o)
	if b.givenUp {
		p.hung--
	} else {
		p.active--
		p.took += (took - p.took) / 8
		if took > p.took {
			p.took = took // prefetch less after a single slow call
		}
		calls := float64(p.workers) * float64(p.window) / float64(max(p.took, time.Microsecond))
		p.ahead = int(min(max(0, calls), chunkTasks))
	}
	p.dispatch()
	p.end()
}

// end closes gone if the pool is closed and no handler runs.
func (p *pool) end() {
	if p.closed && p.active+p.hung == 0 {
		close(p.gone)
	}
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
		if end := *tasks[i].end; end.After(until) {
			until = end
		}
	}
	return until
}

// handedBack are the rejections of tasks that were not processed.
func handedBack(tasks []Leased, reason string) results {
	back := make([]Rejection, len(tasks))
	for i := range tasks {
		back[i] = Rejection{Task: tasks[i], Uncounted: true, Reason: reason}
	}
	return results{back: back}
}

// giveUp fails the task of a handler that did not return after its Timeout, and frees its
// worker. It returns false if the handler has returned in the meantime.
func (p *pool) giveUp(b *batch) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.settle(b, sortOut(b.given, []error{ErrTimeout}, b.ctx.Err() != nil)) {
		return false
	}
	b.givenUp = true
	p.active--
	p.hung++
	p.dispatch()
	return true
}

// returnOverdue hands back all waiting tasks of a source if the oldest has waited too long,
// because the handlers have become slower. Later tasks would wait even longer, and if they
// were handed back separately they would overtake the older ones. For the same reason nothing
// is handed back during a fetch; with ahead at 0 that fetch is the last one.
func (p *pool) returnOverdue(s *source) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.waiting, func(b *batch) bool { return b.source == s })
	if i < 0 || time.Since(p.waiting[i].tasks[0].FetchedAt) <= p.patience {
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
	var tasks []Leased
	p.waiting = slices.DeleteFunc(p.waiting, func(b *batch) bool {
		if b.source == s {
			tasks = append(tasks, b.tasks...)
		}
		return b.source == s
	})
	s.acker.add(lastEnd(tasks), handedBack(tasks, reason))
}

// close ends granting fetches and starting handlers.
func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.end()
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
