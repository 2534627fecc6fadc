package queue

import (
	"context"
	"fmt"
	"time"
)

const (
	// strayPages bounds how many pages of tasks are checked for strays at once, and
	// strayEvery how often.
	strayPages = 16
	strayEvery = time.Second
)

// strays searches for tasks that a fault has left in no state, which no worker would
// ever take. Each fetch counts them without looking at any. Only while there are
// some, tasks are checked, in pages.
type strays struct {
	check    *verifier
	next     time.Time
	reported int64
}

// look reports n strays to onError, makes those it finds ready and reports them.
func (s *strays) look(ctx context.Context, q *Queue, n int64, onError func(error)) {
	if n <= 0 {
		*s = strays{}
		return
	}
	if n != s.reported {
		s.reported = n
		onError(fmt.Errorf("%w: %d of them", ErrTaskLost, n))
	}
	if time.Now().Before(s.next) {
		return
	}
	for range strayPages {
		if s.check == nil || s.check.done() {
			s.check = newVerifier(q, true)
		}
		err := s.check.page(ctx)
		if lost := s.check.report.Lost; len(lost) > 0 {
			onError(fmt.Errorf("%w: %q are ready again", ErrTaskLost, lost))
		}
		s.check.report, s.check.found = Report{}, make(map[string]bool)
		if err != nil {
			onError(err)
			break
		}
		if s.check.done() {
			break
		}
	}
	s.next = time.Now().Add(strayEvery)
}
