package order

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
	"flashsale/queue"
)

// reconciler returns a new one for the site.
func (s *site) reconciler() *Reconciler {
	return NewReconciler(ReconcilerConfig{
		Store: s.store, Stock: s.stock, Records: s.stock, Tasks: []Tasks{s.queue},
		Returns: s.service.Returns,
	})
}

// reconcile makes the deepest examination of the site's item.
func (s *site) reconcile(repair Repair) ItemReport {
	s.t.Helper()
	options := ReconcileOptions{ItemID: s.item, Deep: true, Repair: repair, Actor: "root", RequestID: "r1"}
	var report ReconcileReport
	var err error
	await.True(s.t, "an examination within its time limit", func() bool { // on a busy machine, two seconds may be too short
		report, err = s.reconciler().Reconcile(await.Context(s.t), options)
		return err != nil || len(report.Items) != 1 || !errors.Is(report.Items[0].Err, inventory.ErrUnavailable)
	})
	if err != nil || len(report.Items) != 1 || report.Examined != 1 {
		s.t.Fatalf("reconcile: %+v, %v", report, err)
	}
	item := report.Items[0]
	if item.Err != nil || item.Partial || item.ItemID != s.item || report.Balanced != item.Mended() {
		s.t.Fatalf("reconcile: %+v in %+v", item, report)
	}
	return item
}

// clean fails the test unless the item has no difference, and returns its ledger.
func (s *site) clean(name string, repair Repair) Ledger {
	s.t.Helper()
	r := s.reconcile(repair)
	if len(r.Drifts) > 0 || !r.Ledger.Balanced() {
		s.t.Errorf("%s: %+v, want no difference", name, r)
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
		s := newSite(t, rdb, false, newItem("", 70, 2))
		for i := range orders {
			s.mustPlace(s.purchase(fmt.Sprintf("u%d", i), "k", 1, 0))
		}
		f, err := s.queue.Dequeue(await.Context(t), 20)
		if err != nil || len(f.Tasks) != 20 {
			t.Fatalf("dequeue: %d tasks, %v", len(f.Tasks), err)
		}
		if _, err := s.queue.Reject(await.Context(t), queue.Rejection{Task: f.Tasks[0], Dead: true}); err != nil {
			t.Fatal(err)
		}
		for _, l := range f.Tasks[10:] {
			mustCommit(t, s.store, mustParse(t, l.ID, l.Payload))
		}
		before := s.redisState()
		for _, repair := range []Repair{RepairNothing, RepairSales, RepairAll} {
			if l := s.clean("in flight", repair); l != (Ledger{Initial: 70, Left: 20, Held: 40, Sold: 10}) {
				t.Errorf("ledger %+v", l)
			}
		}
		if after := s.redisState(); after != before {
			t.Errorf("Redis was changed from\n%s to\n%s", before, after)
		}
		if _, err := s.queue.RunNow(await.Context(t), f.Tasks[0].ID); err != nil {
			t.Fatal(err)
		}
		for _, l := range f.Tasks[1:] { // their workers died
			if _, err := s.queue.Reject(await.Context(t), queue.Rejection{Task: l}); err != nil {
				t.Fatal(err)
			}
		}
		s.work()
		s.drained()
		if rows := allRows(t, s.store); len(rows) != orders {
			t.Errorf("%d rows, want %d", len(rows), orders)
		}
		if l := s.clean("at the end", RepairAll); l != (Ledger{Initial: 70, Left: 20, Sold: orders}) {
			t.Errorf("ledger at the end: %+v", l)
		}
		auditStore(t, s.store)
	})
}

