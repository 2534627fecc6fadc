package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/longtest"
	"flashsale/internal/testing/redistest"
	"flashsale/inventory"
	"flashsale/inventory/accepted"
	"flashsale/order"
	"flashsale/order/ordertest"
	"flashsale/order/shoptest"
	"flashsale/order/store"
	"flashsale/order/store/storetest"
	"flashsale/queue"
)

// ReconcilerOf returns a new one for the site.
func ReconcilerOf(s *shoptest.Shop) *Reconciler {
	return NewReconciler(Config{
		Store: s.Store, Stock: s.Stock, Records: s.Stock, Tasks: []order.Queued{accepted.NewOrders(s.Queue)},
		Releaser: s.Service.Releaser,
	})
}

// reconcile makes the deepest examination of the site's item.
func reconcile(s *shoptest.Shop, repair Repair) ItemReport {
	s.T.Helper()
	options := Options{ItemID: s.Item, Deep: true, Repair: repair, Actor: "root", RequestID: "r1"}
	var report Report
	var err error
	await.True(s.T, "an examination within its time limit", func() bool { // on a busy machine, two seconds may be too short
		report, err = ReconcilerOf(s).Reconcile(await.Context(s.T), options)
		return err != nil || len(report.Items) != 1 || !errors.Is(report.Items[0].Err, inventory.ErrUnavailable)
	})
	if err != nil || len(report.Items) != 1 || report.Examined != 1 {
		s.T.Fatalf("reconcile: %+v, %v", report, err)
	}
	item := report.Items[0]
	if item.Err != nil || item.Partial || item.ItemID != s.Item || report.Balanced != item.Clean() {
		s.T.Fatalf("reconcile: %+v in %+v", item, report)
	}
	return item
}

// Clean fails the test unless the item has no difference, and returns its ledger.
func Clean(s *shoptest.Shop, name string, repair Repair) order.Ledger {
	s.T.Helper()
	r := reconcile(s, repair)
	if len(r.Drifts) > 0 || !r.Ledger.Balanced() {
		s.T.Errorf("%s: %+v, want no difference", name, r)
	}
	return r.Ledger
}

func kinds(drifts []Drift) string {
	var out []string
	for _, d := range drifts {
		out = append(out, string(d.Kind))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// TestReconciler_InFlight runs while accepted orders are in every place: queued, leased,
// dead, and committed but not acknowledged. None is a difference, nothing is changed, and
// all of them are committed afterwards.
func TestReconciler_InFlight(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		const orders = 50
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 70, 2))
		for i := range orders {
			s.MustPlace(s.Purchase(fmt.Sprintf("u%d", i), "k", 1, 0))
		}
		f, err := s.Queue.Dequeue(await.Context(t), 20)
		if err != nil || len(f.Tasks) != 20 {
			t.Fatalf("dequeue: %d tasks, %v", len(f.Tasks), err)
		}
		if _, err := s.Queue.Reject(await.Context(t), queue.Rejection{Task: f.Tasks[0], Dead: true}); err != nil {
			t.Fatal(err)
		}
		for _, l := range f.Tasks[10:] {
			storetest.MustCommit(t, s.Store, ordertest.MustParse(t, l.ID, l.Payload))
		}
		before := s.RedisState()
		for _, repair := range []Repair{RepairNothing, RepairSales, RepairAll} {
			if l := Clean(s, "in flight", repair); l != (order.Ledger{Initial: 70, Left: 20, Held: 40, Sold: 10}) {
				t.Errorf("ledger %+v", l)
			}
		}
		if after := s.RedisState(); after != before {
			t.Errorf("Redis was changed from\n%s to\n%s", before, after)
		}
		if _, err := s.Queue.RunNow(await.Context(t), time.Time{}, f.Tasks[0].ID); err != nil {
			t.Fatal(err)
		}
		for _, l := range f.Tasks[1:] { // their workers died
			if _, err := s.Queue.Reject(await.Context(t), queue.Rejection{Task: l}); err != nil {
				t.Fatal(err)
			}
		}
		s.Work()
		s.Drained()
		if rows := ordertest.AllRows(t, s.Store); len(rows) != orders {
			t.Errorf("%d rows, want %d", len(rows), orders)
		}
		if l := Clean(s, "at the end", RepairAll); l != (order.Ledger{Initial: 70, Left: 20, Sold: orders}) {
			t.Errorf("ledger at the end: %+v", l)
		}
		ordertest.AuditStore(t, s.Store)
	})
}

