package inventory

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/pause"
	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

func released(requests ...*Request) []Released {
	out := make([]Released, len(requests))
	for i, r := range requests {
		out[i] = Released{Buyer: r.Buyer, IdempotencyKey: r.IdempotencyKey, OrderID: r.OrderID, Quantity: r.Quantity}
	}
	return out
}

// give releases orders and records for the audit which ones are back.
func (s *shop) give(t testing.TB, requests ...*Request) []ReleaseStatus {
	t.Helper()
	status, _, err := Release(await.Context(t), s.rdb, 1, s.source.epochNow(), s.item, released(requests...))
	if err != nil {
		t.Fatal(err)
	}
	for i, st := range status {
		if st.Settled() {
			s.given[requests[i].OrderID] = true
		}
	}
	return status
}

func (s *stored) epochNow() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.epoch
}

func wantStatus(t testing.TB, got []ReleaseStatus, want ...ReleaseStatus) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("released with %v, want %v", got, want)
	}
}

// commit moves the queued orders to the database.
func (s *shop) commit(t testing.TB) {
	t.Helper()
	for _, o := range s.take(t, 500) {
		s.source.set(func(src *stored) {
			src.past[s.item] = append(src.past[s.item], Holding{
				Buyer: o.buyer, IdempotencyKey: o.key, OrderID: o.id, Quantity: o.quantity, Counts: true,
			})
		})
	}
}

// cancel closes an order in the database, before it is released.
func (s *shop) cancel(id string) {
	s.source.set(func(src *stored) {
		for i := range src.past[s.item] {
			if h := &src.past[s.item][i]; h.OrderID == id {
				h.Counts = false
			}
		}
	})
}

// TestRelease_Once releases each order from many goroutines concurrently, on its own and
// together with others.
func TestRelease_Once(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		const orders, callers = 12, 100
		s := newShop(t, rdb, open(2*orders+5, 4), 0)
		v := s.inventory(t, Config{})
		var requests []*Request
		for i := range orders {
			r := s.request(fmt.Sprintf("u%d", i/2), fmt.Sprintf("k%d", i), 2)
			mustBuy(t, v, r)
			requests = append(requests, r)
		}
		var mu sync.Mutex
		count := map[string]map[ReleaseStatus]int{}
		var wg sync.WaitGroup
		start := make(chan struct{})
		ctx := await.Context(t)
		for c := range callers {
			mine := released(requests...)
			if c%2 == 0 {
				mine = mine[c/2%orders : c/2%orders+1]
			}
			wg.Go(func() {
				<-start
				status, _, err := Release(ctx, rdb, 1, 1, s.item, mine)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				for i, st := range status {
					id := mine[i].OrderID
					if count[id] == nil {
						count[id] = map[ReleaseStatus]int{}
					}
					count[id][st]++
				}
			})
		}
		close(start)
		wg.Wait()
		for _, r := range requests {
			n := count[r.OrderID]
			if n[ReleaseDone] != 1 || n[ReleaseRepeated] < callers/2-1 || len(n) != 2 {
				t.Errorf("order %s was released with %v, want done once and done before else", r.OrderID, n)
			}
		}
		for _, st := range s.give(t, requests...) {
			if st != ReleaseRepeated {
				t.Errorf("a repeat: %v", st)
			}
		}
		st := s.audit(t)
		if st.left(t) != 2*orders+5 || len(st.buyers) != 0 {
			t.Errorf("%d left, buyers hold %v; want %d and nobody", st.left(t), st.buyers, 2*orders+5)
		}
	})
}

