package order

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"flashsale/inventory"
	"flashsale/queue"
)

// Loader is what Pressure needs of a task queue.
type Loader interface {
	Load(ctx context.Context) (queue.Load, error)
	MaxLength() int
}

// PressureConfig configures a Pressure. Queues and Partition are required.
type PressureConfig struct {
	Queues    []Loader // of orders, one per partition
	Partition func(item string) int
	// MaxAge is the queue age above which a purchase does not wait for its commit any
	// more: the oldest order waits for longer, or there are orders and none was
	// committed for longer. Default 5 s.
	MaxAge time.Duration
	// Volatile says that only the commit is an answer; see Config.Volatile.
	Volatile bool
	// Database reports what keeps the database from taking writes. Default nil: not asked.
	Database interface{ Failing() error }
	// Every is the time between looks at a queue. Default 100 ms.
	Every time.Duration
	// OnError learns of looks that failed. Default: nothing.
	OnError func(error)
}

// Pressure knows how the queues of orders stand, so that a purchase which cannot be
// taken is refused before it has cost anything. It looks at them a few times a
// second, while there are purchases; what it says is at most that old. The purchase
// script has the last word on whether there is room.
type Pressure struct {
	cfg PressureConfig
	of  []gauge
}

// gauge is what is known of one queue.
type gauge struct {
	asked atomic.Bool
	state atomic.Pointer[queueState] // nil: nothing, or nothing bad

	// The rest belongs to Run.
	last  queue.Load
	at    time.Time
	moved time.Time // when an order was done last, or none was there
	pace  float64   // orders done per second, smoothed; negative: not known yet
	shut  bool
	still int // looks that came and went without a purchase
}

// queueState is a queue at one moment.
type queueState struct {
	shut bool          // nothing may come
	late bool          // no commit is to be waited for
	wait time.Duration // in which what is there will be done
}

const (
	// paceWeight is that of the latest look in the pace.
	paceWeight = 0.2
	// paceless is the estimate while nothing is done at all: for an operator to act,
	// or a database to come back.
	paceless = 10 * time.Second
	// longestWait bounds the estimate. Further ahead nobody knows.
	longestWait = time.Minute
	// shutLooks is how many looks a full queue has to last for the door to be shut. A
	// shorter one could run empty before the next look opens it.
	shutLooks = 5
	// stillLooks is after how many looks without a purchase an empty queue is not
	// looked at any more, and one with orders in it at only every slowLook-th tick.
	stillLooks = 20
	slowLook   = 10
)

// NewPressure returns a Pressure that knows nothing yet. Run makes it look.
func NewPressure(cfg PressureConfig) *Pressure {
	if cfg.MaxAge == 0 {
		cfg.MaxAge = 5 * time.Second
	}
	if cfg.Every == 0 {
		cfg.Every = 100 * time.Millisecond
	}
	if cfg.OnError == nil {
		cfg.OnError = func(error) {}
	}
	p := &Pressure{cfg: cfg, of: make([]gauge, len(cfg.Queues))}
	for i := range p.of {
		p.of[i].pace, p.of[i].still = -1, stillLooks
	}
	return p
}

// Admit returns nil when a purchase of the item may come in.
// Errors: inventory.ErrOverloaded, with the time in which the orders before it will be
// done; ErrDatabase when no order can be committed until an operator acts. A database
// that is only busy keeps no purchase out.
func (p *Pressure) Admit(item string) (wait time.Duration, err error) {
	if p.cfg.Database != nil {
		if err := p.cfg.Database.Failing(); err != nil && !errors.Is(err, ErrBusy) {
			return 0, err
		}
	}
	s := p.look(item)
	if s == nil || !s.shut && (!s.late || !p.cfg.Volatile) {
		return 0, nil
	}
	return s.wait, inventory.ErrOverloaded
}

// Late reports whether the item's orders are committed so late that a purchase
// should not wait for it.
func (p *Pressure) Late(item string) bool {
	s := p.look(item)
	return s != nil && s.late
}

// Wait estimates when the orders that wait now will be done; 0 where nothing is
// known.
func (p *Pressure) Wait(item string) time.Duration {
	if s := p.look(item); s != nil {
		return s.wait
	}
	return 0
}

// Shut is how many queues let nobody in at present.
func (p *Pressure) Shut() int {
	n := 0
	for i := range p.of {
		if s := p.of[i].state.Load(); s != nil && s.shut {
			n++
		}
	}
	return n
}

func (p *Pressure) look(item string) *queueState {
	g := &p.of[p.cfg.Partition(item)]
	if !g.asked.Load() {
		g.asked.Store(true)
	}
	return g.state.Load()
}

// Run looks at the queues until ctx ends.
func (p *Pressure) Run(ctx context.Context) error {
	tick := time.NewTicker(p.cfg.Every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			p.lookAll(ctx)
		}
	}
}

func (p *Pressure) lookAll(ctx context.Context) {
	for i := range p.of {
		g := &p.of[i]
		if g.asked.Swap(false) {
			g.still = 0
		} else if g.still++; g.still >= stillLooks {
			// What is known of orders that wait is kept: the next purchase would
			// otherwise be let in to wait behind them.
			if g.last.Length == g.last.Delayed {
				g.forget()
				continue
			}
			if g.still%slowLook != 0 {
				continue
			}
		}
		// A Redis that does not answer is a matter of its own; nobody is kept out for it.
		brief, cancel := context.WithTimeout(ctx, max(p.cfg.Every, time.Second))
		now, err := p.cfg.Queues[i].Load(brief)
		cancel()
		if err != nil {
			g.forget()
			if !errors.Is(err, context.Canceled) {
				p.cfg.OnError(fmt.Errorf("read the order queues: %w", err))
			}
			continue
		}
		g.note(&p.cfg, now, p.cfg.Queues[i].MaxLength(), time.Now())
	}
}

// forget makes the next look the first.
func (g *gauge) forget() {
	g.state.Store(nil)
	g.last, g.at, g.pace, g.shut = queue.Load{}, time.Time{}, -1, false
}

// note takes a look in.
func (g *gauge) note(cfg *PressureConfig, now queue.Load, room int, at time.Time) {
	if took := at.Sub(g.at).Seconds(); !g.at.IsZero() && took > 0 && now.Minute == g.last.Minute && now.Done >= g.last.Done {
		pace := float64(now.Done-g.last.Done) / took
		if g.pace >= 0 {
			pace = paceWeight*pace + (1-paceWeight)*g.pace
		}
		g.pace = pace
	}
	same := now.Minute == g.last.Minute
	if g.at.IsZero() || now.Length == now.Delayed || same && now.Done != g.last.Done || !same && now.Done > 0 {
		g.moved = at
	}
	g.last, g.at = now, at
	late := max(now.OldestReady, at.Sub(g.moved)) > cfg.MaxAge
	s := &queueState{late: late, wait: g.estimate(now.Length)}
	switch {
	case s.wait < shutLooks*cfg.Every:
		g.shut = false
	case g.shut:
		g.shut = now.Length > room-room/10
	default:
		g.shut = now.Length >= room
	}
	s.shut = g.shut
	g.state.Store(s)
}

// estimate is how long the queue takes for so many orders.
func (g *gauge) estimate(orders int) time.Duration {
	switch seconds := float64(orders) / g.pace; {
	case orders == 0:
		return 0
	case g.pace < 0: // not known
		return time.Second
	case seconds > longestWait.Seconds() && g.pace < 1:
		return paceless
	default:
		return time.Duration(min(seconds, longestWait.Seconds()) * float64(time.Second))
	}
}
