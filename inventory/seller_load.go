package inventory

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// loading is a load of a sale that is under way.
type loading struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error // once done is closed
}

func (l *loading) ended() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// loadAndWait loads the sale in a goroutine of its own and waits for it until ctx ends.
// The requests of the batch are answered when their patience runs out, and the next
// batches join the same load. Only the loss of the lock ends the load early. rewound is as
// in Observers.OnLoss.
func (s *seller) loadAndWait(ctx context.Context, rewound int64) error {
	if s.loading == nil {
		loadCtx, cancel := context.WithCancel(s.v.life)
		l := &loading{cancel: cancel, done: make(chan struct{})}
		held := s.lock.held
		stop := context.AfterFunc(held.Context(), cancel)
		go func() {
			defer close(l.done)
			defer stop()
			if l.err = s.v.mayLoad(loadCtx, s.item); l.err != nil {
				return
			}
			if s.floor.Load() > 0 {
				// This process has sold from the sale, which is now missing or older.
				s.v.observers.OnLoss(loadCtx, rewound)
			}
			l.err = s.v.load(loadCtx, held, s.item)
		}()
		s.loading = l
	}
	select {
	case <-s.loading.done:
		err := s.loading.err
		s.endLoading()
		if errors.Is(err, ErrStopped) {
			s.stopped = time.Now()
			return err
		}
		if errors.Is(err, ErrEnded) {
			return err
		}
		if err != nil {
			s.v.cfg.OnError(err)
			return loadError(err)
		}
		return errAgain
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrRebuilding, context.Cause(ctx))
	}
}

// endLoading stops a load, if there is one, and waits for its end: it must not write after
// the lock has another holder.
func (s *seller) endLoading() {
	if s.loading != nil {
		s.loading.cancel()
		<-s.loading.done
		s.loading = nil
	}
}

// loadOrAnswer handles a batch whose sale is not loaded, or has to be loaded again: it
// loads the sale, or answers from the Archive if the sale has ended. rewound is as in
// Observers.OnLoss, waiting as in the script's reply.
func (s *seller) loadOrAnswer(ctx context.Context, batch []*Request, rewound, waiting int64) error {
	// Rewound data is examined first. For a sale that is merely missing, the database
	// decides whether it should be loaded.
	if s.loading == nil && rewound == 0 {
		ended, err := s.v.ended(ctx, s.item)
		if err != nil {
			return err
		}
		if ended {
			// The database does not have all orders of a stopped sale.
			if err := s.v.mayLoad(ctx, s.item); err != nil {
				if errors.Is(err, ErrStopped) {
					s.stopped = time.Now()
				}
				return err
			}
			return s.answerEnded(ctx, batch, waiting)
		}
	}
	err := s.loadAndWait(ctx, rewound)
	if errors.Is(err, ErrEnded) {
		return s.answerEnded(ctx, batch, waiting)
	}
	return err
}
