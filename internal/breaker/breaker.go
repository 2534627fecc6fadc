// Package breaker limits the cost of a Redis outage. After a few consecutive failures it
// refuses a client's calls immediately, instead of letting each hold a connection until its
// timeout. A probe closes the breaker when Redis answers again.
package breaker

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/sony/gobreaker/v2"
)

// ErrOpen means that a call was refused because Redis has not answered recently. Nothing was
// sent, so this is a definite failure.
var ErrOpen = errors.New("breaker: redis does not answer, the call was not sent")

// ErrSentBefore replaces ErrOpen if an earlier attempt of the same call was sent, so that the
// outcome is unknown.
var ErrSentBefore = errors.New("breaker: redis does not answer, and an earlier attempt of the call was sent")

// Config configures Breakers. A zero field selects its default.
type Config struct {
	// Failures is the number of consecutive failed calls that opens the breaker. Default 3.
	Failures int
	// Span is the minimum time from the first to the last of these failures. Many connections
	// may be reset at one instant and work again at the next. Default 50 ms.
	Span time.Duration
	// Patience is the time without an answer from which a call that times out counts as a
	// failure, whether the deadline is the caller's or the client's. Default 500 ms.
	Patience time.Duration
	// Pause is the time to the next probe after opening and after a failed probe. Default 250
	// ms.
	Pause time.Duration
	// Probe bounds one probe. Default 1 s.
	Probe time.Duration
}

func (c Config) withDefaults() Config {
	if c.Failures == 0 {
		c.Failures = 3
	}
	for _, f := range []struct {
		v   *time.Duration
		def time.Duration
	}{
		{&c.Span, 50 * time.Millisecond},
		{&c.Patience, 500 * time.Millisecond},
		{&c.Pause, 250 * time.Millisecond},
		{&c.Probe, time.Second},
	} {
		if *f.v == 0 {
			*f.v = f.def
		}
	}
	return c
}

// Breakers are the circuit breakers of one client. A cluster client has one for each node, so
// that an unavailable node does not block calls to the others.
type Breakers struct {
	cfg     Config
	open    atomic.Int64
	refused atomic.Int64
}

// New returns Breakers. They do not need to be closed.
func New(cfg Config) *Breakers { return &Breakers{cfg: cfg.withDefaults()} }

// Open returns the number of breakers that refuse calls now. A cluster node that leaves the
// cluster while its breaker is open stays counted.
func (s *Breakers) Open() int64 { return s.open.Load() }

// Refused returns the number of calls refused so far. A pipeline counts as one.
func (s *Breakers) Refused() int64 { return s.refused.Load() }

// Guard adds a breaker to a client. It must be called before the client's first call.
func (s *Breakers) Guard(rdb *redis.Client) {
	rdb.AddHook(newNode(s, rdb.Options()))
}

// GuardCluster adds a breaker to each node that the client discovers. It must be called before
// the client's first call.
func (s *Breakers) GuardCluster(rdb *redis.ClusterClient) {
	rdb.OnNewNode(s.Guard)
	// The cluster client retries a call on its own. The error of its last attempt does not show
	// whether an earlier attempt was sent.
	rdb.AddHook(witness{})
}

// node is the breaker of one server. gobreaker counts the failures and keeps the state. Probes
// are separate from calls: a call used as a probe would make its caller wait for a timeout, and
// each dead connection in the pool of a recovered server would fail a probe.
type node struct {
	set *Breakers
	cb  *gobreaker.CircuitBreaker[struct{}]
	// closed is a copy of the state that calls read.
	closed  atomic.Bool
	probing atomic.Bool
	// since is the time of the first of the current consecutive failures, in Unix nanoseconds;
	// 0: none.
	since atomic.Int64
	dial  func(ctx context.Context) (net.Conn, error)
}

