//go:build chaos && unix

package chaos

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"flashsale/internal/verify/history"
)

const (
	// askAgain is the pause before a purchase without a definite answer is repeated.
	askAgain = 100 * time.Millisecond
	// askFor bounds how long a buyer repeats it.
	askFor = 90 * time.Second
	// idleLook is how often a buyer who may not begin anything new looks again,
	// and repeats an old purchase meanwhile.
	idleLook = 50 * time.Millisecond
	// idleRepeats is after how many of these looks a buyer with nothing left to
	// repeat repeats the last purchase.
	idleRepeats = 4
	// kept bounds the purchases that a buyer remembers, to repeat them.
	kept = 32
)

// load is the crowd of one run.
type load struct {
	r *run

	next atomic.Int64 // the first intent that nobody has taken
	gate atomic.Int64 // how many may be taken
	pace pace
	done chan struct{} // closed when all buyers have ended
	quit chan struct{} // closed to end them early
	once sync.Once
}

func newLoad(r *run) *load {
	return &load{r: r, done: make(chan struct{}), quit: make(chan struct{})}
}

// start lets the crowd in; the gate is closed yet.
func (l *load) start(ctx context.Context) {
	var all sync.WaitGroup
	for i := range buyersAtOnce {
		all.Go(func() { l.buyer(ctx, i) })
	}
	go func() {
		all.Wait()
		close(l.done)
	}()
}

// open lets purchases up to the n-th begin, one every interval; zero: as fast as
// the buyers come.
func (l *load) open(n int, interval time.Duration) {
	l.pace.set(interval)
	l.gate.Store(int64(n))
}

// stop ends the crowd when each buyer has done what it is at.
func (l *load) stop() {
	l.once.Do(func() { close(l.quit) })
	<-l.done
}

// take gives the next intent, if the gate lets one through. over says that
// there is none any more.
func (l *load) take() (in *intent, over bool) {
	for {
		n := l.next.Load()
		if n >= int64(len(l.r.plan.intents)) {
			return nil, true
		}
		if n >= l.gate.Load() {
			return nil, false
		}
		if l.next.CompareAndSwap(n, n+1) {
			return &l.r.plan.intents[n], false
		}
	}
}

// buyer is one client and, for purchases that are sent twice at once, another.
func (l *load) buyer(ctx context.Context, client int) {
	me, err := l.r.caller()
	if err != nil {
		l.r.failf("client %d: %v", client, err)
		return
	}
	defer me.close()
	twin, err := l.r.caller()
	if err != nil {
		l.r.failf("client %d: %v", client, err)
		return
	}
	defer twin.close()
	var memory []*intent
	var last *intent
	idle := 0
	for n := 0; ; n++ {
		if ctx.Err() != nil || l.stopped() {
			return
		}
		in, over := l.take()
		switch {
		case over && len(memory) == 0:
			return
		case in == nil && len(memory) == 0:
			l.wait(ctx, idleLook)
			// Now and then the last purchase once more, so that a strike which waits for
			// answers does not wait for ever.
			if idle++; last != nil && idle%idleRepeats == 0 {
				l.settle(ctx, me, client, last)
			}
			continue
		case in == nil: // what is to be repeated fills the time
			in, memory = memory[0], memory[1:]
			if !over {
				l.wait(ctx, idleLook)
			}
			l.settle(ctx, me, client, in)
			continue
		}
		l.wait(ctx, l.pace.turn())
		l.first(ctx, me, twin, client, in)
		last = in
		if in.repeat {
			memory = append(memory, in)
		}
		// Some repeats come at once, some much later.
		if len(memory) > kept || len(memory) > 0 && n%3 == 0 {
			l.settle(ctx, me, client, memory[0])
			memory = memory[1:]
		}
	}
}

// first makes a purchase for the first time.
func (l *load) first(ctx context.Context, me, twin *caller, client int, in *intent) {
	var both sync.WaitGroup
	if in.twin {
		both.Go(func() { l.settle(ctx, twin, buyersAtOnce+client, in) })
	}
	last := l.settle(ctx, me, client, in)
	if in.look && last.Accepted() {
		h := history.Call{Client: client, User: in.user, Item: last.Item, Order: last.Order}
		me.get(ctx, l.r.now, client%len(me.targets), &h)
		l.r.saw(&h)
	}
	both.Wait()
}

// settle makes a purchase and repeats it with its key until the answer is
// definite, and returns the last answer.
func (l *load) settle(ctx context.Context, c *caller, client int, in *intent) history.Call {
	until := time.Now().Add(askFor)
	for try := 0; ; try++ {
		h := history.Call{
			Client: client, User: in.user, Item: l.r.plan.Items[in.item].ID,
			Quantity: in.quantity, Key: in.key, Async: in.async,
		}
		// Who was not answered well tries another process, as behind a balancer.
		c.buy(ctx, l.r.now, (client+try)%len(c.targets), &h)
		l.r.saw(&h)
		if definite(&h) || ctx.Err() != nil || l.stopped() {
			return h
		}
		if time.Now().After(until) {
			l.r.gaveUp.Add(1)
			return h
		}
		l.wait(ctx, askAgain)
	}
}

// stopped says that the crowd is to end.
func (l *load) stopped() bool {
	select {
	case <-l.quit:
		return true
	default:
		return false
	}
}

// definite reports whether a purchase need not be repeated: 408 and 429 say for
// certain that nothing happened, but not what the buyer wants to know.
func definite(h *history.Call) bool { return h.Known() && h.Status != 408 && h.Status != 429 }

// wait waits for d; less when the run ends.
func (l *load) wait(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	case <-l.quit:
	}
}

// pace spreads new purchases evenly over time.
type pace struct {
	mu       sync.Mutex
	interval time.Duration
	next     time.Time
}

func (p *pace) set(interval time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.interval, p.next = interval, time.Now()
}

// turn is how long to wait for one's turn. Turns that nobody took are not made
// up for.
func (p *pace) turn() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.interval == 0 {
		return 0
	}
	now := time.Now()
	if p.next.Before(now) {
		p.next = now
	}
	d := p.next.Sub(now)
	p.next = p.next.Add(p.interval)
	return d
}