// TestReconciler_Releasing: the release of a closed order is recorded, and not made yet.
func TestReconciler_Releasing(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 10, 5))
		c := storetest.SetClock(s.Store)
		s.Work()
		o := s.MustPlace(s.Purchase("u", "k", 3, ordertest.Long)).Order
		s.Drained()
		if _, _, err := s.Store.Cancel(await.Context(t), o.ID, order.Canceller{UserID: "u"}); err != nil {
			t.Fatal(err)
		}
		c.Add(lateReturn.Milliseconds())
		r := reconcile(s, RepairAll)
		if len(r.Drifts) > 0 || r.Ledger != (order.Ledger{Initial: 10, Left: 10}) || r.LateReleases != 1 {
			t.Errorf("%+v", r)
		}
	})
}

// stepping is a stock that calls step before each read of a sale.
type stepping struct {
	Examiner
	step func()
}

func (p stepping) Live(ctx context.Context, item string) (inventory.Live, error) {
	p.step()
	return p.Examiner.Live(ctx, item)
}

// TestReconciler_Moving makes the steps of cancellations between those of an examination:
// it reads again, and finds no difference.
func TestReconciler_Moving(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.Asking("", 20, 20, time.Hour))
		s.Work()
		var ids []string
		for i := range 4 {
			ids = append(ids, s.MustPlace(s.Purchase("u", fmt.Sprint(i), 2, ordertest.Long)).Order.ID)
		}
		s.Drained()
		u := order.Canceller{UserID: "u"}
		cancel := func(i int) []store.Release {
			_, pending, err := s.Store.Cancel(await.Context(t), ids[i], u)
			if err != nil {
				t.Error(err)
			}
			return pending
		}
		var pending []store.Release
		steps := []func(){
			func() { s.Service.Releaser.Release(await.Context(t), cancel(0)) }, // before the first read
			func() { s.Service.Releaser.Release(await.Context(t), cancel(1)) }, // between the reads
			func() { pending = cancel(2) },                                     // closed, and not released
			func() {},
			func() { pending = append(pending, cancel(3)...) },
			func() { s.Service.Releaser.Release(await.Context(t), pending) },
		}
		said := 0
		r := ReconcilerOf(s)
		look := func(step func()) *inspection {
			x := *r.inspector
			x.Stock = stepping{s.Stock, step}
			i := x.inspect(await.Context(t), s.Item)
			if i.err != nil || len(i.drifts()) > 0 || !i.ledger().Balanced() {
				t.Fatalf("after %d steps: %+v", said, i)
			}
			return i
		}
		for said < len(steps) {
			look(func() {
				if said < len(steps) {
					steps[said]()
				}
				said++
			})
		}
		if l := Clean(s, "at the end", RepairNothing); l != (order.Ledger{Initial: 20, Left: 20}) {
			t.Errorf("ledger at the end: %+v", l)
		}
		// An item that changes during every read is read under its lock.
		if i := look(func() {
			if err := rdb.HIncrBy(await.Context(t), s.SaleKey("sale"), "sequence", 1).Err(); err != nil {
				t.Error(err)
			}
		}); i.seen.moving {
			t.Errorf("under the lock: %+v", i)
		}
	})
}

// TestReconciler_Drifts injects each kind of difference by hand. It is found and named
// correctly; a repair corrects it permanently. The engine makes no difference here, so the
// short run uses only one.
func TestReconciler_Drifts(t *testing.T) {
	t.Parallel()
	testDrifts(t, redistest.Redis(t))
}

func TestReconciler_Drifts_Long(t *testing.T) {
	longtest.Only(t)
	t.Parallel()
	testDrifts(t, redistest.Embedded(t))
}

// injectedDrift is a difference that a test injects, and how the reconciler reports it.
type injectedDrift struct {
	name   string
	inject func(s *shoptest.Shop, orders []order.Order)
	want   Drift // Note is not compared
	more   string
	stays  bool // no repair can correct it
}

