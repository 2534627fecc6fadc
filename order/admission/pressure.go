// Package admission refuses purchases when too many orders are queued, or when the database
// refuses writes.
package admission

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"flashsale/inventory"
	"flashsale/queue"
)

// Loader is the part of a task queue that Pressure uses.
type Loader interface {
	Load(ctx context.Context) (queue.Load, error)
	MaxLength() int
}

// PressureConfig configures a Pressure. Queues and Partition are required.
type PressureConfig struct {
	Queues    []Loader // of orders, one per partition
	Partition func(item string) int
	// MaxAge is the queue age above which a purchase does not wait for its commit: the
	// oldest order has waited longer, or there are orders and the last commit was longer
	// ago. Default 5 s.
	MaxAge time.Duration
	// Volatile means that a purchase is answered only after its commit; see Config.Volatile.
	Volatile bool
	// Database reports why the database cannot write. Default nil: not checked.
	Database interface{ Failing() error }
	// Every is the interval between reads of a queue. Default 100 ms.
	Every time.Duration
	// OnError receives the errors of reading. Default: they are dropped.
	OnError func(error)
}

// Pressure refuses purchases early while their queue is full or the database cannot write,
// so that they cost nothing. It reads the state of the queues a few times per second while
// there are purchases, so its data is at most that old. The purchase script makes the final
// check of the queue's length.
type Pressure struct {
	cfg PressureConfig
	of  []gauge
}

// gauge is the last known state of one queue.
type gauge struct {
	asked atomic.Bool
	state atomic.Pointer[queueState] // nil: unknown, or no problem

	// The rest belongs to Run.
	last  queue.Load
	at    time.Time
	moved time.Time // when an order was last done, or the queue was empty
	pace  float64   // orders done per second, smoothed; negative: unknown
	shut  bool
	still int // consecutive reads without a purchase
}

// queueState is the state of a queue at one moment.
type queueState struct {
	shut bool          // purchases are refused
	late bool          // purchases do not wait for their commit
	wait time.Duration // the estimated time until the present orders are done
}

const (
	// paceWeight is the weight of the latest read in the pace.
	paceWeight = 0.2
	// paceless is the estimate while no order is done at all, until an operator acts or the
	// database recovers.
	paceless = 10 * time.Second
	// longestWait bounds the estimate.
	longestWait = time.Minute
	// shutReads is how many reads a full queue must last before purchases are refused. A
	// shorter queue could become empty before the next read admits purchases again.
	shutReads = 5
	// After stillReads reads without a purchase, an empty queue is no longer read, and one
	// with orders only at every slowRead-th tick.
	stillReads = 20
	slowRead   = 10
)

// NewPressure returns a Pressure without data until Run reads the queues.
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
		p.of[i].pace, p.of[i].still = -1, stillReads
	}
	return p
}

// Admit returns nil if a purchase of the item may proceed. Errors: inventory.ErrOverloaded,
// with the time until the orders before it are done; database.ErrUnavailable if no order can be
// committed until an operator acts. A database that is only busy refuses no purchase.
func (p *Pressure) Admit(item string) (wait time.Duration, err error) {
	if p.cfg.Database != nil {
		if err := p.cfg.Database.Failing(); err != nil && !errors.Is(err, ErrBusy) {
			return 0, err
		}
	}
	s := p.state(item)
	if s == nil || !s.shut && (!s.late || !p.cfg.Volatile) {
		return 0, nil
	}
	return s.wait, inventory.ErrOverloaded
}

// Late reports whether orders of the item are committed so late that a purchase should not
// wait for its commit.
func (p *Pressure) Late(item string) bool {
	s := p.state(item)
	return s != nil && s.late
}

// Wait estimates when the present orders will be done; 0 if unknown.
func (p *Pressure) Wait(item string) time.Duration {
	if s := p.state(item); s != nil {
		return s.wait
	}
	return 0
}

// Shut returns how many queues refuse purchases at present.
func (p *Pressure) Shut() int {
	n := 0
	for i := range p.of {
		if s := p.of[i].state.Load(); s != nil && s.shut {
			n++
		}
	}
	return n
}

func (p *Pressure) state(item string) *queueState {
	g := &p.of[p.cfg.Partition(item)]
	if !g.asked.Load() {
		g.asked.Store(true)
	}
	return g.state.Load()
}

// Run reads the queues until ctx ends.
func (p *Pressure) Run(ctx context.Context) error {
	tick := time.NewTicker(p.cfg.Every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			p.readAll(ctx)
		}
	}
}

func (p *Pressure) readAll(ctx context.Context) {
	for i := range p.of {
		g := &p.of[i]
		if g.asked.Swap(false) {
			g.still = 0
		} else if g.still++; g.still >= stillReads {
			// The state of a queue with orders is kept: otherwise the next purchase would
			// be admitted behind them.
			if g.last.Active == 0 {
				g.forget()
				continue
			}
			if g.still%slowRead != 0 {
				continue
			}
		}
		// An error of Redis is handled elsewhere and refuses no purchase here.
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

// forget drops the state, so that the next read is the first.
func (g *gauge) forget() {
	g.state.Store(nil)
	g.last, g.at, g.pace, g.shut = queue.Load{}, time.Time{}, -1, false
}

// note records a read.
func (g *gauge) note(cfg *PressureConfig, now queue.Load, room int, at time.Time) {
	if took := at.Sub(g.at).Seconds(); !g.at.IsZero() && took > 0 && now.Minute == g.last.Minute && now.Done >= g.last.Done {
		pace := float64(now.Done-g.last.Done) / took
		if g.pace >= 0 {
			pace = paceWeight*pace + (1-paceWeight)*g.pace
		}
		g.pace = pace
	}
	same := now.Minute == g.last.Minute
	if g.at.IsZero() || now.Active == 0 || same && now.Done != g.last.Done || !same && now.Done > 0 {
		g.moved = at
	}
	g.last, g.at = now, at
	late := max(now.OldestReady, at.Sub(g.moved)) > cfg.MaxAge
	s := &queueState{late: late, wait: g.estimate(now.Length)}
	switch {
	case s.wait < shutReads*cfg.Every:
		g.shut = false
	case g.shut:
		g.shut = now.Length > room-room/10
	default:
		g.shut = now.Length >= room
	}
	s.shut = g.shut
	g.state.Store(s)
}

// estimate returns how long the queue takes for that many orders.
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
