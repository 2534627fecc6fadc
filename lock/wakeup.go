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

// wakeup is the state of the one subscription of a manager, over which a
// release tells a waiter that the lock is its own.
type wakeup struct {
	rdb   redis.UniversalClient // nil where waiters are configured to poll
	start sync.Once
	ready chan struct{} // closed when Redis has first confirmed or refused the subscription
	mute  atomic.Bool   // the Redis user may not use the channels, so waiters poll

	mu      sync.Mutex
	waiters map[string]*attempt // by token
}

func newWakeup(rdb redis.UniversalClient) wakeup {
	return wakeup{rdb: rdb, ready: make(chan struct{}), waiters: make(map[string]*attempt)}
}

// news is what a waiter is told. The zero value asks it to try again.
type news struct {
	fence   int64
	setUS   int64 // the clock of Redis when the lock was handed over
	claimMS int64 // how long the lock waits to be claimed
}

const (
	// hearEvery is how long the subscription may be silent before it is tested.
	// A connection that a network forgot looks just like one without messages.
	hearEvery = 3 * time.Second
	// hearWithin is how long the answer to a test may take.
	hearWithin = time.Second
	// redialMax is the longest pause before a subscription is tried again.
	redialMax = time.Second
	// refusedPause is the pause after Redis refused the subscription because a
	// permission is missing, which an operator may grant meanwhile.
	refusedPause = 10 * time.Second
	// mutePoll is how often waiters ask where the user may not use the channels.
	mutePoll = 50 * time.Millisecond
)

// polls says that waiters ask for themselves.
func (m *Manager) polls() bool { return m.wake.rdb == nil || m.wake.mute.Load() }

// pollEvery is how often a waiter asks; 0 where it listens. One whose token says
// that it polls is sent no message, also once its manager listens again.
func (m *Manager) pollEvery(a *attempt) time.Duration {
	if m.cfg.Poll == 0 && (m.wake.mute.Load() || strings.HasPrefix(a.token, pollingMark)) {
		// A waiter that was handed the lock learns it by asking.
		return max(time.Millisecond, min(mutePoll, m.cfg.ClaimTTL/4, m.cfg.Liveness/4))
	}
	return m.cfg.Poll
}

// subscribe starts the subscription if this is the first contended lock, and
// waits until Redis has confirmed or refused it. When that takes longer than a
// call may, the waiter goes on without, at the pace of its signs of life.
func (m *Manager) subscribe(ctx context.Context) {
	m.startListening()
	timer := time.NewTimer(m.cfg.CallTimeout)
	defer timer.Stop()
	select {
	case <-m.wake.ready:
	case <-timer.C:
	case <-ctx.Done():
	case <-m.closing:
	}
}

// startListening starts the subscription, once, if waiters listen. The caller is
// counted itself, so Close cannot have got past it.
func (m *Manager) startListening() {
	if m.wake.rdb != nil {
		m.wake.start.Do(func() { m.work.Go(m.listen) })
	}
}

// subscribed says whether the subscription was confirmed or refused.
func (m *Manager) subscribed() bool {
	select {
	case <-m.wake.ready:
		return true
	default:
		return false
	}
}

// listen keeps the subscription up until the manager ends. After a connection
// that worked it subscribes again at once, otherwise with growing pauses.
func (m *Manager) listen() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var pause time.Duration
	for m.life.Err() == nil {
		if m.listenOnce() {
			pause = 0
			continue
		}
		pause = min(max(2*pause, 10*time.Millisecond), redialMax)
		if m.wake.mute.Load() {
			pause = refusedPause
		}
		timer.Reset(pause)
		select {
		case <-timer.C:
		case <-m.life.Done():
		}
	}
}

// listenOnce subscribes and passes on messages until the connection ends. It
// says whether the subscription was confirmed.
func (m *Manager) listenOnce() (confirmed bool) {
	sub := m.wake.rdb.Subscribe(m.life, channelPrefix+m.id)
	// Closing is the only way to interrupt a read that waits; its error, on a
	// connection that is being thrown away, tells nothing.
	closeSub := func() { _ = sub.Close() } //nolint:errcheck // see above
	defer closeSub()
	unhook := context.AfterFunc(m.life, closeSub)
	defer unhook()
	heard := time.Now()
	var tested time.Time
	for {
		msg, err := sub.ReceiveTimeout(m.life, hearWithin)
		now := time.Now()
		var netErr net.Error
		switch {
		case err == nil:
			heard = now
		case errors.As(err, &netErr) && netErr.Timeout():
			switch {
			case tested.After(heard):
				return confirmed // the test was not answered
			case now.Sub(heard) > hearEvery:
				tested = now
				if sub.Ping(m.life) != nil {
					return confirmed
				}
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
			m.everyoneAsks()
		case *redis.Message:
			m.deliver(msg.Payload)
		}
	}
}

// publishes returns why this manager's Redis user may not publish. Other
// processes most likely run as the same user, and then no message would come.
func (m *Manager) publishes() error {
	ctx, cancel := m.cleanUp(m.life)
	defer cancel()
	return m.wake.rdb.Publish(ctx, channelPrefix+m.id, ".").Err()
}

// refused makes the waiters poll if err says that the Redis user lacks a
// permission, and reports that once.
func (m *Manager) refused(err error) bool {
	if !redis.HasErrorPrefix(err, "NOPERM") {
		return false
	}
	if !m.wake.mute.Swap(true) {
		m.cfg.Observer.cannotListen(err)
	}
	m.everyoneAsks()
	return true
}

// everyoneAsks is called after each subscription, and after a refused one.
// Messages published while there was none are lost, so every waiter asks.
func (m *Manager) everyoneAsks() {
	m.wake.mu.Lock()
	defer m.wake.mu.Unlock()
	if !m.subscribed() {
		close(m.wake.ready)
	}
	for _, a := range m.wake.waiters {
		a.tell(news{})
	}
}

// deliver passes a message "<token> <fence> <set at, us> <claim ms>" on to its
// waiter. One that is waiting no more has been withdrawn from the queue, and
// gave back the lock with that. "! <token> <reason>" tells a holder that its
// lock was taken by force, and "." only that the subscription stands. A message
// of another form is not ours.
func (m *Manager) deliver(payload string) {
	if forced, ok := strings.CutPrefix(payload, "! "); ok {
		token, reason, _ := strings.Cut(forced, " ")
		m.takenByForce(token, reason)
		return
	}
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
		a.tell(n)
	}
}

// takenByForce ends the lock that was held with this token.
func (m *Manager) takenByForce(token, reason string) {
	for _, h := range m.snapshot() {
		if h.token == token {
			h.lose(taken(reason))
			return
		}
	}
}

func (m *Manager) addWaiter(a *attempt) {
	m.wake.mu.Lock()
	m.wake.waiters[a.token] = a
	m.wake.mu.Unlock()
}

func (m *Manager) removeWaiter(a *attempt) {
	if a.told == nil {
		return // it never was one, and a call under way may be giving it a new token
	}
	m.wake.mu.Lock()
	delete(m.wake.waiters, a.token)
	m.wake.mu.Unlock()
}
