// Package breaker keeps an outage of Redis cheap: after a few failures in a row a
// client's calls are refused at once, instead of each waiting out its time-out and
// holding a connection meanwhile, until a probe finds that Redis answers again.
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

// ErrOpen says that a call was refused because Redis has not answered of late.
// Nothing of it was sent: it is a definite failure, and no unknown outcome.
var ErrOpen = errors.New("breaker: redis is away, the call was not sent")

// errSentBefore takes the place of ErrOpen where an earlier try of the same call
// was sent, so that its outcome is unknown.
var errSentBefore = errors.New("breaker: redis is away, and an earlier try of the call was sent")

// Config configures Breakers. A zero field means its default.
type Config struct {
	// Failures is how many calls in a row have to fail. Default 3.
	Failures int
	// Span is how long Redis must have failed: that many connections may be reset
	// in one instant, and work again in the next. Default 50 ms.
	Span time.Duration
	// Patience is how long a call has to be without an answer for its end, by
	// whoever's deadline, to count as a failure. Default 500 ms.
	Patience time.Duration
	// Pause is the time from opening, and from a probe that failed, to the next
	// probe. Default 250 ms.
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

// Breakers are the circuit breakers of one client: one, or on a cluster one for
// each node, so that a node which is away does not cut off the others.
type Breakers struct {
	cfg     Config
	open    atomic.Int64
	refused atomic.Int64
}

// New returns Breakers. They need no closing.
func New(cfg Config) *Breakers { return &Breakers{cfg: cfg.withDefaults()} }

// Open is how many breakers refuse calls at present. A cluster's node that left
// the cluster while its breaker was open stays counted.
func (s *Breakers) Open() int64 { return s.open.Load() }

// Refused is how many calls were refused so far; a pipeline is one.
func (s *Breakers) Refused() int64 { return s.refused.Load() }

// Guard puts a breaker in front of a client. It must be called before the
// client's first call.
func (s *Breakers) Guard(rdb *redis.Client) {
	rdb.AddHook(newNode(s, rdb.Options()))
}

// GuardCluster puts a breaker in front of each node that the client comes to
// know. It must be called before the client's first call.
func (s *Breakers) GuardCluster(rdb *redis.ClusterClient) {
	rdb.OnNewNode(s.Guard)
	// The cluster's client repeats a call on its own. What its last try met says
	// nothing of the tries before.
	rdb.AddHook(witness{})
}

// node is the breaker of one server. What fails is counted, and the state kept,
// by gobreaker; the calls themselves are never its probes. For one, a caller would
// pay with a time-out. For another, the pool's connections may all be dead when the
// server is back, and each would cost a probe.
type node struct {
	set *Breakers
	cb  *gobreaker.CircuitBreaker[struct{}]
	// closed is the state as the calls ask for it.
	closed  atomic.Bool
	probing atomic.Bool
	// since is when the present row of failures began, in Unix nanoseconds; 0: none.
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

// changed hears of every change of the state, one at a time.
func (n *node) changed(_ string, from, to gobreaker.State) {
	n.since.Store(0)
	n.closed.Store(to == gobreaker.StateClosed)
	switch {
	case from == gobreaker.StateClosed:
		n.set.open.Add(1)
	case to == gobreaker.StateClosed:
		n.set.open.Add(-1)
	}
}

// call lets a call through, or refuses it with ErrOpen.
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
		return n.refuse(ctx) // it opened in between
	}
	return result
}

// judge says what the end of a call tells of the server, for gobreaker, and
// remembers when a row of failures began.
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
		// Who waits for an event, or is in a hurry, has not found Redis silent.
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

// refuse answers in the server's place. Who is refused sees to it that the server
// is probed: so nothing runs in the background while nobody asks.
func (n *node) refuse(ctx context.Context) error {
	n.set.refused.Add(1)
	if n.cb.State() == gobreaker.StateHalfOpen && n.probing.CompareAndSwap(false, true) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), n.set.cfg.Probe)
		go func() {
			defer n.probing.Store(false)
			defer cancel()
			// A refusal only says that another probe was quicker.
			_, _ = n.cb.Execute(func() (struct{}, error) { return struct{}{}, n.probe(ctx) }) //nolint:errcheck // the state tells what came of it
		}()
	}
	return ErrOpen
}

// probe asks the server for any sign of life, on a connection of its own. An error
// that the server answers with is one: it refuses what it cannot do, at once and by
// itself.
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
