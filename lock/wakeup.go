package lock

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// wakeup is the state of a manager's subscription, over which a release notifies the
// waiter that now has the lock.
type wakeup struct {
	rdb   redis.UniversalClient // nil if waiters are configured to poll
	start sync.Once
	ready chan struct{} // closed when Redis has first confirmed or refused the subscription
	mute  atomic.Bool   // the Redis user has no permission for the channels, so waiters poll

	mu      sync.Mutex
	waiters map[string]*attempt // by token
}

func newWakeup(rdb redis.UniversalClient) wakeup {
	return wakeup{rdb: rdb, ready: make(chan struct{}), waiters: make(map[string]*attempt)}
}

// news is a message to a waiter. The zero value makes it run the script again.
type news struct {
	fence   int64
	setUS   int64 // the clock of Redis at the handover
	claimMS int64 // TTL of the key after the handover
}

const (
	// pingAfter is how long the subscription may be silent before it is pinged. A dead
	// connection looks like one without messages.
	pingAfter = 3 * time.Second
	// pingTimeout is how long the reply to a ping may take.
	pingTimeout = time.Second
	// redialMax is the longest pause before another try to subscribe.
	redialMax = time.Second
	// refusedPause is the pause after Redis refused the subscription for lack of a
	// permission, which an operator may grant.
	refusedPause = 10 * time.Second
	// mutePoll is the polling interval without permission for the channels.
	mutePoll = 50 * time.Millisecond
)

// polls reports whether waiters poll.
func (m *Manager) polls() bool { return m.wake.rdb == nil || m.wake.mute.Load() }

// pollEvery is a waiter's polling interval; 0 if it listens. A waiter with a polling token
// gets no messages, even once its manager listens again.
func (m *Manager) pollEvery(a *attempt) time.Duration {
	if m.cfg.Poll == 0 && (m.wake.mute.Load() || strings.HasPrefix(a.token, pollingMark)) {
		// A waiter that was handed the lock finds out by polling.
		return max(time.Millisecond, min(mutePoll, m.cfg.ClaimTTL/4, m.cfg.Liveness/4))
	}
	return m.cfg.Poll
}

// subscribe starts the subscription for the first contended lock and waits until Redis has
// confirmed or refused it. After CallTimeout the waiter continues without it and relies on
// its keep-alive calls.
func (m *Manager) subscribe(ctx context.Context) {
	m.wake.start.Do(func() { m.work.Go(m.listen) })
	ctx, cancel := context.WithTimeout(ctx, m.cfg.CallTimeout)
	defer cancel()
	select {
	case <-m.wake.ready:
	case <-ctx.Done():
	case <-m.closing:
	}
}

// subscribed reports whether the subscription was confirmed or refused.
func (m *Manager) subscribed() bool {
	select {
	case <-m.wake.ready:
		return true
	default:
		return false
	}
}

// listen maintains the subscription until the manager ends. After a connection that worked
// it subscribes again at once, otherwise with growing pauses.
func (m *Manager) listen() {
	var next time.Duration
	for m.life.Err() == nil {
		if m.listenOnce() {
			next = 0
			continue
		}
		next = min(max(2*next, 10*time.Millisecond), redialMax)
		if m.wake.mute.Load() {
			next = refusedPause
		}
		wait(m.life, next)
	}
}

// listenOnce subscribes and delivers messages until the connection ends. It reports whether
// the subscription was confirmed.
func (m *Manager) listenOnce() (confirmed bool) {
	sub := m.wake.rdb.Subscribe(m.life, channelPrefix+m.id)
	// Closing is the only way to interrupt a blocking read. The error of closing a
	// connection that is discarded does not matter.
	closeSub := func() { _ = sub.Close() } //nolint:errcheck // see above
	defer closeSub()
	unhook := context.AfterFunc(m.life, closeSub)
	defer unhook()
	last := time.Now()
	var tested time.Time
	for {
		msg, err := sub.ReceiveTimeout(m.life, pingTimeout)
		now := time.Now()
		var netErr net.Error
		switch {
		case err == nil:
			last = now
		case errors.As(err, &netErr) && netErr.Timeout():
			switch {
			case tested.After(last):
				return confirmed // the ping got no reply
			case now.Sub(last) > pingAfter:
				tested = now
				_ = sub.Ping(m.life) //nolint:errcheck // a ping that failed gets no reply either
			}
			continue
		default:
			m.refused(err)
			return confirmed
		}
		switch msg := msg.(type) {
		case *redis.Subscription:
			if m.refused(m.publishes()) {
				return false
			}
			confirmed = true
			m.wake.mute.Store(false)
			m.wakeWaiters()
		case *redis.Message:
			m.deliver(msg.Payload)
		}
	}
}

// publishes returns the error if this manager's Redis user may not publish. Other processes
// most likely use the same user, and then no message would arrive.
func (m *Manager) publishes() error {
	ctx, cancel := m.cleanUp(m.life)
	defer cancel()
	return m.wake.rdb.Publish(ctx, channelPrefix+m.id, ".").Err()
}

// refused makes the waiters poll and reports err once if the Redis user lacks a permission.
func (m *Manager) refused(err error) bool {
	if !redis.HasErrorPrefix(err, "NOPERM") {
		return false
	}
	if !m.wake.mute.Swap(true) {
		m.cfg.Observer.CannotListen(err)
	}
	m.wakeWaiters()
	return true
}

// wakeWaiters makes every waiter run the script. It is called after each subscription,
// confirmed or refused, because messages published in between are lost.
func (m *Manager) wakeWaiters() {
	m.wake.mu.Lock()
	defer m.wake.mu.Unlock()
	if !m.subscribed() {
		close(m.wake.ready)
	}
	for _, a := range m.wake.waiters {
		a.notify(news{})
	}
}

// deliver passes a message "<token> <fence> <set at, us> <claim ms>" to its waiter. A waiter
// that has stopped waiting has been withdrawn from the queue, which also released the lock.
// "." only tests the permission to publish. Other messages are ignored.
func (m *Manager) deliver(payload string) {
	fields := strings.Fields(payload)
	if len(fields) != 4 {
		return
	}
	var n news
	for i, to := range []*int64{&n.fence, &n.setUS, &n.claimMS} {
		v, err := strconv.ParseInt(fields[i+1], 10, 64)
		if err != nil {
			return
		}
		*to = v
	}
	m.wake.mu.Lock()
	a := m.wake.waiters[fields[0]]
	m.wake.mu.Unlock()
	if a != nil {
		a.notify(n)
	}
}

func (m *Manager) removeWaiter(a *attempt) {
	if a.messages == nil {
		return // it was never added, and a running call may be changing its token
	}
	m.wake.mu.Lock()
	delete(m.wake.waiters, a.token)
	m.wake.mu.Unlock()
}
