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
	rdb   redis.UniversalClient // nil where waiters poll
	start sync.Once
	ready chan struct{} // closed when the subscription was confirmed first

	mu      sync.Mutex
	waiters map[string]*attempt // by token

	born  time.Time
	heard atomic.Int64 // when the subscription last showed that it stands, ns since born
	asked atomic.Int64 // when a script last published to it for that purpose
}

func newWakeup(rdb redis.UniversalClient) wakeup {
	return wakeup{rdb: rdb, born: time.Now(), ready: make(chan struct{}), waiters: make(map[string]*attempt)}
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
)

// wantsEcho says whether a waiter's next call, which shows that it is alive,
// should also test the subscription, so that waiting needs no other command. One
// of them at a time does.
func (w *wakeup) wantsEcho(now time.Time) bool {
	heard, asked := w.heard.Load(), w.asked.Load()
	return int64(now.Sub(w.born))-heard > int64(hearEvery) && asked <= heard
}

// echoed notes that a script, sent at that time, has published to us.
func (w *wakeup) echoed(at time.Time) { w.asked.Store(int64(at.Sub(w.born))) }

// deaf says that a test was not answered in time. ping says that the
// subscription was silent for long and that no waiter is there to test it.
func (w *wakeup) deaf(now time.Time) (deaf, ping bool) {
	heard, asked := w.heard.Load(), w.asked.Load()
	if asked > heard {
		return int64(now.Sub(w.born))-asked > int64(hearWithin), false
	}
	w.mu.Lock()
	waiters := len(w.waiters)
	w.mu.Unlock()
	return false, waiters == 0 && int64(now.Sub(w.born))-heard > int64(hearEvery)
}

// polls says that waiters ask for themselves.
func (m *Manager) polls() bool { return m.wake.rdb == nil }

// subscribe starts the subscription if this is the first contended lock, and
// waits until Redis has confirmed it. When that takes longer than a call may,
// the waiter goes on without, at the pace of its signs of life.
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
	if !m.polls() {
		m.wake.start.Do(func() { m.work.Go(m.listen) })
	}
}

// subscribed says whether the subscription was confirmed.
func (m *Manager) subscribed() bool {
	select {
	case <-m.wake.ready:
		return true
	default:
		return false
	}
}

// listen keeps the subscription up until the manager ends. After a connection
// that worked it subscribes anew at once, otherwise with growing pauses.
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
	for {
		msg, err := sub.ReceiveTimeout(m.life, hearWithin)
		now := time.Now()
		var netErr net.Error
		switch {
		case err == nil:
			m.wake.heard.Store(int64(now.Sub(m.wake.born)))
		case errors.As(err, &netErr) && netErr.Timeout():
			deaf, ping := m.wake.deaf(now)
			if ping {
				m.wake.echoed(now)
				deaf = sub.Ping(m.life) != nil
			}
			if deaf {
				return confirmed
			}
			continue
		default:
			return confirmed
		}
		switch msg := msg.(type) {
		case *redis.Subscription:
			confirmed = true
			m.confirmed()
		case *redis.Message:
			m.deliver(msg.Payload)
		}
	}
}

// confirmed is called after each subscription. Whatever was published while
// there was none is lost, so every waiter looks for itself.
func (m *Manager) confirmed() {
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
