package reconcile

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/longtest"
	"flashsale/internal/testing/redistest"
	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/ordertest"
	"flashsale/order/shoptest"
	"flashsale/order/store/storetest"
)

// TestReconciler_Stress repeatedly reconciles and repairs while buyers buy, cancel and let
// orders expire, and while the sale is sometimes rebuilt: it never finds a difference,
// never changes a count, and in the end every unit is accounted for.
func TestReconciler_Stress(t *testing.T) {
	t.Parallel()
	testReconcilerStress(t, 15)
}

func TestReconciler_Stress_Long(t *testing.T) {
	longtest.Only(t)
	t.Parallel()
	testReconcilerStress(t, 60)
}

// stressBuyer buys, and pays, cancels or abandons the orders. Now and then it invalidates the
// sale.
func stressBuyer(t *testing.T, s *shoptest.Shop, rdb *redis.Client, random *rand.Rand, b, rounds int, accepted *atomic.Int64) {
	t.Helper()
	user := fmt.Sprintf("u%d", b)
	for k := range rounds {
		wait := ordertest.Long
		if random.IntN(2) == 0 {
			wait = 0
		}
		placed, err := s.Service.Place(await.Context(t), s.Purchase(user, fmt.Sprint("k", k), 1+random.Int64N(2), wait))
		if errors.Is(err, inventory.ErrSoldOut) || errors.Is(err, inventory.ErrUserLimit) {
			continue
		}
		if err != nil {
			t.Errorf("%s, round %d: %v", user, k, err)
			return
		}
		accepted.Add(1)
		switch random.IntN(8) {
		case 0: // left to expire
		case 1:
			if _, err := s.Service.Pay(await.Context(t), placed.Order.ID, ordertest.Money(placed.Order.ID, 0)); !errors.Is(err, order.ErrAmountMismatch) && !errors.Is(err, order.ErrOrderExpired) &&
				!errors.Is(err, inventory.ErrUnavailable) { // see below
				t.Errorf("%s, round %d: pay too little: %v", user, k, err)
			}
		default:
			if _, err := s.Service.Cancel(await.Context(t), placed.Order.ID, order.Canceller{UserID: user}); err != nil && !errors.Is(err, order.ErrOrderFinal) &&
				!errors.Is(err, inventory.ErrUnavailable) { // a busy machine has not committed it in time, and it expires
				t.Errorf("%s, round %d: %v", user, k, err)
			}
		}
		if random.IntN(20) == 0 {
			if err := inventory.Invalidate(await.Context(t), rdb, 1, []string{s.Item}); err != nil {
				t.Error(err)
			}
		}
	}
}

// testReconcilerStress makes each buyer buy that many times.
func testReconcilerStress(t *testing.T, rounds int) {
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		const stock, buyers, seed = 40, 8, 7
		s := shoptest.New(t, rdb, false, ordertest.Asking("", stock, 8, time.Second))
		s.Work()
		done := make(chan struct{})
		var looks atomic.Int64
		var reconcilers sync.WaitGroup
		for i := range 2 {
			r := ReconcilerOf(s)
			r.OnRepair = func(item string, d Drift) { t.Errorf("repaired %+v", d) }
			reconcilers.Go(func() {
				for n := i; ; n++ {
					select {
					case <-done:
						return
					default:
					}
					report, err := r.Reconcile(await.Context(t), Options{Deep: n%2 == 0, Repair: RepairAll})
					if err != nil || len(report.Items) != 1 {
						t.Errorf("run %d: %+v, %v", n, report, err)
						return
					}
					item := report.Items[0]
					if len(item.Drifts) > 0 || item.Err != nil && !errors.Is(item.Err, inventory.ErrUnavailable) {
						t.Errorf("run %d: %+v", n, item)
					}
					if item.Err == nil { // on a busy machine, two seconds for a read may be too short
						looks.Add(1)
					}
				}
			})
		}
		var crowd sync.WaitGroup
		var accepted atomic.Int64
		for b := range buyers {
			crowd.Go(func() { stressBuyer(t, s, rdb, rand.New(rand.NewPCG(seed, uint64(b))), b, rounds, &accepted) })
		}
		crowd.Wait()
		close(done)
		reconcilers.Wait()
		if looks.Load() < 4 || accepted.Load() < buyers {
			t.Errorf("%d runs for %d orders: too few", looks.Load(), accepted.Load())
		}
		await.True(t, "every order to end", func() bool {
			l := ledgerOf(s)
			return l.Left == stock && l.Held == 0
		})
		s.Drained()
		if n := audits(s); n != 0 {
			t.Errorf("%d repairs of the database", n)
		}
		if l := Clean(s, "at the end", RepairNothing); l != (order.Ledger{Initial: stock, Left: stock}) {
			t.Errorf("ledger at the end: %+v", l)
		}
		t.Logf("%d runs, %d orders", looks.Load(), accepted.Load())
		ordertest.AuditStore(t, s.Store)
	})
}

// TestReconciler_Pages compares more orders, buyers and queued orders than one page holds,
// and finds the only wrong record.
func TestReconciler_Pages(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		const queued = recordsPage + 10
		committed := longtest.Scale(recordsPage, 2*recordsPage) + 10 // two pages, or three
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 10_000, 1))
		storetest.MustCommit(t, s.Store, ordertest.Distinct("c", s.Item, committed)...)
		ordertest.MustEnqueue(t, s.Queue, ordertest.Leased(ordertest.Distinct("q", s.Item, queued)...))
		if err := inventory.Invalidate(await.Context(t), rdb, 1, []string{s.Item}); err != nil {
			t.Fatal(err)
		}
		want := order.Ledger{Initial: 10_000, Left: int64(10_000 - committed - queued), Held: queued, Sold: int64(committed)}
		if l := ledgerOf(s); l != want {
			t.Fatalf("ledger %+v", l)
		}
		s.Load()
		if l := Clean(s, "many", RepairAll); l != want {
			t.Errorf("ledger %+v", l)
		}
		for name, wrong := range map[string]struct {
			inject func()
			count  int
		}{
			"a late buyer":        {func() { s.Hdel("buyers", fmt.Sprintf("cu%d", committed-1)) }, 2}, // the order and its units
			"a late count":        {func() { s.SetUnits(fmt.Sprintf("cu%d", committed-1), 2) }, 1},
			"a late queued order": {func() { s.Hdel("buyers", fmt.Sprintf("qu%d", queued-1)) }, 2},
		} {
			wrong.inject()
			if r := reconcile(s, RepairAll); kinds(r.Drifts) != "holds" || r.Drifts[0].Count != wrong.count || !r.Clean() {
				t.Errorf("%s: %+v", name, r)
			}
		}
		// All records are wrong at once: the count is bounded.
		if err := rdb.Del(await.Context(t), s.SaleKey("buyers")).Err(); err != nil {
			t.Fatal(err)
		}
		r := reconcile(s, RepairAll)
		if kinds(r.Drifts) != "holds" || r.Drifts[0].Count < queued+committed || !r.Clean() {
			t.Errorf("all counts gone: %+v", r)
		}
		if l := Clean(s, "at the end", RepairNothing); l != want {
			t.Errorf("ledger at the end: %+v", l)
		}
	})
}
