package reconcile

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/catalog"
	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/ordertest"
	"flashsale/order/shoptest"
	"flashsale/order/store"
)

func TestService_Ledger(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		n := ordertest.NewItem("", 50, 10)
		n.PaymentWindow = time.Hour
		s := shoptest.New(t, rdb, false, n)
		want := func(name string, l order.Ledger) {
			t.Helper()
			if got := ledgerOf(s); got != l || !got.Balanced() {
				t.Errorf("%s: ledger %+v, want %+v, balanced", name, got, l)
			}
		}
		want("fresh", order.Ledger{Initial: 50, Left: 50})
		placed := s.MustPlace(s.Purchase("a", "k", 3, 0))
		s.MustPlace(s.Purchase("b", "k", 4, 0))
		want("queued", order.Ledger{Initial: 50, Left: 43, Held: 7})
		s.Work()
		s.Drained()
		want("awaiting payment", order.Ledger{Initial: 50, Left: 43, Held: 7})
		if _, err := s.Service.Pay(await.Context(t), placed.Order.ID, order.Payment{Reference: "psp", AmountMinor: 3 * 1999, Currency: "EUR"}); err != nil {
			t.Fatal(err)
		}
		want("paid", order.Ledger{Initial: 50, Left: 43, Held: 4, Sold: 3})
		if _, err := ReconcilerOf(s).Ledger(await.Context(t), "none-"+s.Item); !errors.Is(err, catalog.ErrItemNotFound) {
			t.Errorf("ledger of no item: %v, want ErrItemNotFound", err)
		}
		// An unaccounted unit is detected.
		if err := rdb.HSet(await.Context(t), "fs:{p0}:sale:"+s.Item, "left", 44).Err(); err != nil {
			t.Fatal(err)
		}
		if l := ledgerOf(s); l.Balanced() {
			t.Errorf("ledger %+v of a wrong stock is balanced", l)
		}
	})
}

// TestService_Ledger_Burst repeatedly reads the ledger while buyers buy and workers commit:
// the equation always holds (P: conservation).
func TestService_Ledger_Burst(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		const stock, buyers = 400, 600
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", stock, 1))
		done, moving := make(chan struct{}), make(chan struct{})
		type look struct {
			n, moving int
			last      order.Ledger
		}
		looked := make(chan look, 1)
		go func() {
			var l look
			for ended := false; !ended; l.n++ {
				select {
				case <-done:
					ended = true
				default:
				}
				got, err := ReconcilerOf(s).Ledger(await.Context(t), s.Item)
				if err != nil || !got.Balanced() || got.Initial != stock || got.Restocked != 0 || got.Left < 0 || got.Held < 0 || got.Sold < l.last.Sold {
					t.Errorf("read %d: %+v after %+v, %v", l.n, got, l.last, err)
				}
				if got.Held > 0 {
					if l.moving++; l.moving == 1 {
						close(moving)
					}
				}
				l.last = got
			}
			looked <- l
		}()
		ctx := await.Context(t)
		var wg sync.WaitGroup
		next := make(chan int)
		for range 24 {
			wg.Go(func() {
				for i := range next {
					wait := ordertest.Long
					if i%2 == 0 {
						wait = 0
					}
					_, err := s.Service.Place(ctx, s.Purchase(fmt.Sprintf("u%d", i), "k", 1, wait))
					if err != nil && !errors.Is(err, inventory.ErrSoldOut) {
						t.Errorf("place: %v", err)
					}
				}
			})
		}
		wg.Go(func() {
			defer close(next)
			for i := range buyers {
				next <- i
			}
		})
		// The worker starts late, so that some reads certainly find queued orders.
		select {
		case <-moving:
		case <-ctx.Done():
			t.Error("no read found an uncommitted order")
		}
		s.Work()
		wg.Wait()
		s.Drained()
		close(done)
		l := <-looked
		if l.last != (order.Ledger{Initial: stock, Sold: stock}) {
			t.Errorf("at the end: %+v", l.last)
		}
		if l.n < 3 {
			t.Errorf("%d reads: too few", l.n)
		}
		ordertest.AuditStore(t, s.Store)
	})
}

// hooked is a stock that calls hook after each read of a sale.
type hooked struct {
	Examiner
	hook func(*inventory.Live)
}

func (h hooked) Live(ctx context.Context, item string) (inventory.Live, error) {
	live, err := h.Examiner.Live(ctx, item)
	h.hook(&live)
	return live, err
}