func newNode(s *Breakers, o *redis.Options) *node {
	n := &node{set: s}
	n.closed.Store(true)
	n.dial = func(ctx context.Context) (net.Conn, error) { return o.Dialer(ctx, o.Network, o.Addr) }
	n.cb = gobreaker.NewCircuitBreaker[struct{}](gobreaker.Settings{
		MaxRequests:   1,
		Timeout:       s.cfg.Pause,
		ReadyToTrip:   n.trips,
		OnStateChange: n.changed,
		IsExcluded:    func(err error) bool { return errors.Is(err, errNoSign) },
	})
	return n
}

// trips decides, after each failure, whether the breaker opens.
func (n *node) trips(c gobreaker.Counts) bool {
	if int64(c.ConsecutiveFailures) < int64(n.set.cfg.Failures) {
		return false
	}
	since := n.since.Load()
	return since != 0 && time.Now().UnixNano()-since >= int64(n.set.cfg.Span)
}

// changed handles a change of the state. gobreaker does not call it concurrently.
func (n *node) changed(_ string, from, to gobreaker.State) {
	n.since.Store(0)
	switch {
	case from == gobreaker.StateClosed:
		n.set.open.Add(1)
	case to == gobreaker.StateClosed:
		n.set.open.Add(-1)
	}
	// Last, so that Open already counts a state that a caller has seen.
	n.closed.Store(to == gobreaker.StateClosed)
}

// call sends a call or refuses it with ErrOpen.
func (n *node) call(ctx context.Context, blocks bool, send func() error) error {
	if !n.closed.Load() {
		return n.refuse(ctx)
	}
	var result error
	_, err := n.cb.Execute(func() (struct{}, error) {
		start := time.Now()
		result = send()
		return struct{}{}, n.judge(result, blocks, start)
	})
	if errors.Is(err, gobreaker.ErrOpenState) || errors.Is(err, gobreaker.ErrTooManyRequests) {
		return n.refuse(ctx) // it opened in the meantime
	}
	return result
}

// judge converts the result of a call to the error that gobreaker counts, and records the time
// of the first failure.
func (n *node) judge(result error, blocks bool, start time.Time) error {
	sign := signOf(result)
	if sign == nil {
		if n.since.Load() != 0 {
			n.since.Store(0)
		}
		return nil
	}
	begun := time.Now()
	if errors.Is(sign, errSilence) {
		// A blocking command or a short deadline does not show that Redis is silent.
		if blocks || begun.Sub(start) < n.set.cfg.Patience {
			return errNoSign
		}
		begun = start
	}
	if !errors.Is(sign, errNoSign) {
		n.since.CompareAndSwap(0, begun.UnixNano())
	}
	return sign
}

// refuse returns ErrOpen and starts a probe if one is due. Refused calls start the probes so
// that nothing runs in the background while there are no calls.
func (n *node) refuse(ctx context.Context) error {
	n.set.refused.Add(1)
	if n.cb.State() == gobreaker.StateHalfOpen && n.probing.CompareAndSwap(false, true) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), n.set.cfg.Probe)
		go func() {
			defer n.probing.Store(false)
			defer cancel()
			// It is refused if another probe was faster.
			_, _ = n.cb.Execute(func() (struct{}, error) { return struct{}{}, n.probe(ctx) }) //nolint:errcheck // the state tells what came of it
		}()
	}
	return ErrOpen
}

// probe sends a PING on a connection of its own. Any answer shows that the server is up,
// including an error.
func (n *node) probe(ctx context.Context) error {
	conn, err := n.dial(ctx)
	if err != nil {
		return fmt.Errorf("probe redis: %w", err)
	}
	defer func() { _ = conn.Close() }() //nolint:errcheck // the answer has been read, or none came
	if end, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(end); err != nil {
			return fmt.Errorf("probe redis: %w", err)
		}
	}
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return fmt.Errorf("probe redis: %w", err)
	}
	if _, err := bufio.NewReaderSize(conn, 256).ReadSlice('\n'); err != nil && !errors.Is(err, bufio.ErrBufferFull) {
		return fmt.Errorf("probe redis: %w", err)
	}
	return nil
}
