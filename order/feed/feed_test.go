package feed

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/checkout"
	"flashsale/order/ordertest"
	"flashsale/order/shoptest"
	"flashsale/order/store"
	"flashsale/order/store/storetest"
	"flashsale/order/worker"
	"flashsale/queue"
)

// never is a pause longer than any test.
const never = time.Hour

// newFeed runs a feed until the test ends.
func newFeed(t *testing.T, cfg Config, change ...func(*Feed)) *Feed {
	t.Helper()
	if cfg.OnError == nil {
		cfg.OnError = func(err error) { t.Logf("reported %v", err) }
	}
	f := NewFeed(cfg)
	for _, fn := range change {
		fn(f)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("feed: %v", err)
			}
		case <-time.After(ordertest.Limit):
			t.Error("the feed did not end")
		}
	})
	return f
}

// reader follows one order as the API does.
type reader struct {
	t    *testing.T
	look func() (*order.Order, error)
	news chan struct{} // holds a token after wake
	seen int
	stop func()
}

func (f *Feed) mustFollow(t *testing.T, id, buyer string) *reader {
	t.Helper()
	r := &reader{t: t, news: make(chan struct{}, 1)}
	var err error
	if r.look, r.stop, err = f.Follow(id, buyer, func() { signal(r.news) }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.stop)
	return r
}

// next waits for a change.
func (r *reader) next(ctx context.Context) (order.Order, error) {
	for {
		if o, err := r.look(); err != nil {
			return order.Order{}, err
		} else if o != nil {
			return *o, nil
		}
		select {
		case <-r.news:
		case <-ctx.Done():
			return order.Order{}, context.Cause(ctx)
		}
	}
}

// upTo reads until the order has that status, and returns the statuses that were new.
func (r *reader) upTo(want order.Status) []order.Status {
	r.t.Helper()
	var states []order.Status
	for {
		o, err := r.next(await.Context(r.t))
		if err != nil {
			r.t.Fatalf("waiting for %s after %v: %v", want, states, err)
		}
		for _, e := range o.EventsAfter(r.seen) {
			states = append(states, e.Order.Status)
			r.seen = e.Number
		}
		if o.Status == want {
			return states
		}
	}
}

// subscribed waits until the feed receives changes. This feed does not poll, so a new
// stream of an order with a row gets the order only after the subscription.
func (f *Feed) subscribed(t *testing.T, s *store.Store) {
	t.Helper()
	name := "sub" + ordertest.RandomName(t)
	storetest.MustInsert(t, s, ordertest.NewItem(name, 1, 1))
	storetest.MustCommit(t, s, ordertest.Bought(name+"-order", name, "someone", "k", 1))
	f.mustFollow(t, name+"-order", "").upTo(order.StatusConfirmed)
}

// TestFeed_EveryTransition: each change of an order is delivered at once, by a feed that
// never polls.
func TestFeed_EveryTransition(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.Asking("", 9, 3, time.Second))
		release := storetest.HoldClock(s.Store) // until two orders are paid and cancelled
		s.Service.ChangeNotifier = checkout.NewChangeNotifier(rdb, s.CollectError)
		f := newFeed(t, Config{Store: s.Store, Redis: rdb, Orders: s.Service, Poll: never})
		f.subscribed(t, s.Store)
		refused := ordertest.Bought("refused-"+s.Item, s.Item, "x", "k", 10)
		ordertest.MustEnqueue(t, s.Queue, ordertest.Leased(refused))
		ids := map[order.Status]string{order.StatusRejected: refused.ID}
		readers := map[order.Status]*reader{}
		for _, want := range []order.Status{order.StatusExpired, order.StatusPaid, order.StatusCancelled} {
			ids[want] = s.MustPlace(s.Purchase(string(want), "k", 1, 0)).Order.ID
		}
		for want, id := range ids {
			readers[want] = f.mustFollow(t, id, "")
		}
		s.Work()
		for _, want := range []order.Status{order.StatusPaid, order.StatusCancelled} {
			if got := readers[want].upTo(order.StatusConfirmed); !slices.Equal(got, []order.Status{order.StatusQueued, order.StatusConfirmed}) {
				t.Errorf("%s, at first: %v", want, got)
			}
		}
		if _, err := s.Service.Pay(await.Context(t), ids[order.StatusPaid], ordertest.Money("psp", 1)); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Service.Cancel(await.Context(t), ids[order.StatusCancelled], order.Canceller{Admin: true}); err != nil {
			t.Fatal(err)
		}
		release()
		for want, last := range map[order.Status][]order.Status{
			order.StatusPaid:      {order.StatusPaid},
			order.StatusCancelled: {order.StatusCancelled},
			order.StatusRejected:  {order.StatusQueued, order.StatusRejected},
		} {
			if got := readers[want].upTo(want); !slices.Equal(got, last) {
				t.Errorf("%s: %v, want %v", want, got, last)
			}
		}
		got := readers[order.StatusExpired].upTo(order.StatusExpired)
		if !slices.Equal(got, []order.Status{order.StatusQueued, order.StatusConfirmed, order.StatusExpired}) {
			t.Errorf("expired: %v", got)
		}
	})
}

