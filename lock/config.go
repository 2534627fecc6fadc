package lock

import (
	"fmt"
	"time"
)

// Config holds the settings of a [Manager]. The zero value is usable. All durations except
// Poll and NodeTimeout are whole milliseconds and at least 10 ms.
type Config struct {
	// Prefix of the keys of resources without a hash tag; default "lock:".
	Prefix string
	// TTL is how long a lock outlives a holder that died, and how long a holder that is
	// cut off from Redis may continue; default 10 s. The watchdog renews the lock when a
	// third of it has passed. WithTTL sets it for one lock.
	TTL time.Duration
	// ClaimTTL is how long a waiter that was handed the lock has to claim it;
	// default 1 s or TTL, whichever is less; at most TTL.
	ClaimTTL time.Duration
	// Liveness is the interval of a waiter's keep-alives; default 1 s. A waiter without a
	// keep-alive for two and a half times as long is skipped.
	Liveness time.Duration
	// Poll makes waiters poll at this interval, plus or minus a half, instead of
	// listening: for a Redis behind a proxy without publish/subscribe. At least 1 ms, at
	// most a third of ClaimTTL, because a waiter learns of a handover by polling, and with
	// New at most Liveness. Default 0: listen. Managers that listen and managers that poll may
	// share locks. NewQuorum always polls and hands nothing over: its default is 25 ms or a
	// quarter of TTL, whichever is less, also above a third of ClaimTTL.
	Poll time.Duration
	// Grace is the TTL given to a lock key without one, such as a program leaves that
	// uses SETNX and may still be alive; default TTL.
	Grace time.Duration
	// CallTimeout bounds a call to Redis that continues after its caller has stopped
	// waiting, such as a release; default 2 s.
	CallTimeout time.Duration
	// NodeTimeout bounds the call to each node of a quorum; default a tenth of TTL
	// (at least 2.5 ms) or CallTimeout, whichever is less; at most CallTimeout and a
	// third of TTL. Only with NewQuorum.
	NodeTimeout time.Duration
	// Metadata is a text of at most 512 bytes that Inspect shows for the locks and
	// waiters of this manager, such as the host name and the process id; default "".
	Metadata string
	// Observer has callbacks for events. The zero value has none.
	Observer Observer
}

const minTTL = 10 * time.Millisecond

// withDefaults sets the defaults and checks the result.
func (c Config) withDefaults() (Config, error) {
	setDefault(&c.TTL, 10*time.Second)
	setDefault(&c.ClaimTTL, min(time.Second, c.TTL))
	setDefault(&c.Liveness, time.Second)
	setDefault(&c.Grace, c.TTL)
	setDefault(&c.CallTimeout, 2*time.Second)
	setDefault(&c.Prefix, "lock:")
	c.Observer = c.Observer.withDefaults()
	err := c.check()
	return c, err
}

func (c *Config) check() error {
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"TTL", c.TTL}, {"ClaimTTL", c.ClaimTTL}, {"Liveness", c.Liveness}, {"Grace", c.Grace}, {"CallTimeout", c.CallTimeout}} {
		if err := checkTime("config: "+d.name, d.value); err != nil {
			return err
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

// checkTime reports a time that Redis cannot keep exactly or that is too short to hold a lock.
func checkTime(name string, d time.Duration) error {
	if d < minTTL || d%time.Millisecond != 0 {
		return fmt.Errorf("%w %s is %s, it must be whole milliseconds and at least %s", ErrInvalid, name, d, minTTL)
	}
	return nil
}

func setDefault[T comparable](setting *T, value T) {
	var unset T
	if *setting == unset {
		*setting = value
	}
}
