package lock

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Given a subscription that Redis neither confirms nor refuses, then a waiter continues without it after
// CallTimeout, and at once when the manager closes.
func TestManager_subscribe_NoAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := makeManager(slow)
		m.wake = newWakeup(nil)
		m.wake.start.Do(func() {}) // nothing subscribes
		m.subscribe(t.Context())

		var returned atomic.Bool
		go func() {
			m.subscribe(t.Context())
			returned.Store(true)
		}()
		synctest.Wait()
		if returned.Load() {
			t.Error("a waiter continued before CallTimeout")
		}
		close(m.closing)
		synctest.Wait()
		if !returned.Load() {
			t.Error("a waiter does not notice that the manager closes")
		}
	})
}

// Given a waiter, then it polls if it or its manager gets no messages, often enough to claim a lock that
// it was handed and to count as alive.
func TestManager_pollEvery(t *testing.T) {
	t.Parallel()
	listens, polls := &attempt{token: "id.1"}, &attempt{token: pollingMark + "id.1"}
	for name, c := range map[string]struct {
		cfg  Config
		mute bool
		a    *attempt
		want time.Duration
	}{
		"listens":                      {slow, false, listens, 0},
		"configured":                   {Config{Poll: time.Second}, false, listens, time.Second},
		"began to wait with a refusal": {slow, false, polls, mutePoll},
		"refused while it waits":       {slow, true, listens, mutePoll},
		"claims":                       {Config{ClaimTTL: 100 * time.Millisecond, Liveness: time.Minute}, true, polls, 25 * time.Millisecond},
		"lives":                        {Config{ClaimTTL: time.Minute, Liveness: 40 * time.Millisecond}, true, polls, 10 * time.Millisecond},
	} {
		m := &Manager{cfg: c.cfg}
		m.wake.mute.Store(c.mute)
		if got := m.pollEvery(c.a); got != c.want {
			t.Errorf("%s: polls every %s, want %s", name, got, c.want)
		}
	}
}