// TestFeed_DeadLetters: the rejection of an order that no worker could commit is delivered, too.
func TestFeed_DeadLetters(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 5, 5))
		f := newFeed(t, Config{Store: s.Store, Redis: rdb, Orders: s.Service, Poll: never})
		f.subscribed(t, s.Store)
		dead := s.MustPlace(s.Purchase("u", "k", 2, 0)).Order
		got, err := s.Queue.Dequeue(await.Context(t), 1)
		if err != nil || len(got.Tasks) != 1 {
			t.Fatal(got, err)
		}
		if _, err := s.Queue.Reject(await.Context(t), queue.Rejection{Task: got.Tasks[0], Dead: true}); err != nil {
			t.Fatal(err)
		}
		r := f.mustFollow(t, dead.ID, "u")
		storetest.SetClock(s.Store).Add(worker.DeadLetterAfter.Milliseconds() + 1000)
		shoptest.MustSweep(t, worker.NewSweeper(s.Fulfiller, worker.SweeperConfig{Dead: []worker.DeadLetters{s.Queue}}), worker.Swept{Rejected: 1})
		if got := r.upTo(order.StatusRejected); !slices.Equal(got, []order.Status{order.StatusQueued, order.StatusRejected}) {
			t.Errorf("swept: %v", got)
		}

		dead = s.MustPlace(s.Purchase("v", "k", 1, 0)).Order
		r = f.mustFollow(t, dead.ID, "v")
		s.Kill("the disk is on fire")
		b := s.Backlog()
		b.ChangeNotifier = checkout.NewChangeNotifier(rdb, s.CollectError)
		if _, err := b.Discard(await.Context(t), dead.ID); err != nil {
			t.Fatal(err)
		}
		if got := r.upTo(order.StatusRejected); !slices.Equal(got, []order.Status{order.StatusQueued, order.StatusRejected}) {
			t.Errorf("discarded: %v", got)
		}
	})
}

// TestFeed_MessageLost: a feed that receives no messages, because its Redis is unreachable,
// finds every change by polling.
func TestFeed_MessageLost(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	proxy := redistest.NewProxy(t, redistest.Embedded(t).Options().Addr)
	proxy.Refuse(true)
	rdb := redis.NewClient(redistest.Options(proxy.Addr()))
	t.Cleanup(func() { rdb.Close() }) //nolint:errcheck // it never had a connection
	f := newFeed(t, Config{Store: s, Redis: rdb, Orders: nowhere{}, Poll: 20 * time.Millisecond})
	storetest.MustInsert(t, s, ordertest.Asking("item", 9, 3, time.Hour))
	r := f.mustFollow(t, "o1", "u")
	storetest.MustCommit(t, s, ordertest.Bought("o1", "item", "u", "k", 1))
	if got := r.upTo(order.StatusConfirmed); !slices.Equal(got, []order.Status{order.StatusQueued, order.StatusConfirmed}) {
		t.Errorf("at first: %v", got)
	}
	if _, err := s.Pay(await.Context(t), "o1", ordertest.Money("psp", 1)); err != nil {
		t.Fatal(err)
	}
	if got := r.upTo(order.StatusPaid); !slices.Equal(got, []order.Status{order.StatusPaid}) {
		t.Errorf("then: %v", got)
	}
}

// nowhere is a Finder that finds nothing.
type nowhere struct{}

func (nowhere) Get(context.Context, string) (order.Order, error) {
	return order.Order{}, order.ErrNotFound
}

