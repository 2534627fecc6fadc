// Package runner runs the contenders of a benchmark in turns, and the goroutines of a
// phase, with a bound on every wait for them.
package runner

import (
	"context"
	"errors"
	"time"
)

// Patience bounds operations that should not take long: clean-ups, and goroutines whose work
// has ended.
const Patience = 20 * time.Second

// Turn returns all in the order of a round. Each round begins one further on, so that
// no contender always runs first, on a machine that has just cooled down.
func Turn[T any](all []T, round int) []T {
	order := make([]T, 0, len(all))
	for i := range all {
		order = append(order, all[(i+round)%len(all)])
	}
	return order
}

// Run runs fn in n goroutines; the channel then gives their joined errors.
func Run(n int, fn func(i int) error) <-chan error {
	each := make(chan error, n)
	for i := range n {
		go func() { each <- fn(i) }()
	}
	done := make(chan error, 1)
	go func() {
		var errs []error
		for range n {
			errs = append(errs, <-each)
		}
		done <- errors.Join(errs...)
	}()
	return done
}

// Finish waits for goroutines whose work should be over, with a limit, so that a goroutine
// that hangs does not block the run.
func Finish(done <-chan error) error {
	timer := time.NewTimer(Patience)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return errors.New("goroutines hang although their work has ended")
	}
}

// Cleanup is a context for clean-up after ctx has ended.
func Cleanup(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), Patience)
}