var injectedDrifts = []injectedDrift{
	{"left too low", func(s *shoptest.Shop, _ []order.Order) { s.Hset("sale", "left", 90) },
		Drift{Kind: DriftLeft, Expected: 93, Found: 90, Units: 3, Count: 1}, "", false},
	{"left too high", func(s *shoptest.Shop, _ []order.Order) { s.Hset("sale", "left", 95) },
		Drift{Kind: DriftLeft, Expected: 93, Found: 95, Units: 2, Count: 1}, "", false},
	{"left unreadable", func(s *shoptest.Shop, _ []order.Order) { s.Hset("sale", "left", "many") },
		Drift{Kind: DriftDamaged, Expected: 94, Units: 94, Count: 1}, "", false},
	{"fenced off", func(s *shoptest.Shop, _ []order.Order) { s.Hset("sale", "fence", "9000000000000000") },
		Drift{Kind: DriftDamaged, Expected: 94, Units: 94, Count: 1}, "", false},
	{"a version behind", func(s *shoptest.Shop, _ []order.Order) {
		s.Exec("UPDATE items SET version = 2, per_user_limit = 6 WHERE id = ?", s.Item)
	}, Drift{Kind: DriftVersion, Expected: 2, Found: 1, Count: 2}, "", false},
	{"another control", func(s *shoptest.Shop, _ []order.Order) { s.Hset("sale", "control", "paused") },
		Drift{Kind: DriftVersion, Expected: 1, Found: 1, Count: 1}, "", false},
	{"another end", func(s *shoptest.Shop, _ []order.Order) { s.Hset("sale", "closes_ms", 1) },
		Drift{Kind: DriftVersion, Expected: 1, Found: 1, Count: 1}, "", false},
	{"buyer counted too high", func(s *shoptest.Shop, _ []order.Order) { s.SetUnits("a", 4) },
		Drift{Kind: DriftHolds, Found: 1, Units: 1, Count: 1}, "", false},
	{"buyer forgotten", func(s *shoptest.Shop, _ []order.Order) { s.SetUnits("a", 0) },
		Drift{Kind: DriftHolds, Found: 1, Units: 1, Count: 1}, "", false},
	{"queued buyer forgotten", func(s *shoptest.Shop, _ []order.Order) { s.SetUnits("queued", 0) },
		Drift{Kind: DriftHolds, Found: 1, Units: 1, Count: 1}, "", false},
	{"stranger counted", func(s *shoptest.Shop, _ []order.Order) { s.Hset("buyers", "stranger", "2 2:"+someID+":r k") },
		Drift{Kind: DriftHolds, Found: 2, Units: 2, Count: 2}, "", false},
	{"leaked hold", func(s *shoptest.Shop, _ []order.Order) {
		s.Hset("buyers", "ghost", "2 2:"+someID+" k")
		s.Hset("sale", "left", 91)
	}, Drift{Kind: DriftHolds, Found: 2, Units: 2, Count: 2}, "left", false},
	{"buyer and order forgotten", func(s *shoptest.Shop, _ []order.Order) { s.Hdel("buyers", "a") },
		Drift{Kind: DriftHolds, Found: 2, Units: 2, Count: 2}, "", false},
	{"further order leaked", func(s *shoptest.Shop, _ []order.Order) { s.Hset("idempotency", "a k2", "1:"+someID) },
		Drift{Kind: DriftHolds, Found: 1, Units: 1, Count: 1}, "", false},
	{"another order in its place", func(s *shoptest.Shop, _ []order.Order) { s.Hset("buyers", "a", "3 3:"+someID+":r other") },
		Drift{Kind: DriftHolds, Found: 2, Units: 2, Count: 2}, "", false},
	{"another order in the place of a queued one", func(s *shoptest.Shop, _ []order.Order) { s.Hset("buyers", "queued", "1 1:"+someID+":r other") },
		Drift{Kind: DriftHolds, Found: 2, Units: 2, Count: 2}, "", false},
	{"standing order given back", func(s *shoptest.Shop, o []order.Order) { s.Hset("buyers", "a", "3 3:"+o[0].ID+":r k") },
		Drift{Kind: DriftHolds, Found: 1, Units: 1, Count: 1}, "", false},
	{"closed order counted", func(s *shoptest.Shop, o []order.Order) { s.Hset("buyers", "gone", "0 4:"+o[2].ID+" k") },
		Drift{Kind: DriftHolds, Found: 1, Units: 1, Count: 1}, "", false},
	{"order unreadable", func(s *shoptest.Shop, _ []order.Order) { s.Hset("buyers", "a", "3 ? k") },
		Drift{Kind: DriftHolds, Found: 1, Units: 1, Count: 1}, "", false},
	{"sold too high", func(s *shoptest.Shop, _ []order.Order) {
		s.Exec("UPDATE items SET sold = sold + 5 WHERE id = ?", s.Item)
	},
		Drift{Kind: DriftSold, Expected: 6, Found: 11, Units: 5, Count: 1}, "", false},
	{"sold too high, and the sale built from it", func(s *shoptest.Shop, _ []order.Order) {
		s.Exec("UPDATE items SET sold = sold + 5 WHERE id = ?", s.Item)
		s.Hset("sale", "left", 88)
	}, Drift{Kind: DriftSold, Expected: 6, Found: 11, Units: 5, Count: 1}, "left", false},
	{"sold too low", func(s *shoptest.Shop, _ []order.Order) { s.Exec("UPDATE items SET sold = 0 WHERE id = ?", s.Item) },
		Drift{Kind: DriftSold, Expected: 6, Found: 0, Units: 6, Count: 1}, "", false},
	{"buyers wrong and missing", func(s *shoptest.Shop, _ []order.Order) {
		s.Exec("UPDATE buyers SET quantity = 5 WHERE user_id = 'a'")
		s.Exec("DELETE FROM buyers WHERE user_id = 'b'")
	}, Drift{Kind: DriftBuyers, Expected: 6, Found: 5, Units: 5, Count: 2}, "", false},
	{"total without a record", func(s *shoptest.Shop, _ []order.Order) {
		s.Exec("UPDATE items SET total = 101 WHERE id = ?", s.Item)
		s.Hset("sale", "left", 94)
	}, Drift{Kind: DriftTotal, Expected: 100, Found: 101, Units: 1, Count: 1}, "", true},
}