// TestRelease_Refused5000: refused purchases leave nothing behind that could keep a returned
// unit from being sold.
func TestRelease_Refused5000(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		s := newShop(t, rdb, open(1, 1), 0)
		// Without marks: each refusal is the script's.
		v := s.inventory(t, Config{MarkLife: time.Nanosecond})
		winner := s.request("winner", "k", 1)
		mustBuy(t, v, winner)
		requests := make([]*Request, 5000)
		for i := range requests {
			requests[i] = s.request(fmt.Sprintf("u%d", i), "k", 1)
		}
		wantTally(t, outcomes(t, v, requests), map[string]int{ErrSoldOut.Error(): len(requests)})
		wantStatus(t, s.give(t, winner), ReleaseDone)
		if left := s.audit(t); left.left(t) != 1 {
			t.Errorf("left is %d, want 1", left.left(t))
		}
		wantTally(t, outcomes(t, v, requests[:50]), map[string]int{"accepted": 1, ErrSoldOut.Error(): 49})
		s.audit(t)
	})
}

func TestRelease_Limit(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		s := newShop(t, rdb, open(10, 3), 0)
		v := s.inventory(t, Config{})
		two, one := s.request("u", "two", 2), s.request("u", "one", 1)
		mustBuy(t, v, two)
		mustBuy(t, v, one)
		mustRefuse(t, v, s.request("u", "more", 1), ErrUserLimit)
		wantStatus(t, s.give(t, two), ReleaseDone)
		mustRefuse(t, v, s.request("u", "three", 3), ErrUserLimit)
		mustBuy(t, v, s.request("u", "again", 2))
		mustRefuse(t, v, s.request("u", "more", 1), ErrUserLimit)
		// A released key stays in use, and still returns its order.
		if o := buy(t, v, s.request("u", "two", 2)); o != (Outcome{ReplayOf: two.OrderID}) {
			t.Errorf("replay of a released order: %+v, want %s", o, two.OrderID)
		}
		mustRefuse(t, v, s.request("u", "two", 1), ErrKeyReused)
		if st := s.audit(t); st.left(t) != 7 {
			t.Errorf("left is %d, want 7", st.left(t))
		}
	})
}

// TestRelease_NotLoaded: a missing sale is not touched, and a later load decides whether the
// order still has to be released.
func TestRelease_NotLoaded(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		k := keys{1}
		for name, strike := range map[string]func(t *testing.T, s *shop){
			"SaleMissing": func(t *testing.T, s *shop) {
				if err := Invalidate(await.Context(t), rdb, 1, []string{s.item}); err != nil {
					t.Fatal(err)
				}
			},
			"LeftMissing": func(t *testing.T, s *shop) {
				if err := rdb.HDel(await.Context(t), k.sale(s.item), "left").Err(); err != nil {
					t.Fatal(err)
				}
			},
			"VersionMissing": func(t *testing.T, s *shop) {
				if err := rdb.HDel(await.Context(t), k.sale(s.item), "version").Err(); err != nil {
					t.Fatal(err)
				}
			},
			"OtherEpoch": func(_ *testing.T, s *shop) { s.source.set(func(src *stored) { src.epoch = 2 }) },
			"KeyMissing": func(t *testing.T, s *shop) {
				if err := rdb.Del(await.Context(t), k.idempotency(s.item), k.buyers(s.item)).Err(); err != nil {
					t.Fatal(err)
				}
			},
			"EverythingMissing": func(t *testing.T, s *shop) {
				if err := rdb.Del(await.Context(t), k.sale(s.item), k.idempotency(s.item), k.buyers(s.item)).Err(); err != nil {
					t.Fatal(err)
				}
			},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s := newShop(t, rdb, open(10, 2), 0)
				v := s.inventory(t, Config{})
				before, after := s.request("a", "k", 2), s.request("b", "k", 1)
				mustBuy(t, v, before)
				mustBuy(t, v, after)
				s.commit(t)
				strike(t, s)
				was := s.state(t)
				s.cancel(before.OrderID)
				wantStatus(t, s.give(t, before, after), ReleaseNotLoaded, ReleaseNotLoaded)
				same(t, was, s.state(t))
				// This load finds one order released; the other is released after it.
				if err := v.Open(await.Context(t), s.item); err != nil {
					t.Fatal(err)
				}
				if st := s.state(t); st.left(t) != 9 {
					t.Errorf("left is %d after the load, want 9", st.left(t))
				}
				wantStatus(t, s.give(t, before, after), ReleaseRepeated, ReleaseDone)
				if st := s.state(t); st.left(t) != 10 || len(st.buyers) != 0 {
					t.Errorf("%d left, buyers hold %v; want 10 and nobody", st.left(t), st.buyers)
				}
			})
		}
	})
}