// TestReconciler_Returning: the release of a closed order is recorded, and not made yet.
func TestReconciler_Returning(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, newItem("", 10, 5))
		c := setClock(s.store)
		s.work()
		o := s.mustPlace(s.purchase("u", "k", 3, long)).Order
		s.drained()
		if _, _, err := s.store.cancel(await.Context(t), o.ID, Canceller{UserID: "u"}); err != nil {
			t.Fatal(err)
		}
		c.Add(lateReturn.Milliseconds())
		r := s.reconcile(RepairAll)
		if len(r.Drifts) > 0 || r.Ledger != (Ledger{Initial: 10, Left: 10}) || r.LateReturns != 1 {
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
		s := newSite(t, rdb, false, asking("", 20, 20, time.Hour))
		s.work()
		var ids []string
		for i := range 4 {
			ids = append(ids, s.mustPlace(s.purchase("u", fmt.Sprint(i), 2, long)).Order.ID)
		}
		s.drained()
		u := Canceller{UserID: "u"}
		cancel := func(i int) []returned {
			_, owed, err := s.store.cancel(await.Context(t), ids[i], u)
			if err != nil {
				t.Error(err)
			}
			return owed
		}
		var owed []returned
		steps := []func(){
			func() { s.service.Returns.give(await.Context(t), cancel(0)) }, // before the first read
			func() { s.service.Returns.give(await.Context(t), cancel(1)) }, // between the reads
			func() { owed = cancel(2) },                                    // closed, and not released
			func() {},
			func() { owed = append(owed, cancel(3)...) },
			func() { s.service.Returns.give(await.Context(t), owed) },
		}
		said := 0
		r := s.reconciler()
		look := func(step func()) *inspection {
			x := *r.inspector
			x.stock = stepping{s.stock, step}
			i := x.inspect(await.Context(t), s.item)
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
		if l := s.clean("at the end", RepairNothing); l != (Ledger{Initial: 20, Left: 20}) {
			t.Errorf("ledger at the end: %+v", l)
		}
		// An item that changes during every read is read under its lock.
		if i := look(func() {
			if err := rdb.HIncrBy(await.Context(t), s.saleKey("sale"), "sequence", 1).Err(); err != nil {
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

func testDrifts(t *testing.T, rdb *redis.Client) {
	t.Helper()
	for _, q := range []struct {
		name   string
		inject func(s *site, orders []Order)
		want   Drift // Note is not compared
		more   string
		stays  bool // no repair can correct it
	}{
		{"left too low", func(s *site, _ []Order) { s.hset("sale", "left", 90) },
			Drift{Kind: DriftLeft, Expected: 93, Found: 90, Units: 3, Count: 1}, "", false},
		{"left too high", func(s *site, _ []Order) { s.hset("sale", "left", 95) },
			Drift{Kind: DriftLeft, Expected: 93, Found: 95, Units: 2, Count: 1}, "", false},
		{"left unreadable", func(s *site, _ []Order) { s.hset("sale", "left", "many") },
			Drift{Kind: DriftDamaged, Expected: 94, Units: 94, Count: 1}, "", false},
		{"fenced off", func(s *site, _ []Order) { s.hset("sale", "fence", "9000000000000000") },
			Drift{Kind: DriftDamaged, Expected: 94, Units: 94, Count: 1}, "", false},
		{"a version behind", func(s *site, _ []Order) {
			s.exec("UPDATE items SET version = 2, per_user_limit = 6 WHERE id = ?", s.item)
		}, Drift{Kind: DriftVersion, Expected: 2, Found: 1, Count: 2}, "", false},
		{"another control", func(s *site, _ []Order) { s.hset("sale", "control", "paused") },
			Drift{Kind: DriftVersion, Expected: 1, Found: 1, Count: 1}, "", false},
		{"another end", func(s *site, _ []Order) { s.hset("sale", "closes_ms", 1) },
			Drift{Kind: DriftVersion, Expected: 1, Found: 1, Count: 1}, "", false},
		{"buyer counted too high", func(s *site, _ []Order) { s.hset("buyers", "a", 4) },
			Drift{Kind: DriftHolds, Found: 1, Units: 1, Count: 1}, "", false},
		{"buyer forgotten", func(s *site, _ []Order) { s.hdel("buyers", "a") },
			Drift{Kind: DriftHolds, Found: 1, Units: 1, Count: 1}, "", false},
		{"queued buyer forgotten", func(s *site, _ []Order) { s.hdel("buyers", "queued") },
			Drift{Kind: DriftHolds, Found: 1, Units: 1, Count: 1}, "", false},
		{"stranger counted", func(s *site, _ []Order) { s.hset("buyers", "stranger", 2) },
			Drift{Kind: DriftHolds, Found: 1, Units: 1, Count: 1}, "", false},
		{"leaked hold", func(s *site, _ []Order) {
			s.hset("idempotency", "ghost k", "2:"+someID)
			s.hset("buyers", "ghost", 2)
			s.hset("sale", "left", 91)
		}, Drift{Kind: DriftHolds, Found: 2, Units: 2, Count: 2}, "left", false},
		{"order forgotten", func(s *site, _ []Order) { s.hdel("idempotency", "a k") },
			Drift{Kind: DriftHolds, Found: 1, Units: 1, Count: 1}, "", false},
		{"queued order forgotten", func(s *site, _ []Order) { s.hdel("idempotency", "queued k") },
			Drift{Kind: DriftHolds, Found: 1, Units: 1, Count: 1}, "", false},
		{"standing order given back", func(s *site, o []Order) { s.hset("idempotency", "a k", "3:"+o[0].ID+":r") },
			Drift{Kind: DriftHolds, Found: 1, Units: 1, Count: 1}, "", false},
		{"closed order counted", func(s *site, o []Order) { s.hset("idempotency", "gone k", "4:"+o[2].ID) },
			Drift{Kind: DriftHolds, Found: 1, Units: 1, Count: 1}, "", false},
		{"order unreadable", func(s *site, _ []Order) { s.hset("idempotency", "a k", "?") },
			Drift{Kind: DriftHolds, Found: 1, Units: 1, Count: 1}, "", false},
		{"sold too high", func(s *site, _ []Order) { s.exec("UPDATE items SET sold = sold + 5 WHERE id = ?", s.item) },
			Drift{Kind: DriftSold, Expected: 6, Found: 11, Units: 5, Count: 1}, "", false},
		{"sold too high, and the sale built from it", func(s *site, _ []Order) {
			s.exec("UPDATE items SET sold = sold + 5 WHERE id = ?", s.item)
			s.hset("sale", "left", 88)
		}, Drift{Kind: DriftSold, Expected: 6, Found: 11, Units: 5, Count: 1}, "left", false},
		{"sold too low", func(s *site, _ []Order) { s.exec("UPDATE items SET sold = 0 WHERE id = ?", s.item) },
			Drift{Kind: DriftSold, Expected: 6, Found: 0, Units: 6, Count: 1}, "", false},
		{"buyers wrong and missing", func(s *site, _ []Order) {
			s.exec("UPDATE buyers SET quantity = 5 WHERE user_id = 'a'")
			s.exec("DELETE FROM buyers WHERE user_id = 'b'")
		}, Drift{Kind: DriftBuyers, Expected: 6, Found: 5, Units: 5, Count: 2}, "", false},
		{"total without a record", func(s *site, _ []Order) {
			s.exec("UPDATE items SET total = 101 WHERE id = ?", s.item)
			s.hset("sale", "left", 94)
		}, Drift{Kind: DriftTotal, Expected: 100, Found: 101, Units: 1, Count: 1}, "", true},
	} {
		t.Run(q.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, rdb, false, newItem("", 100, 5))
			stop := s.work()
			orders := []Order{
				s.mustPlace(s.purchase("a", "k", 3, long)).Order,
				s.mustPlace(s.purchase("b", "k", 3, long)).Order,
				s.mustPlace(s.purchase("gone", "k", 4, long)).Order,
			}
			if _, err := s.service.Cancel(await.Context(t), orders[2].ID, Canceller{Admin: true}); err != nil {
				t.Fatal(err)
			}
			s.drained()
			stop()
			s.mustPlace(s.purchase("queued", "k", 1, 0))
			if l := s.clean("before", RepairNothing); l != (Ledger{Initial: 100, Left: 93, Held: 1, Sold: 6}) {
				t.Fatalf("ledger before: %+v", l)
			}
			q.inject(s, orders)
			s.wantDrift(q.want, q.more, q.stays)
		})
	}
}

const someID = "01890a5d-ac96-774b-bcce-b302099a8057"

// wantDrift finds a difference twice, repairs it, and finds it no more.
func (s *site) wantDrift(want Drift, more string, stays bool) {
	t := s.t
	t.Helper()
	names := strings.TrimSpace(strings.Join(slices.Sorted(slices.Values([]string{string(want.Kind), more})), " "))
	before := s.redisState()
	for range 2 {
		r := s.reconcile(RepairNothing)
		if kinds(r.Drifts) != names {
			t.Fatalf("found %+v, want %q", r.Drifts, names)
		}
		for _, d := range r.Drifts {
			if d.Note = ""; d.Kind == want.Kind && d != want {
				t.Errorf("found %+v, want %+v", d, want)
			}
		}
	}
	if after := s.redisState(); after != before {
		t.Errorf("an examination changed Redis from\n%s to\n%s", before, after)
	}
	r := s.reconcile(RepairAll)
	for _, d := range r.Drifts {
		if d.Repaired == stays {
			t.Errorf("repair: %+v", d)
		}
	}
	if kinds(r.Drifts) != names || r.Mended() == stays {
		t.Errorf("repair: %+v", r)
	}
	if stays {
		return
	}
	l := s.clean("after the repair", RepairNothing)
	if want := (Ledger{Initial: 100, Left: 93, Held: 1, Sold: 6}); l != want || r.Ledger != want {
		t.Errorf("ledger after the repair: %+v, in its report: %+v, want %+v", l, r.Ledger, want)
	}
	s.work()
	s.drained()
	if l := s.clean("at the end", RepairNothing); l != (Ledger{Initial: 100, Left: 93, Sold: 7}) {
		t.Errorf("ledger at the end: %+v", l)
	}
	auditStore(t, s.store)
}

// TestReconciler_LeakedHold: a count that is too high by one keeps its buyer from buying;
// after the repair the purchase succeeds.
func TestReconciler_LeakedHold(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, newItem("", 5, 1))
		s.mustPlace(s.purchase("other", "k", 1, 0))
		s.hset("buyers", "u", 1)
		if _, err := s.service.Place(await.Context(t), s.purchase("u", "k", 1, 0)); !errors.Is(err, inventory.ErrUserLimit) {
			t.Fatalf("with a leaked hold: %v, want ErrUserLimit", err)
		}
		if r := s.reconcile(RepairSales); kinds(r.Drifts) != "holds" || !r.Mended() {
			t.Fatalf("repair: %+v", r)
		}
		s.mustPlace(s.purchase("u", "k", 1, 0))
		if l := s.clean("after it", RepairNothing); l != (Ledger{Initial: 5, Left: 3, Held: 2}) {
			t.Errorf("ledger %+v", l)
		}
	})
}