// TestFeed_Follow_Late: a new stream of an order that has other streams already gets the
// order's present state.
func TestFeed_Follow_Late(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	f := newFeed(t, Config{Store: s, Redis: redistest.Embedded(t), Orders: nowhere{}, Poll: 20 * time.Millisecond})
	storetest.MustInsert(t, s, ordertest.Asking("item", 9, 3, time.Hour))
	storetest.MustCommit(t, s, ordertest.Bought("o1", "item", "u", "k", 1))
	first := f.mustFollow(t, "o1", "u")
	first.upTo(order.StatusConfirmed)
	second := f.mustFollow(t, "o1", "u")
	if got := second.upTo(order.StatusConfirmed); !slices.Equal(got, []order.Status{order.StatusQueued, order.StatusConfirmed}) {
		t.Errorf("the second: %v", got)
	}
	first.stop()
	first.stop() // a second call has no effect
	if n := f.Streams(); n != 1 {
		t.Errorf("%d streams, want 1", n)
	}
}

func TestFeed_Follow_Err(t *testing.T) {
	t.Parallel()
	f := NewFeed(Config{MaxStreams: 3, MaxOwnStreams: 2})
	one := f.mustFollow(t, "o1", "u")
	f.mustFollow(t, "o1", "u")
	if _, _, err := f.Follow("o2", "u", nil); !errors.Is(err, ErrTooManyOwnStreams) {
		t.Errorf("a third of one buyer: %v", err)
	}
	shops := f.mustFollow(t, "o1", "")
	if _, _, err := f.Follow("o2", "v", nil); !errors.Is(err, ErrTooManyStreams) {
		t.Errorf("a fourth: %v", err)
	}
	one.stop()
	f.mustFollow(t, "o2", "u").stop()
	shops.stop()
	if err := f.Close(await.Context(t)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.Follow("o2", "v", nil); !errors.Is(err, ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
}

// TestFeed_Close: streams end with the feed, after they have returned earlier changes.
func TestFeed_Close(t *testing.T) {
	t.Parallel()
	f := NewFeed(Config{})
	a, b := f.mustFollow(t, "o1", "u"), f.mustFollow(t, "o2", "u")
	f.deliver(&order.Order{ID: "o1", Status: order.StatusPaid})
	for range 2 {
		if err := f.Close(await.Context(t)); err != nil {
			t.Fatal(err)
		}
	}
	if o, err := a.next(await.Context(t)); err != nil || o.Status != order.StatusPaid {
		t.Errorf("%+v, %v", o, err)
	}
	for _, r := range []*reader{a, b} {
		if _, err := r.next(await.Context(t)); !errors.Is(err, ErrClosed) {
			t.Errorf("%v, want ErrClosed", err)
		}
	}
}

// TestFeed_Wait: Wait waits for the streams, at most until ctx ends.
func TestFeed_Wait(t *testing.T) {
	t.Parallel()
	f := NewFeed(Config{})
	if err := f.Wait(await.Context(t)); err != nil {
		t.Errorf("without streams: %v", err)
	}
	a, b := f.mustFollow(t, "o1", "u"), f.mustFollow(t, "o1", "v")
	if err := f.Close(await.Context(t)); err != nil {
		t.Fatal(err)
	}
	a.stop()
	over, cancel := context.WithCancel(await.Context(t))
	cancel()
	if err := f.Wait(over); !errors.Is(err, context.Canceled) {
		t.Errorf("with a stream left: %v, want the end of the context", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- f.Wait(await.Context(t)) }()
	b.stop()
	if err := <-ended; err != nil {
		t.Errorf("after the last stream has stopped: %v", err)
	}
}

// TestFeed_Absent: the stream of a queued order continues; that of an order that does not
// exist ends.
func TestFeed_Absent(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 5, 5))
		queued := s.MustPlace(s.Purchase("u", "k", 1, 0)).Order
		asked := &counting{Finder: s.Service, calls: map[string]int{}}
		f := newFeed(t, Config{Store: s.Store, Redis: rdb, Orders: asked, Poll: 5 * time.Millisecond},
			func(f *Feed) { f.absentAfter = 10 * time.Millisecond })
		lost, waits := f.mustFollow(t, "lost", "u"), f.mustFollow(t, queued.ID, "u")
		if _, err := lost.next(await.Context(t)); !errors.Is(err, order.ErrNotFound) {
			t.Fatalf("%v, want ErrNotFound", err)
		}
		if n := asked.of("lost"); n < maxAbsent {
			t.Errorf("ended after %d searches", n)
		}
		before := asked.of(queued.ID)
		await.True(t, "another search for the queued order", func() bool { return asked.of(queued.ID) > before+2*maxAbsent })
		s.Work()
		waits.upTo(order.StatusConfirmed)
	})
}