// TestRelease_Foreign: a key that belongs to another order is not touched.
func TestRelease_Foreign(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		s := newShop(t, rdb, open(10, 5), 0)
		v := s.inventory(t, Config{})
		r := s.request("u", "k", 2)
		mustBuy(t, v, r)
		before := s.state(t)
		id, quantity, part := *r, *r, *r
		id.OrderID = "another"
		quantity.Quantity = 1
		part.OrderID = r.OrderID[:len(r.OrderID)-1]
		wantStatus(t, s.give(t, &id, &quantity, &part), ReleaseForeign, ReleaseForeign, ReleaseForeign)
		same(t, before, s.state(t))
		wantStatus(t, s.give(t, r, &id, &quantity), ReleaseDone, ReleaseForeign, ReleaseForeign)
		wantStatus(t, s.give(t, &id, &quantity, r), ReleaseForeign, ReleaseForeign, ReleaseRepeated)
		s.audit(t)
	})
}

// TestRelease_Pages releases more orders than one script carries, some twice.
func TestRelease_Pages(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		for _, n := range []int{0, 1, releasePage - 1, releasePage, releasePage + 1, 2*releasePage + 50} {
			t.Run(fmt.Sprint(n), func(t *testing.T) {
				t.Parallel()
				s := newShop(t, rdb, open(1000, 3), 0)
				var requests []*Request
				for i := range n {
					r := s.request(fmt.Sprintf("u%d", i), "k", int64(1+i%3))
					requests = append(requests, r)
					s.source.past[s.item] = append(s.source.past[s.item], Holding{
						Buyer: r.Buyer, IdempotencyKey: "k", OrderID: r.OrderID, Quantity: r.Quantity, Counts: true,
					})
				}
				v := s.inventory(t, Config{})
				if err := v.Open(await.Context(t), s.item); err != nil {
					t.Fatal(err)
				}
				want := slices.Repeat([]ReleaseStatus{ReleaseDone}, n)
				if n > 1 { // the last again, in the same call as the first
					requests = slices.Insert(requests, 1, requests[n-1])
					want = append(want, ReleaseRepeated)
				}
				wantStatus(t, s.give(t, requests...), want...)
				st := s.state(t)
				if st.left(t) != 1000 || len(st.buyers) != 0 || len(st.idempotency) != n {
					t.Errorf("%d left, %d buyers, %d keys; want 1000, 0, %d", st.left(t), len(st.buyers), len(st.idempotency), n)
				}
			})
		}
	})
}

// TestRelease_DuringLoad cancels an order in the database and releases it, at each point
// around a load of the sale.
func TestRelease_DuringLoad(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		type places struct{ before, inside, after ReleaseStatus }
		for name, tc := range map[string]struct {
			cancelIn string // "before": the load reads it; "after": the load has read the database already
			want     places // the result of each release
		}{
			"SeenByTheLoad": {"before", places{ReleaseNotLoaded, ReleaseNotLoaded, ReleaseRepeated}},
			"NotSeen":       {"after", places{0, ReleaseNotLoaded, ReleaseDone}},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s := newShop(t, rdb, open(1, 1), 0)
				v := s.inventory(t, Config{})
				r := s.request("winner", "k", 1)
				mustBuy(t, v, r)
				s.commit(t)
				ctx := await.Context(t)
				var got places
				release := func() ReleaseStatus {
					status, _, err := Release(ctx, rdb, 1, 1, s.item, released(r))
					if err != nil {
						t.Error(err)
						return ReleaseUnknown
					}
					return status[0]
				}
				s.source.set(func(src *stored) {
					src.before = hook(func() {
						if tc.cancelIn == "before" {
							s.cancel(r.OrderID)
							got.before = release()
						}
					})
					src.after = hook(func() {
						s.cancel(r.OrderID)
						got.inside = release()
					})
				})
				if err := v.Open(ctx, s.item); err != nil {
					t.Fatal(err)
				}
				got.after = release()
				if got != tc.want {
					t.Errorf("released with %v, want %v", got, tc.want)
				}
				if again := release(); again != ReleaseRepeated {
					t.Errorf("released again with %v", again)
				}
				mustBuy(t, v, s.request("next", "k", 1))
				mustRefuse(t, v, s.request("last", "k", 1), ErrSoldOut)
			})
		}
	})
}

