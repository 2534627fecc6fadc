package lock

import (
	"fmt"
	"time"
)

// Option changes how one acquire behaves. A value that cannot work makes the
// acquire fail with ErrInvalid before it does anything.
type Option func(*settings)

// settings are what the options of one acquire come to.
type settings struct {
	ttl       time.Duration
	waitLimit time.Duration // 0: none
	limited   bool          // a wait limit was given
	maxHold   time.Duration // 0: none
	held      bool          // a maximum hold was given
	meta      string        // ":<metadata>" or ""
	unwatched bool
	reentrant bool
}

// maxMetadata is the greatest length of a holder's metadata in bytes: it is
// written with every change of the lock's key.
const maxMetadata = 512

// WithTTL sets the lock's life in place of [Config.TTL]: at least 10 ms, in
// whole milliseconds.
func WithTTL(ttl time.Duration) Option { return func(s *settings) { s.ttl = ttl } }

// WithWaitLimit bounds the wait besides the context: when it is over Acquire
// fails with ErrWaitTimeout. It must be more than zero; to not wait at all use
// TryAcquire, which it does not concern.
func WithWaitLimit(limit time.Duration) Option {
	return func(s *settings) { s.waitLimit, s.limited = limit, true }
}

// WithoutWatchdog leaves the lock to end with its TTL, with the cause ErrLost,
// unless the holder calls [Lock.Extend]. It suits work that must not hold the
// lock for longer, whatever happens.
func WithoutWatchdog() Option { return func(s *settings) { s.unwatched = true } }

// WithMaxHold ends the lock after it was held for so long, at least 10 ms: its
// context ends with ErrMaxHold, and the lock goes to the next. It guards
// against a holder that hangs while the watchdog goes on renewing.
func WithMaxHold(limit time.Duration) Option {
	return func(s *settings) { s.maxHold, s.held = limit, true }
}

// WithReentry lets an acquire succeed whose context comes from a lock of the
// same resource and manager that is still held (see [Lock.Context]): at once,
// without a call to Redis, with the same fencing token. The resource is
// released when all its handles are. The other options are those of the first
// acquire. Without it such an Acquire fails with ErrNested, and a TryAcquire with
// ErrTaken.
func WithReentry() Option { return func(s *settings) { s.reentrant = true } }

// metaSuffix is how metadata follows the token and fence of a lock, and the
// token of a waiter.
func metaSuffix(text string) string {
	if text == "" {
		return ""
	}
	return ":" + text
}

func (s *settings) check() error {
	switch {
	case s.ttl < minTTL:
		return fmt.Errorf("%w TTL %s: it must be at least %s", ErrInvalid, s.ttl, minTTL)
	case s.ttl%time.Millisecond != 0:
		return fmt.Errorf("%w TTL %s: it must be whole milliseconds", ErrInvalid, s.ttl)
	case s.limited && s.waitLimit <= 0:
		return fmt.Errorf("%w wait limit %s: it must be more than zero; TryAcquire does not wait", ErrInvalid, s.waitLimit)
	case s.held && s.maxHold < minTTL:
		return fmt.Errorf("%w maximum hold %s: it must be at least %s", ErrInvalid, s.maxHold, minTTL)
	}
	return nil
}