func testDrifts(t *testing.T, rdb *redis.Client) {
	t.Helper()
	for _, q := range injectedDrifts {
		t.Run(q.name, func(t *testing.T) {
			t.Parallel()
			s := shoptest.New(t, rdb, false, ordertest.NewItem("", 100, 5))
			stop := s.Work()
			orders := []order.Order{
				s.MustPlace(s.Purchase("a", "k", 3, ordertest.Long)).Order,
				s.MustPlace(s.Purchase("b", "k", 3, ordertest.Long)).Order,
				s.MustPlace(s.Purchase("gone", "k", 4, ordertest.Long)).Order,
			}
			if _, err := s.Service.Cancel(await.Context(t), orders[2].ID, order.Canceller{Admin: true}); err != nil {
				t.Fatal(err)
			}
			s.Drained()
			stop()
			s.MustPlace(s.Purchase("queued", "k", 1, 0))
			if l := Clean(s, "before", RepairNothing); l != (order.Ledger{Initial: 100, Left: 93, Held: 1, Sold: 6}) {
				t.Fatalf("ledger before: %+v", l)
			}
			q.inject(s, orders)
			wantDrift(s, q.want, q.more, q.stays)
		})
	}
}

const someID = "01890a5d-ac96-774b-bcce-b302099a8057"

// wantDrift finds a difference twice, repairs it, and finds it no more.
func wantDrift(s *shoptest.Shop, want Drift, more string, stays bool) {
	t := s.T
	t.Helper()
	names := strings.TrimSpace(strings.Join(slices.Sorted(slices.Values([]string{string(want.Kind), more})), " "))
	before := s.RedisState()
	for range 2 {
		r := reconcile(s, RepairNothing)
		if kinds(r.Drifts) != names {
			t.Fatalf("found %+v, want %q", r.Drifts, names)
		}
		for _, d := range r.Drifts {
			if d.Note = ""; d.Kind == want.Kind && d != want {
				t.Errorf("found %+v, want %+v", d, want)
			}
		}
	}
	if after := s.RedisState(); after != before {
		t.Errorf("an examination changed Redis from\n%s to\n%s", before, after)
	}
	r := reconcile(s, RepairAll)
	for _, d := range r.Drifts {
		if d.Repaired == stays {
			t.Errorf("repair: %+v", d)
		}
	}
	if kinds(r.Drifts) != names || r.Clean() == stays {
		t.Errorf("repair: %+v", r)
	}
	if stays {
		return
	}
	l := Clean(s, "after the repair", RepairNothing)
	if want := (order.Ledger{Initial: 100, Left: 93, Held: 1, Sold: 6}); l != want || r.Ledger != want {
		t.Errorf("ledger after the repair: %+v, in its report: %+v, want %+v", l, r.Ledger, want)
	}
	s.Work()
	s.Drained()
	if l := Clean(s, "at the end", RepairNothing); l != (order.Ledger{Initial: 100, Left: 93, Sold: 7}) {
		t.Errorf("ledger at the end: %+v", l)
	}
	ordertest.AuditStore(t, s.Store)
}

// TestReconciler_LeakedHold: a count that is too high by one keeps its buyer from buying;
// after the repair the purchase succeeds.
func TestReconciler_LeakedHold(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 5, 1))
		s.MustPlace(s.Purchase("other", "k", 1, 0))
		s.Hset("buyers", "u", "1 1:"+someID+":r k0")
		if _, err := s.Service.Place(await.Context(t), s.Purchase("u", "k", 1, 0)); !errors.Is(err, inventory.ErrUserLimit) {
			t.Fatalf("with a leaked hold: %v, want ErrUserLimit", err)
		}
		if r := reconcile(s, RepairSales); kinds(r.Drifts) != "holds" || !r.Clean() {
			t.Fatalf("repair: %+v", r)
		}
		s.MustPlace(s.Purchase("u", "k", 1, 0))
		if l := Clean(s, "after it", RepairNothing); l != (order.Ledger{Initial: 5, Left: 3, Held: 2}) {
			t.Errorf("ledger %+v", l)
		}
	})
}
