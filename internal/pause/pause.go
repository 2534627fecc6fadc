// Package pause waits for a duration or the end of a context.
package pause

import (
	"context"
	"time"
)

// For waits for d and reports true, or false as soon as ctx ends.
func For(ctx context.Context, d time.Duration) bool { return OrCause(ctx, d) == nil }

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
