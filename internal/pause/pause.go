// Package pause waits for a duration or the end of a context.
package pause

import (
	"context"
	"math/rand/v2"
	"time"
)

// For waits for d and reports true, or false as soon as ctx ends.
func For(ctx context.Context, d time.Duration) bool { return OrCause(ctx, d) == nil }

// Jittered is For with a random duration from half of d up to d, so that many callers that retry do
// not do so at once.
func Jittered(ctx context.Context, d time.Duration) bool {
	return For(ctx, d/2+rand.N(d/2+1))
}

// OrCause waits for d and returns nil, or the cause as soon as ctx ends.
func OrCause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