// TestRelease_LoadsAllTheTime drops the sale again and again while orders are sold and
// cancelled: in the end the sum is exact.
func TestRelease_LoadsAllTheTime(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		const stock, orders = 40, 30
		s := newShop(t, rdb, open(stock, 1), 0)
		v := s.inventory(t, Config{})
		var requests []*Request
		for i := range orders {
			r := s.request(fmt.Sprintf("u%d", i), "k", 1)
			mustBuy(t, v, r)
			requests = append(requests, r)
		}
		s.commit(t)
		ctx := await.Context(t)
		var loads, releases sync.WaitGroup
		stop := make(chan struct{})
		loads.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := v.Open(ctx, s.item); err != nil {
					t.Error(err)
				}
			}
		})
		var mu sync.Mutex
		met := map[ReleaseStatus]int{}
		for _, r := range requests {
			releases.Go(func() {
				s.cancel(r.OrderID)
				for settled := false; !settled && ctx.Err() == nil; {
					status, _, err := Release(ctx, rdb, 1, 1, s.item, released(r))
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					met[status[0]]++
					mu.Unlock()
					settled = status[0].Settled()
				}
			})
		}
		releases.Wait()
		close(stop)
		loads.Wait()
		if met[ReleaseForeign]+met[ReleaseUnknown] > 0 {
			t.Errorf("released with %v", met)
		}
		if st := s.state(t); st.left(t) != stock || len(st.buyers) != 0 {
			t.Errorf("%d left and %v hold something, after %v; want %d and nobody", st.left(t), st.buyers, met, stock)
		}
	})
}

// TestRelease_WhileSelling: conservation, with releases between the purchases.
func TestRelease_WhileSelling(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		const stock, buyers = 20, 200
		s := newShop(t, rdb, open(stock, 1), 0)
		v := s.inventory(t, Config{MaxBatch: 8, MarkLife: time.Hour})
		ctx := await.Context(t)
		var mu sync.Mutex
		back := 0
		var wg sync.WaitGroup
		for i := range buyers {
			wg.Go(func() {
				r := s.request(fmt.Sprintf("u%d", i), "k", 1)
				for {
					o, err := v.Purchase(ctx, r)
					if err != nil {
						t.Error(err)
						return
					}
					if o.Err == nil {
						break
					}
					if !errors.Is(o.Err, ErrSoldOut) {
						t.Errorf("outcome %+v", o)
						return
					}
					// Refused from memory without a pause, they would use up the processor
					// time of the sellers.
					pause.For(ctx, time.Millisecond)
				}
				mu.Lock()
				defer mu.Unlock()
				if back >= buyers-stock {
					return // the last ones keep theirs
				}
				back++
				wantStatus(t, s.give(t, r), ReleaseDone)
			})
		}
		wg.Wait()
		if st := s.audit(t); st.left(t) != 0 || len(st.queue) != buyers {
			t.Errorf("%d left, %d orders; want 0 and %d", st.left(t), len(st.queue), buyers)
		}
	})
}
