package order

import (
	"context"
	"math/rand/v2"
)

// recorder writes what tries have led to: all that end while one transaction is
// under way go into the next. The database syncs once for many deliveries, and
// orders wait for the one writing connection as rarely as can be.
type recorder struct {
	store   *Store
	onError func(error)
	in      chan recording
}

// recording is one try's result, and who waits for it to be written.
type recording struct {
	tried
	written chan error
}

// recordBatch is how many results are written together.
const recordBatch = 256

func newRecorder(store *Store, onError func(error)) *recorder {
	return &recorder{store: store, onError: onError, in: make(chan recording, recordBatch)}
}

// write returns once the result is in the database. While the database cannot
// write at present it tries again, until ctx ends.
func (r *recorder) write(ctx context.Context, t tried) error {
	for wait := commitRetryMin; ; wait = min(2*wait, commitRetryMax) {
		one := recording{t, make(chan error, 1)}
		select {
		case r.in <- one:
		default:
			// Only where there is no room: what was delivered is worth writing
			// although ctx has ended.
			select {
			case r.in <- one:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		// The transaction is bounded, and not cut off when ctx ends.
		err := <-one.written
		if err == nil || !transient(err) || ctx.Err() != nil {
			return err
		}
		r.onError(err)
		if !pause(ctx, wait/2+rand.N(wait/2)) {
			return err
		}
	}
}

// run writes until in is closed.
func (r *recorder) run(ctx context.Context) {
	for first := range r.in {
		batch := []recording{first}
	gather:
		for len(batch) < recordBatch {
			select {
			case next, open := <-r.in:
				if !open {
					break gather
				}
				batch = append(batch, next)
			default:
				break gather
			}
		}
		tries := make([]tried, len(batch))
		for i := range batch {
			tries[i] = batch[i].tried
		}
		err := r.store.record(ctx, tries)
		for i := range batch {
			batch[i].written <- err
		}
	}
}
