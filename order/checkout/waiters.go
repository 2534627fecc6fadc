package checkout

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/subscription"
	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/store"
)

// Waiters are the requests of one API process that wait for their order's
// commit. Workers find the process by its origin, a random name made at start.
type Waiters struct {
	origin string
	shards [waiterShards]waiterShard
}

const waiterShards = 64

type waiterShard struct {
	mu sync.Mutex
	m  map[string]*ticket
}

// ticket is the wait of one request.
type ticket struct {
	// settled has capacity for every event of the wait: the purchase's result, a late
	// acceptance, and the commit.
	settled chan settlement
}

// settlement is an event that ends a wait.
type settlement struct {
	outcome inventory.Outcome
	commit  bool
	notice  order.Notice // the committed result
	at      time.Time    // of the commit, by this host's clock; zero if unknown
}

// NewWaiters returns an empty set with a fresh origin.
func NewWaiters() *Waiters {
	var b [6]byte
	// crypto/rand.Read never returns an error; it ends the program instead.
	_, _ = rand.Read(b[:])
	w := &Waiters{origin: hex.EncodeToString(b[:])}
	for i := range w.shards {
		w.shards[i].m = make(map[string]*ticket)
	}
	return w
}

// Origin identifies this process to the workers, and begins the request ids that it generates.
func (w *Waiters) Origin() string { return w.origin }

// shard selects by the whole id: its end is the order's place in a batch, and most of the rest
// is the same for all orders of a batch.
func (w *Waiters) shard(id string) *waiterShard {
	var h uint
	for i := range len(id) {
		h = h*31 + uint(id[i])
	}
	return &w.shards[h%waiterShards]
}

func (w *Waiters) add(id string, t *ticket) {
	s := w.shard(id)
	s.mu.Lock()
	s.m[id] = t
	s.mu.Unlock()
}

func (w *Waiters) remove(id string) {
	s := w.shard(id)
	s.mu.Lock()
	delete(s.m, id)
	s.mu.Unlock()
}

// Settle notifies the waiting request, if it still waits. at is when the order was committed, by
// this host's clock; zero if unknown.
func (w *Waiters) Settle(n order.Notice, at time.Time) {
	s := w.shard(n.ID)
	s.mu.Lock()
	t := s.m[n.ID]
	delete(s.m, n.ID)
	s.mu.Unlock()
	if t != nil {
		t.settled <- settlement{commit: true, notice: n, at: at}
	}
}

// ids lists the orders that requests wait for. The API's limit of requests bounds their
// number.
func (w *Waiters) ids() []string {
	var out []string
	for i := range w.shards {
		s := &w.shards[i]
		s.mu.Lock()
		for id := range s.m {
			out = append(out, id)
		}
		s.mu.Unlock()
	}
	return out
}

// Listen receives the workers' messages until ctx ends. After each new subscription it
// reads from the database what was committed before.
func (w *Waiters) Listen(ctx context.Context, rdb redis.UniversalClient, store *store.Store, onError func(error)) error {
	l := subscription.Listener{
		Redis: rdb, Channels: []string{order.ChannelOf(w.origin)}, Name: "commits",
		OnSubscribed: func() error { return w.catchUp(ctx, store) },
		OnMessage: func(message string) {
			if err := w.receive(message, store.Now); err != nil {
				onError(err)
			}
		},
		OnError: onError,
	}
	l.Run(ctx)
	return nil
}

// receive settles the orders of a message. now is the shop's clock.
func (w *Waiters) receive(message string, now func() time.Time) error {
	var micros int64 // the time that at is for
	var at time.Time
	return order.ParseNotices(message, func(n order.Notice) {
		if n.CommittedAt != micros {
			// All notices of a message are from one commit.
			micros, at = n.CommittedAt, time.Now().Add(-now().Sub(time.UnixMicro(n.CommittedAt)))
		}
		w.Settle(n, at)
	})
}

// catchUp settles the orders whose message was published before the subscription.
func (w *Waiters) catchUp(ctx context.Context, store *store.Store) error {
	ids := w.ids()
	for len(ids) > 0 {
		n := min(len(ids), 256)
		found, err := store.Settled(ctx, ids[:n])
		if err != nil {
			return fmt.Errorf("catch up: %w", err)
		}
		for _, f := range found {
			w.Settle(f, time.Time{})
		}
		ids = ids[n:]
	}
	return nil
}
