package lock

import (
	"cmp"
	"fmt"
	"time"
)

// Option changes the behaviour of one acquire. An invalid value makes the acquire fail
// with ErrInvalid before it does anything.
type Option func(*settings)

// settings are the resolved options of one acquire.
type settings struct {
	ttl       time.Duration
	waitLimit time.Duration // 0: none; negative: invalid
	maxHold   time.Duration // 0: none; negative: invalid
	meta      string        // ":<metadata>" or ""
	unwatched bool
	reentrant bool
}

// maxMetadata bounds a holder's metadata in bytes, because each change of the lock's
// key writes it.
const maxMetadata = 512

// WithTTL overrides [Config.TTL] for this lock: at least 10 ms, in whole milliseconds.
func WithTTL(ttl time.Duration) Option { return func(s *settings) { s.ttl = ttl } }

// WithWaitLimit bounds the wait in addition to the context: Acquire then fails with
// ErrWaitTimeout. It must be above zero. TryAcquire, which never waits, ignores it.
func WithWaitLimit(limit time.Duration) Option {
	return func(s *settings) { s.waitLimit = cmp.Or(limit, -1) }
}

// WithoutWatchdog disables renewal: the lock ends with its TTL, with the cause ErrLost,
// unless the holder calls [Lock.Extend]. Use it for work that must not hold the lock
// any longer.
func WithoutWatchdog() Option { return func(s *settings) { s.unwatched = true } }

// WithMaxHold ends the lock after this time, at least 10 ms: its context ends with
// ErrMaxHold, and the next waiter gets the lock. It guards against a holder that hangs
// while the watchdog keeps renewing.
func WithMaxHold(limit time.Duration) Option {
	return func(s *settings) { s.maxHold = cmp.Or(limit, -1) }
}

// WithReentry makes an acquire succeed if its context comes from a held lock of the same
// resource and manager (see [Lock.Context]): at once, without a call to Redis and with
// the same fencing token. The resource is released when all its handles are. The other
// options of the first acquire stay in force. Without this option such an Acquire fails
// with ErrNested, and a TryAcquire with ErrTaken.
func WithReentry() Option { return func(s *settings) { s.reentrant = true } }

// metaSuffix is the metadata as it follows the token and fence of a lock, or the token
// of a waiter.
func metaSuffix(text string) string {
	if text == "" {
		return ""
	}
	return ":" + text
}

func (s *settings) check() error {
	switch {
	case s.waitLimit < 0:
		return fmt.Errorf("%w wait limit: it must be more than zero; TryAcquire does not wait", ErrInvalid)
	case s.maxHold != 0 && s.maxHold < minTTL:
		return fmt.Errorf("%w maximum hold: it must be at least %s", ErrInvalid, minTTL)
	}
	return checkTime("TTL", s.ttl)
}
