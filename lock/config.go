package lock

import (
	"fmt"
	"time"
)

// Config holds the settings of a [Manager]. The zero value is usable.
type Config struct {
	// Prefix of the keys of resources without a hash tag; default "lock:".
	Prefix string
	// TTL is how long a lock outlives a holder that died, and the longest time
	// a holder cut off from Redis goes on; default 10 s, at least 10 ms, whole
	// milliseconds. The watchdog renews at a third of it. WithTTL sets it for
	// one lock.
	TTL time.Duration
	// ClaimTTL is how long a waiter that was handed the lock has to claim it;
	// default 1 s or TTL, whichever is less; at least 10 ms, at most TTL.
	ClaimTTL time.Duration
	// Liveness is how often a waiter shows that it is alive; default 1 s, at
	// least 10 ms. One that was silent for two and a half times as long is
	// passed over.
	Liveness time.Duration
	// Poll makes waiters ask again at this interval, give or take a half,
	// instead of listening: for a Redis behind a proxy without publish/subscribe.
	// At least 1 ms, at most a third of ClaimTTL, because a waiter that was
	// handed the lock finds out by asking. Default 0, listen. A manager that
	// listens and one that polls may share locks. With NewQuorum, which always
	// polls, the default is 25 ms.
	Poll time.Duration
	// Grace is the TTL given to a lock key that has none, which a program left
	// that took the lock with SETNX and may still be alive; default TTL, at
	// least 10 ms.
	Grace time.Duration
	// CallTimeout bounds a call to Redis that must end although its caller has
	// stopped waiting, such as a release; default 2 s.
	CallTimeout time.Duration
	// NodeTimeout bounds the call to each node of a quorum; default a tenth of
	// TTL or CallTimeout, whichever is less; at most CallTimeout and a third of
	// TTL. Only with NewQuorum.
	NodeTimeout time.Duration
	// Metadata is a text of at most 512 bytes that Inspect shows of the locks
	// and waiters of this manager, such as the host's name and the process id;
	// default "".
	Metadata string
	// Observer is told what happens. The zero value hears nothing.
	Observer Observer
	// reasonLimit bounds the question why a lock was taken by force, at most a
	// twentieth of TTL; only tests set it.
	reasonLimit time.Duration
}

const minTTL = 10 * time.Millisecond

// withDefaults fills in what was left out and checks the result.
func (c Config) withDefaults() (Config, error) {
	setDefault(&c.TTL, 10*time.Second)
	setDefault(&c.ClaimTTL, min(time.Second, c.TTL))
	setDefault(&c.Liveness, time.Second)
	setDefault(&c.Grace, c.TTL)
	setDefault(&c.CallTimeout, 2*time.Second)
	setDefault(&c.reasonLimit, 100*time.Millisecond)
	if c.Prefix == "" {
		c.Prefix = "lock:"
	}
	err := c.check()
	return c, err
}

func (c *Config) check() error {
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"TTL", c.TTL}, {"ClaimTTL", c.ClaimTTL}, {"Liveness", c.Liveness}, {"Grace", c.Grace}, {"CallTimeout", c.CallTimeout}} {
		if d.value < minTTL {
			return fmt.Errorf("%w config: %s is %s, it must be at least %s", ErrInvalid, d.name, d.value, minTTL)
		}
		if d.value%time.Millisecond != 0 {
			return fmt.Errorf("%w config: %s is %s, it must be whole milliseconds", ErrInvalid, d.name, d.value)
		}
	}
	switch {
	case c.ClaimTTL > c.TTL:
		return fmt.Errorf("%w config: ClaimTTL %s exceeds TTL %s", ErrInvalid, c.ClaimTTL, c.TTL)
	case c.Poll != 0 && c.Poll < time.Millisecond:
		return fmt.Errorf("%w config: Poll is %s, it must be at least 1ms", ErrInvalid, c.Poll)
	case c.Poll > c.ClaimTTL/3:
		return fmt.Errorf("%w config: Poll %s exceeds a third of ClaimTTL %s", ErrInvalid, c.Poll, c.ClaimTTL)
	case len(c.Metadata) > maxMetadata:
		return fmt.Errorf("%w config: Metadata has %d bytes, at most %d are kept", ErrInvalid, len(c.Metadata), maxMetadata)
	}
	if _, err := keysOf(c.Prefix, "x"); err != nil {
		return fmt.Errorf("%w config: Prefix %q breaks the hash tag", ErrInvalid, c.Prefix)
	}
	return nil
}

func setDefault(d *time.Duration, value time.Duration) {
	if *d == 0 {
		*d = value
	}
}
