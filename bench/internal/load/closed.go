package load

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"flashsale/internal/wire"
)

// dialTogether bounds the connections that are dialled concurrently, so that the listener's
// backlog does not overflow.
const dialTogether = 32

// line is an open connection and its target.
type line struct {
	conn   *wire.Conn
	target wire.Target
}

// dial opens all connections of a load.
func dial(ctx context.Context, p *Purchases) ([]line, error) {
	addrs := append([]string{p.Addr}, p.Also...)
	lines := make([]line, p.Connections)
	g, dialling := errgroup.WithContext(ctx)
	g.SetLimit(dialTogether)
	for i := range lines {
		addr := addrs[i%len(addrs)]
		g.Go(func() (err error) {
			if lines[i].target, err = wire.ParseTarget("http://" + addr); err != nil {
				return err
			}
			if lines[i].conn, err = wire.Dial(dialling, lines[i].target); err != nil {
				return fmt.Errorf("dial %s: %w", addr, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		hangUp(lines)
		return nil, err
	}
	return lines, nil
}

// hangUp closes the connections that are open.
func hangUp(lines []line) {
	for _, l := range lines {
		if l.conn != nil {
			_ = l.conn.Close() //nolint:errcheck // every request on it has been answered
		}
	}
}

// Buy sends purchases for a time and returns the answers. The time begins when all connections
// are open. The first exchange that fails ends it.
func (c *Crowd) Buy(ctx context.Context, p Purchases, d time.Duration) (*Bought, error) {
	lines, err := dial(ctx, &p)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	t := NewTally()
	next, err := c.send(ctx, lines, &p, t.Add)
	b := t.Take()
	b.Next = next
	return b, err
}

// Measure sends purchases, and returns the answers that arrive during d, which begins settle
// after all connections are open. The first exchange that fails ends it.
func (c *Crowd) Measure(ctx context.Context, p Purchases, settle, d time.Duration) (*Bought, error) {
	lines, err := dial(ctx, &p)
	if err != nil {
		return nil, err
	}
	sending, stop := context.WithCancel(ctx)
	defer stop()
	t := NewTally()
	done := make(chan struct{})
	var next int64
	go func() {
		defer close(done)
		next, err = c.send(sending, lines, &p, t.Add)
	}()
	wait := func(d time.Duration) {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-done:
		case <-ctx.Done():
		}
	}
	wait(settle)
	t.Take()
	wait(d)
	b := t.Take()
	stop()
	<-done
	b.Next = next
	if err == nil {
		err = context.Cause(ctx)
	}
	return b, err
}

// Send sends purchases until ctx ends, and reports each answer to seen, from several
// goroutines. It returns the number of the next purchase.
func (c *Crowd) Send(ctx context.Context, p Purchases, seen func(status int, took time.Duration)) (int64, error) {
	lines, err := dial(context.WithoutCancel(ctx), &p)
	if err != nil {
		return p.First, err
	}
	return c.send(ctx, lines, &p, seen)
}

// send is Send over open connections, which it closes. Each sends at least one purchase.
func (c *Crowd) send(ctx context.Context, lines []line, p *Purchases, seen func(status int, took time.Duration)) (int64, error) {
	defer hangUp(lines)
	var next atomic.Int64
	next.Store(p.First)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var all sync.WaitGroup
	var failed error
	var once sync.Once
	for _, l := range lines {
		all.Go(func() {
			var req bytes.Buffer
			for {
				i := next.Add(1) - 1
				c.Request(&req, l.target, p, i)
				began := time.Now()
				res, err := l.conn.Do(req.Bytes())
				if err != nil {
					once.Do(func() { failed = fmt.Errorf("purchase %d: %w", i, err) })
					cancel()
					return
				}
				seen(res.Status, time.Since(began))
				if ctx.Err() != nil {
					return
				}
			}
		})
	}
	all.Wait()
	return next.Load(), failed
}