// TestFeed_Seek_RedisAway: while Redis does not answer, each poll searches for one order
// and not for dozens, which would delay the streams.
func TestFeed_Seek_RedisAway(t *testing.T) {
	t.Parallel()
	asked := 0
	var heard []error
	f := NewFeed(Config{
		Orders:  finder(func() error { asked++; return inventory.ErrUnavailable }),
		OnError: func(err error) { heard = append(heard, err) },
	})
	f.absentAfter = 0
	for i := range 5 {
		f.mustFollow(t, fmt.Sprintf("o%d", i), "u")
	}
	f.search(await.Context(t)) // records since when they have no row
	f.search(await.Context(t))
	if asked != 1 || len(heard) != 1 || !errors.Is(heard[0], inventory.ErrUnavailable) {
		t.Errorf("searched for %d orders, reported %v", asked, heard)
	}
}

// finder is a Finder that fails.
type finder func() error

func (f finder) Get(context.Context, string) (order.Order, error) { return order.Order{}, f() }

// counting counts the calls of a Finder.
type counting struct {
	Finder
	mu    sync.Mutex
	calls map[string]int
}

func (c *counting) Get(ctx context.Context, id string) (order.Order, error) {
	c.mu.Lock()
	c.calls[id]++
	c.mu.Unlock()
	return c.Finder.Get(ctx, id)
}

func (c *counting) of(id string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls[id]
}

// TestFeed_ListensWhileWanted: a process without streams has no subscription.
func TestFeed_ListensWhileWanted(t *testing.T) {
	t.Parallel()
	rdb := redistest.Embedded(t)
	s := storetest.New(t)
	f := newFeed(t, Config{Store: s, Redis: rdb, Orders: nowhere{}, Poll: 10 * time.Millisecond})
	listeners := func() int64 {
		n, err := rdb.PubSubNumSub(await.Context(t), order.ChangedChannel).Result()
		if err != nil {
			t.Fatal(err)
		}
		return n[order.ChangedChannel]
	}
	if n := listeners(); n != 0 {
		t.Fatalf("%d listeners before the first stream", n)
	}
	for range 3 {
		r := f.mustFollow(t, "o1", "u")
		await.True(t, "a subscription", func() bool { return listeners() == 1 })
		r.stop()
		await.True(t, "its end", func() bool { return listeners() == 0 })
	}
}

// TestFeed_Crowd: thousands of streams get the final states of their orders, and afterwards
// the feed is empty.
func TestFeed_Crowd(t *testing.T) {
	t.Parallel()
	const n = 2000
	rdb := redistest.Embedded(t)
	s := storetest.New(t)
	f := newFeed(t, Config{Store: s, Redis: rdb, Orders: nowhere{}, MaxOwnStreams: 2})
	storetest.MustInsert(t, s, ordertest.Asking("item", n, 1, time.Hour))
	tasks := ordertest.Distinct("n", "item", n)
	var all sync.WaitGroup
	for i := range tasks {
		r := f.mustFollow(t, tasks[i].ID, tasks[i].UserID)
		all.Go(func() {
			defer r.stop()
			for o := (order.Order{}); o.Status != order.StatusCancelled; {
				var err error
				if o, err = r.next(await.Context(t)); err != nil {
					t.Errorf("order %s: %v", tasks[i].ID, err)
					return
				}
			}
		})
	}
	for from := 0; from < n; from += 500 {
		storetest.MustCommit(t, s, tasks[from:from+500]...)
	}
	if err := s.Writer().Exec("UPDATE orders SET status = 'cancelled'").Error; err != nil {
		t.Fatal(err)
	}
	checkout.NewChangeNotifier(rdb, func(err error) { t.Error(err) }).Notify(await.Context(t), order.TaskIDs(tasks)...)
	all.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.streams+len(f.followed)+len(f.owned) != 0 {
		t.Errorf("left behind: %d streams, %d orders, %d buyers", f.streams, len(f.followed), len(f.owned))
	}
}
