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
	// idleLook is how often a buyer who may not begin a new purchase checks again. Meanwhile
	// the buyer repeats an old one.
	idleLook = 50 * time.Millisecond
	// idleRepeats is the number of these checks after which a buyer with nothing left to repeat
	// repeats the last purchase.
	idleRepeats = 4
	// kept bounds the purchases that a buyer keeps for repeats.
	kept = 32
)

// load is all buyers of one run.
type load struct {
	r *run

	next atomic.Int64 // the first intent not taken yet
	gate atomic.Int64 // the number of intents that may be taken
	pace pace
	done chan struct{} // closed when all buyers have ended
	quit chan struct{} // closed to end them early
	once sync.Once
}

func newLoad(r *run) *load {
	return &load{r: r, done: make(chan struct{}), quit: make(chan struct{})}
}

// start starts the buyers; the gate is still closed.
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

// open allows the first n purchases, one every interval; zero: as fast as the buyers can.
func (l *load) open(n int, interval time.Duration) {
	l.pace.set(interval)
	l.gate.Store(int64(n))
}

// allow lets a few more purchases begin if all that were allowed have begun. A fault that lasts longer
// than planned may use up those of its phase, and nothing new would be committed after it.
func (l *load) allow() {
	const few = 10
	if n := l.next.Load(); n >= l.gate.Load() {
		l.gate.Store(n + few)
	}
}

// stop ends the buyers after their current purchase.
func (l *load) stop() {
	l.once.Do(func() { close(l.quit) })
	<-l.done
}

// take returns the next intent if the gate allows one. over means that there are no more.
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

// buyer runs one client, and a second one for purchases that are sent twice concurrently.
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
			// Sometimes repeat the last purchase, so that a strike that waits for answers does
			// not wait forever.
			if idle++; last != nil && idle%idleRepeats == 0 {
				l.settle(ctx, me, client, last)
			}
			continue
		case in == nil: // repeat old purchases in the meantime
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
		// Some repeats follow immediately, some much later.
		if len(memory) > kept || len(memory) > 0 && n%3 == 0 {
			l.settle(ctx, me, client, memory[0])
			memory = memory[1:]
		}
	}
}

// first makes a new purchase.
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

// settle makes a purchase, repeats it with the same key until the answer is definite, and
// returns the last answer.
func (l *load) settle(ctx context.Context, c *caller, client int, in *intent) history.Call {
	until := time.Now().Add(askFor)
	for try := 0; ; try++ {
		h := history.Call{
			Client: client, User: in.user, Item: l.r.plan.Items[in.item].ID,
			Quantity: in.quantity, Key: in.key, Async: in.async,
		}
		// A buyer without a definite answer tries another process, as behind a balancer.
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

// stopped reports whether the buyers are to end.
func (l *load) stopped() bool {
	select {
	case <-l.quit:
		return true
	default:
		return false
	}
}

// definite reports whether a purchase need not be repeated: 408 and 429 mean that nothing
// happened, but do not decide the purchase.
func definite(h *history.Call) bool { return h.Known() && h.Status != 408 && h.Status != 429 }

// wait waits for d, or until the run ends.
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

// turn returns the time to wait for the next turn. Unused turns are not made up for.
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