// TestService_Ledger_Moving makes the steps of a cancellation between those of a read: the
// ledger counts the units before or after the release, once.
func TestService_Ledger_Moving(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.Asking("", 9, 9, time.Hour))
		s.Work()
		ids := make([]string, 3)
		for i := range ids {
			ids[i] = s.MustPlace(s.Purchase("u", fmt.Sprint(i), 2, ordertest.Long)).Order.ID
		}
		s.Drained()
		u := order.Canceller{UserID: "u"}
		var pending []store.Release
		steps := []func(){
			func() { // closed and released during a read
				if _, err := s.Service.Cancel(await.Context(t), ids[0], u); err != nil {
					t.Error(err)
				}
			},
			func() {}, func() {}, func() {}, // the second read is undisturbed
			func() { // closed during a read, and not released yet
				var err error
				if _, pending, err = s.Store.Cancel(await.Context(t), ids[1], u); err != nil {
					t.Error(err)
				}
			},
			func() {}, func() {}, func() {},
			func() { // the record of a release by one read is deleted during another
				s.Service.Releaser.Release(await.Context(t), pending)
			},
		}
		said := 0
		r := ReconcilerOf(s)
		ledger := func() order.Ledger {
			t.Helper()
			l, err := r.Ledger(await.Context(t), s.Item)
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		r.on(hooked{s.Stock, func(*inventory.Live) {
			if said < len(steps) {
				steps[said]()
			}
			said++
		}})
		for i, want := range []struct {
			ledger order.Ledger
			said   int
		}{
			{order.Ledger{Initial: 9, Left: 5, Held: 4}, 4},
			{order.Ledger{Initial: 9, Left: 7, Held: 2}, 8},
			{order.Ledger{Initial: 9, Left: 7, Held: 2}, 10},
		} {
			if l := ledger(); l != want.ledger || said != want.said {
				t.Errorf("ledger %d: %+v after %d reads, want %+v after %d", i, l, said, want.ledger, want.said)
			}
		}
		// If the sale is missing meanwhile, the ledger comes from the database.
		r.on(hooked{s.Stock, func(l *inventory.Live) { *l = inventory.Live{} }})
		if l := ledger(); l != (order.Ledger{Initial: 9, Left: 7, Held: 2}) {
			t.Errorf("not loaded: %+v", l)
		}
	})
}

// TestService_Ledger_Many reads many items concurrently while units of each are being
// released: the reads share few connections, and must not block each other.
func TestService_Ledger_Many(t *testing.T) {
	t.Parallel()
	s := shoptest.New(t, redistest.Embedded(t), false, ordertest.NewItem("", 1, 1))
	s.Work()
	const looks = 16
	items := make([]string, looks)
	for i := range items {
		n := ordertest.NewItem(fmt.Sprintf("%s-%d", s.Item, i), 3, 1)
		if _, err := s.Sales.CreateItem(await.Context(t), n); err != nil {
			t.Fatal(err)
		}
		items[i] = n.ID
		placed := s.MustPlace(order.Purchase{ItemID: n.ID, UserID: "u", IdempotencyKey: "k", Quantity: 1, Wait: ordertest.Long})
		if _, _, err := s.Store.Cancel(await.Context(t), placed.Order.ID, order.Canceller{UserID: "u"}); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	for _, item := range items {
		wg.Go(func() {
			for range 3 {
				if l, err := ReconcilerOf(s).Ledger(await.Context(t), item); err != nil || l != (order.Ledger{Initial: 3, Left: 3}) {
					t.Errorf("ledger of %s: %+v, %v", item, l, err)
				}
			}
		})
	}
	wg.Wait()
	if pending := ordertest.ReleasesOf(t, s.Store); len(pending) != looks {
		t.Errorf("%d pending releases, want the %d that a ledger does not delete", len(pending), looks)
	}
}

func TestLedger_Balanced(t *testing.T) {
	t.Parallel()
	for l, want := range map[order.Ledger]bool{
		{}: true,
		{Initial: 10, Restocked: 5, Left: 7, Held: 3, Sold: 5}:  true,
		{Initial: 10, Restocked: -5, Left: 2, Held: 1, Sold: 2}: true,
		{Initial: 10, Left: 9}:                                  false,
		{Initial: 10, Left: 10, Sold: 1}:                        false,
	} {
		if l.Balanced() != want {
			t.Errorf("%+v: balanced %v", l, !want)
		}
	}
}
