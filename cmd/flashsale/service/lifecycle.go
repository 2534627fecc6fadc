package service

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// part is one running part of the process. Parts start in order and stop in reverse order; each
// stop is awaited before the next.
type part struct {
	name string
	// run works until its context ends; nil for a part that only needs closing. An error, or an
	// end before the context's, stops all parts.
	run func(ctx context.Context) error
	// stop is called while run still works; it may be nil.
	stop func(ctx context.Context) error
}

// parts are in the order of their start.
type parts []part

func (ps *parts) add(p part) { *ps = append(*ps, p) }

// closing adds a part that only needs closing.
func (ps *parts) closing(name string, fn func() error) {
	ps.add(part{name: name, stop: func(context.Context) error { return fn() }})
}

// lifecycle runs parts. Because of the order of the stops, a SIGTERM loses nothing: requests
// end before the parts that serve them.
type lifecycle struct {
	parts parts
	// drain bounds the stops of all parts together; each part gets at least lastGrace.
	drain time.Duration
}

// run starts all parts, waits until ctx or one of the parts ends, and stops them in reverse
// order. It returns their errors.
func (l *lifecycle) run(ctx context.Context) error {
	ended := make(chan error, len(l.parts))
	cancels := make([]context.CancelFunc, len(l.parts))
	running := make([]sync.WaitGroup, len(l.parts))
	for i, p := range l.parts {
		if p.run == nil {
			continue
		}
		// The parts outlive ctx, which only starts the stop.
		partCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		cancels[i] = cancel
		running[i].Go(func() {
			err := p.run(partCtx)
			if err == nil && partCtx.Err() == nil {
				err = errors.New("ended unexpectedly")
			}
			if err != nil {
				ended <- fmt.Errorf("%s: %w", p.name, err)
			}
		})
	}
	var errs []error
	select {
	case <-ctx.Done():
	case err := <-ended:
		errs = append(errs, err)
	}
	end := time.Now().Add(l.drain)
	for i := len(l.parts) - 1; i >= 0; i-- {
		errs = append(errs, l.stop(ctx, end, &l.parts[i], cancels[i], &running[i]))
	}
	close(ended)
	for err := range ended {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// lastGrace is the minimum time for the stop of a part.
const lastGrace = time.Second

func (l *lifecycle) stop(ctx context.Context, end time.Time, p *part, cancel context.CancelFunc, running *sync.WaitGroup) error {
	var err error
	if p.stop != nil {
		stopCtx, done := context.WithTimeout(context.WithoutCancel(ctx), max(time.Until(end), lastGrace))
		if err = p.stop(stopCtx); err != nil {
			err = fmt.Errorf("stop %s: %w", p.name, err)
		}
		done()
	}
	if cancel != nil {
		cancel()
	}
	running.Wait()
	return err
}

// close stops parts that were built but never run.
func (l *lifecycle) close(ctx context.Context) error {
	var errs []error
	for i := len(l.parts) - 1; i >= 0; i-- {
		if l.parts[i].run == nil {
			errs = append(errs, l.stop(ctx, time.Now(), &l.parts[i], nil, new(sync.WaitGroup)))
		}
	}
	return errors.Join(errs...)
}
