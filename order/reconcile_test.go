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

	"flashsale/catalog"
	"flashsale/internal/testing/await"
	"flashsale/internal/testing/longtest"
	"flashsale/internal/testing/redistest"
	"flashsale/inventory"
	"flashsale/queue"
)

// reconciler makes one for the site.
func (s *site) reconciler() *Reconciler {
	return NewReconciler(ReconcilerConfig{
		Store: s.store, Stock: s.stock, Records: s.stock, Tasks: []Tasks{s.queue},
		Returns: s.service.Returns,
	})
}

// reconcile examines the site's item as closely as can be.
func (s *site) reconcile(repair Repair) ItemReport {
	s.t.Helper()
	options := ReconcileOptions{ItemID: s.item, Deep: true, Repair: repair, Actor: "root", RequestID: "r1"}
	var report ReconcileReport
	var err error
	await.True(s.t, "a look that is given its time", func() bool { // on a busy machine, two seconds may be too short
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

// saleKey is the key of what Redis has of the site's item.
func (s *site) saleKey(kind string) string { return "fs:{p0}:" + kind + ":" + s.item }

// redisState is all that Redis has of the site's sale.
func (s *site) redisState() string {
	s.t.Helper()
	out := ""
	for _, kind := range []string{"sale", "idempotency", "buyers"} {
		all, err := s.rdb.HGetAll(await.Context(s.t), s.saleKey(kind)).Result()
		if err != nil {
			s.t.Fatal(err)
		}
		out += fmt.Sprintln(kind, all) // fmt sorts the keys
	}
	return out
}

func (s *site) exec(text string, args ...any) {
	s.t.Helper()
	if err := s.store.write.WithContext(await.Context(s.t)).Exec(text, args...).Error; err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) hset(kind string, values ...any) {
	s.t.Helper()
	if err := s.rdb.HSet(await.Context(s.t), s.saleKey(kind), values...).Err(); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) hdel(kind string, fields ...string) {
	s.t.Helper()
	if err := s.rdb.HDel(await.Context(s.t), s.saleKey(kind), fields...).Err(); err != nil {
		s.t.Fatal(err)
	}
}

// TestReconciler_InFlight is run in the middle of accepted orders: queued, leased,
// dead, and committed but not acknowledged. None is a finding, nothing is changed,
// and all of them are committed afterwards.
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

func mustParse(t *testing.T, id string, payload []byte) task {
	t.Helper()
	parsed, err := parseTask(id, payload)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

// TestReconciler_Returning: units of a closed order are on their way, noted and
// not given back.
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

// TestReconciler_Refused: the database has refused an order, and its worker has
// not dropped the sale for it yet. While the task is there, that is under way; if
// it dies with its work undone, the units are leaked.
func TestReconciler_Refused(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, newItem("", 10, 5))
		s.mustPlace(s.purchase("u", "k", 2, 0))
		f, err := s.queue.Dequeue(await.Context(t), 1)
		if err != nil || len(f.Tasks) != 1 {
			t.Fatal(f, err)
		}
		refused := mustParse(t, f.Tasks[0].ID, f.Tasks[0].Payload)
		s.exec("INSERT INTO orders (id, item_id, user_id, quantity, unit_price_minor, currency, status, reason, idempotency_key, created_at, closed_at)"+
			" VALUES (?, ?, 'u', 2, 1999, 'EUR', 'rejected', 'sold_out', 'k', 1, 1)", refused.ID, s.item)
		state := s.redisState()
		r := s.reconcile(RepairAll)
		want := Ledger{Initial: 10, Left: 8, Held: 2}
		if len(r.Drifts) > 0 || r.Ledger != want || s.redisState() != state {
			t.Errorf("while its task is leased: %+v", r)
		}
		if l := s.ledger(); l != want {
			t.Errorf("ledger while its task is leased: %+v, want %+v", l, want)
		}
		if _, err := s.queue.Reject(await.Context(t), queue.Rejection{Task: f.Tasks[0], Dead: true}); err != nil {
			t.Fatal(err)
		}
		r = s.reconcile(RepairAll)
		want = Ledger{Initial: 10, Left: 10}
		if kinds(r.Drifts) != "holds left" || !r.Mended() || r.Ledger != want {
			t.Errorf("when it is dead: %+v", r)
		}
		if l := s.ledger(); l != want {
			t.Errorf("ledger when it is dead: %+v, want %+v", l, want)
		}
	})
}

// stepping is a stock that calls step before each reading of a sale.
type stepping struct {
	Examiner
	step func()
}

func (p stepping) Live(ctx context.Context, item string) (inventory.Live, error) {
	p.step()
	return p.Examiner.Live(ctx, item)
}

// TestReconciler_Moving puts the steps of cancellations between those of a look:
// it looks again, and finds nothing.
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
			func() { s.service.Returns.give(await.Context(t), cancel(0)) }, // before the first reading
			func() { s.service.Returns.give(await.Context(t), cancel(1)) }, // between the readings
			func() { owed = cancel(2) },                                    // closed, and not given back
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
		// What always moves without the lock is looked at under it.
		if i := look(func() {
			if err := rdb.HIncrBy(await.Context(t), s.saleKey("sale"), "sequence", 1).Err(); err != nil {
				t.Error(err)
			}
		}); i.seen.moving {
			t.Errorf("under the lock: %+v", i)
		}
	})
}

// TestReconciler_Drifts injects each kind of difference by hand. It is found, and
// named as what it is; a repair repairs it and what it repaired stays so. The engines
// cannot tell these apart, so the short run uses only one of them.
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
		stays  bool // no repair can mend it
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

// wantDrift finds a difference twice, has it repaired, and finds it no more.
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
		t.Errorf("a look changed Redis from\n%s to\n%s", before, after)
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
		t.Errorf("ledger after the repair: %+v, told by it: %+v, want %+v", l, r.Ledger, want)
	}
	s.work()
	s.drained()
	if l := s.clean("at the end", RepairNothing); l != (Ledger{Initial: 100, Left: 93, Sold: 7}) {
		t.Errorf("ledger at the end: %+v", l)
	}
	auditStore(t, s.store)
}

// TestReconciler_LeakedHold: a count that is one too high keeps its buyer from
// buying; with it repaired the purchase goes through.
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

// TestReconciler_NotRepairable: orders that hold more than the total, and a sale
// that would be built from a wrong count.
func TestReconciler_NotRepairable(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, newItem("", 10, 10))
		s.work()
		s.mustPlace(s.purchase("a", "k", 9, long))
		o := s.mustPlace(s.purchase("b", "k", 1, long)).Order
		s.drained()
		s.exec("UPDATE orders SET quantity = 3 WHERE id = ?", o.ID)
		s.exec("UPDATE buyers SET quantity = 7 WHERE user_id = 'a'")
		s.hset("sale", "left", 4)
		state, rows := s.redisState(), fmt.Sprint(itemOf(t, s.store, s.item), buyersOf(t, s.store, s.item))
		r := s.reconcile(RepairAll)
		if kinds(r.Drifts) != "buyers holds left oversold sold" || r.Mended() {
			t.Fatalf("repair: %+v", r)
		}
		for _, d := range r.Drifts {
			if d.Repaired || !strings.Contains(d.Note, "not repair") {
				t.Errorf("%+v, want it not repaired, and why", d)
			}
		}
		if got := fmt.Sprint(itemOf(t, s.store, s.item), buyersOf(t, s.store, s.item)); got != rows || s.redisState() != state {
			t.Errorf("changed to %s\n%s", got, s.redisState())
		}
		if n := s.audits(); n != 0 {
			t.Errorf("%d records of repairs", n)
		}
		// A sale is not built from a wrong count either, unless that is repaired first.
		s.exec("UPDATE orders SET quantity = 1 WHERE id = ?", o.ID)
		s.exec("UPDATE items SET sold = 6 WHERE id = ?", s.item)
		if r := s.reconcile(RepairSales); r.Mended() || s.redisState() != state {
			t.Errorf("repair of the sale alone: %+v", r)
		}
		if r := s.reconcile(RepairAll); !r.Mended() || r.Ledger != (Ledger{Initial: 10, Sold: 10}) {
			t.Errorf("repair of all: %+v", r)
		}
		if n := s.audits(); n != 2 {
			t.Errorf("%d records of repairs, want one of the buyers and one of the item", n)
		}
		auditStore(t, s.store)
	})
}

// audits counts the records of repairs of the site's item, which are whole.
func (s *site) audits() int {
	s.t.Helper()
	var list []struct{ Actor, Before, After, RequestID string }
	err := s.store.read.WithContext(await.Context(s.t)).
		Raw("SELECT actor, before, after, request_id FROM audit WHERE action = 'reconcile.repair' AND item_id = ?", s.item).Scan(&list).Error
	if err != nil {
		s.t.Fatal(err)
	}
	for _, a := range list {
		if a.Actor != "root" || a.RequestID != "r1" || !strings.Contains(a.Before, `"sold":`) || !strings.Contains(a.After, `"sold":`) {
			s.t.Errorf("audit %+v", a)
		}
	}
	return len(list)
}

// TestReconciler_NotLoaded: a sale that Redis does not have is no fault, and stays unloaded.
func TestReconciler_NotLoaded(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, newItem("", 10, 5))
		s.mustPlace(s.purchase("a", "k", 3, 0))
		for name, lose := range map[string]func(){
			"missing":       func() {},
			"half there":    func() { s.hset("sale", "left", 1) },
			"another epoch": func() { s.hset("sale", "epoch", 1, "limit", 1, "opens_ms", 1, "closes_ms", 0, "version", "1.1.0") },
		} {
			if err := rdb.Del(await.Context(t), s.saleKey("sale")).Err(); err != nil {
				t.Fatal(err)
			}
			lose()
			state := s.redisState()
			r := s.reconcile(RepairAll)
			if r.Loaded || len(r.Drifts) > 0 || r.Ledger != (Ledger{Initial: 10, Left: 7, Held: 3}) || s.redisState() != state {
				t.Errorf("%s: %+v", name, r)
			}
		}
		s.exec("UPDATE items SET sold = 2 WHERE id = ?", s.item)
		if r := s.reconcile(RepairAll); kinds(r.Drifts) != "sold" || !r.Mended() || r.Loaded {
			t.Errorf("database of a sale that is not loaded: %+v", r)
		}
		if l := s.ledger(); l != (Ledger{Initial: 10, Left: 7, Held: 3}) {
			t.Errorf("ledger %+v", l)
		}
		if _, err := s.reconciler().Reconcile(await.Context(t), ReconcileOptions{ItemID: "none"}); !errors.Is(err, catalog.ErrItemNotFound) {
			t.Errorf("no item: %v, want ErrItemNotFound", err)
		}
	})
}

// TestReconciler_BrokenItem: what cannot be read of one item does not keep the
// look from the others.
func TestReconciler_BrokenItem(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, newItem("", 10, 5))
		ids := []string{s.item}
		for _, suffix := range []string{"-b", "-c"} {
			n := newItem(s.item+suffix, 10, 5)
			if _, err := s.service.CreateItem(await.Context(t), n); err != nil {
				t.Fatal(err)
			}
			ids = append(ids, n.ID)
		}
		broken := "fs:{p0}:sale:" + ids[1]
		if err := rdb.Del(await.Context(t), broken).Err(); err != nil {
			t.Fatal(err)
		}
		if err := rdb.Set(await.Context(t), broken, "no hash", 0).Err(); err != nil {
			t.Fatal(err)
		}
		if err := rdb.HSet(await.Context(t), "fs:{p0}:sale:"+ids[2], "left", 9).Err(); err != nil {
			t.Fatal(err)
		}
		var heard []string
		r := s.reconciler()
		r.OnRepair = func(item string, d Drift) { heard = append(heard, item+" "+string(d.Kind)) }
		for _, deep := range []bool{true, false} {
			report, err := r.Reconcile(await.Context(t), ReconcileOptions{Deep: deep})
			if err != nil || report.Examined != 3 || report.Failed != 1 || report.Differing != 1 || report.Balanced || len(report.Items) != 3 {
				t.Fatalf("deep %v: %+v, %v", deep, report, err)
			}
			if report.Items[0].Err != nil || report.Items[1].Err == nil || kinds(report.Items[2].Drifts) != "left" {
				t.Errorf("deep %v: %+v", deep, report.Items)
			}
		}
		report, err := r.Reconcile(await.Context(t), ReconcileOptions{Repair: RepairAll})
		if err != nil || report.Repaired != 1 || report.Failed != 1 || !report.Items[2].Mended() || !slices.Equal(heard, []string{ids[2] + " left"}) {
			t.Errorf("repair: %+v, %v; heard %v", report, err, heard)
		}
	})
}

// round runs a round of the background.
func (s *site) round(r *Reconciler, b *memory) ReconcileReport {
	s.t.Helper()
	report, err := r.round(await.Context(s.t), b)
	if err != nil || report.Examined != 1 || len(report.Items) > 1 {
		s.t.Fatalf("round: %+v, %v", report, err)
	}
	return report
}

// TestReconciler_Run: the background repairs a sale that differs in two rounds, and
// leaves the database to a person.
func TestReconciler_Run(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, newItem("", 10, 5))
		s.mustPlace(s.purchase("u", "k", 1, 0))
		r := s.reconciler()
		var b memory
		round := func(name, kind string, balanced bool) {
			t.Helper()
			report := s.round(r, &b)
			found := ""
			for _, item := range report.Items {
				found += kinds(item.Drifts)
			}
			if found != kind || report.Balanced != balanced {
				t.Errorf("%s: %+v, want %q, balanced %v", name, report, kind, balanced)
			}
		}
		round("fresh", "", true)
		for _, left := range []int{8, 10} {
			s.hset("sale", "left", left)
			round("first", "left", false)
			round("second", "left", true)
			round("third", "", true)
		}
		s.exec("UPDATE items SET sold = 1 WHERE id = ?", s.item)
		round("before the books are read", "left", false)
		for range 3 {
			round("database", "sold", false)
		}
		s.exec("UPDATE items SET sold = 0 WHERE id = ?", s.item)
		round("as it was", "", true)
		ctx, cancel := context.WithCancel(await.Context(t))
		rounds := 0
		r.Run(ctx, time.Millisecond, func(report ReconcileReport, err error) {
			if rounds++; rounds == 2*idleRounds {
				cancel()
			}
			if err != nil || !report.Balanced {
				t.Errorf("round %d: %+v, %v", rounds, report, err)
			}
		})
		if rounds != 2*idleRounds {
			t.Errorf("%d rounds", rounds)
		}
	})
}

// TestReconciler_Run_Fenced: a sale that refuses every holder of its lock looks idle.
// The background finds it, and has it rebuilt.
func TestReconciler_Run_Fenced(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, newItem("", 10, 5))
		r := s.reconciler()
		var b memory
		s.round(r, &b)
		s.hset("sale", "fence", "9000000000000000")
		for range idleRounds + 2 {
			s.round(r, &b)
		}
		s.mustPlace(s.purchase("u", "k", 1, 0))
	})
}

// stubborn is a stock that says it has built a sale again, and has not.
type stubborn struct {
	Examiner
	asked *int
	stubs bool
}

func (b stubborn) Examine(ctx context.Context, item string, look func(context.Context, *inventory.Examined) (bool, error)) error {
	return b.Examiner.Examine(ctx, item, func(ctx context.Context, x *inventory.Examined) (bool, error) {
		rebuild, err := look(ctx, x)
		if rebuild {
			*b.asked++
		}
		return rebuild && !b.stubs, err
	})
}

// on makes the reconciler work on another stock.
func (r *Reconciler) on(stock Examiner) { r.Stock, r.stock = stock, stock }

// TestReconciler_Run_Busy: a long queue is not read by the background, which says so
// and forgets no difference; who asks for a look gets one, and so does the background later.
func TestReconciler_Run_Busy(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, newItem("", 10, 5))
		r := s.reconciler()
		r.busy = 2
		var b memory
		round := func(partial bool, kind string) {
			t.Helper()
			report := s.round(r, &b)
			if len(report.Items) != 1 || kinds(report.Items[0].Drifts) != kind || report.Items[0].Partial != partial {
				t.Errorf("round: %+v; want %q, partial %v", report, kind, partial)
			}
		}
		s.hset("sale", "left", 8)
		round(false, "left")
		for i := range 3 {
			s.mustPlace(s.purchase("u", fmt.Sprint(i), 1, 0))
		}
		round(true, "")
		round(true, "")
		if b.items[s.item].differ != 1 {
			t.Errorf("%+v after rounds that saw nothing", b.items[s.item])
		}
		report, err := r.Reconcile(await.Context(t), ReconcileOptions{})
		if err != nil || kinds(report.Items[0].Drifts) != "left" {
			t.Errorf("asked for: %+v, %v", report, err)
		}
		s.work()
		s.drained()
		round(false, "left") // the second time that it is seen, and repaired
		if l := s.clean("at the end", RepairNothing); l != (Ledger{Initial: 10, Left: 7, Sold: 3}) {
			t.Errorf("ledger %+v", l)
		}
	})
}

// TestReconciler_Run_Once: the background has a sale rebuilt once, if that does
// not help; and not at all while it would be built from a wrong count.
func TestReconciler_Run_Once(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, newItem("", 10, 5))
		r := s.reconciler()
		asked := 0
		var b memory
		rounds := func(n int, stubs bool, want int) {
			t.Helper()
			r.on(stubborn{s.stock, &asked, stubs})
			asked = 0
			for range n {
				s.round(r, &b)
			}
			if asked != want {
				t.Errorf("a new build was asked for %d times, want %d", asked, want)
			}
		}
		s.hset("sale", "left", 8)
		rounds(5, true, 1)
		s.hset("sale", "left", 10)
		rounds(2, true, 0)
		s.exec("UPDATE items SET sold = 1 WHERE id = ?", s.item)
		rounds(2, false, 0)
		s.hset("sale", "left", 7)
		rounds(5, false, 0)
		s.exec("UPDATE items SET sold = 0 WHERE id = ?", s.item)
		rounds(4, false, 1)
		if l := s.clean("at the end", RepairNothing); l != (Ledger{Initial: 10, Left: 10}) {
			t.Errorf("ledger at the end: %+v", l)
		}
	})
}

// TestReconciler_Run_RepairFails: a repair that fails is tried again in the next round.
func TestReconciler_Run_RepairFails(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, newItem("", 10, 5))
		r := s.reconciler()
		var b memory
		s.hset("sale", "left", 8)
		s.round(r, &b)
		r.on(failingExaminer{s.stock})
		for range 2 {
			if report := s.round(r, &b); report.Repaired != 0 {
				t.Fatalf("repaired although it failed: %+v", report)
			}
		}
		r.on(s.stock)
		s.round(r, &b)
		if l := s.clean("at the end", RepairNothing); l != (Ledger{Initial: 10, Left: 10}) {
			t.Errorf("ledger at the end: %+v", l)
		}
	})
}

// TestReconciler_LookCut: a look under the lock that was cut off is tried again.
func TestReconciler_LookCut(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, newItem("", 10, 5))
		r := s.reconciler()
		held := 0
		r.on(examinerFunc{s.stock, func() {
			if held++; held == 3 {
				r.hold = limit
			}
		}})
		r.hold = 0
		s.hset("sale", "left", 8)
		report, err := r.Reconcile(await.Context(t), ReconcileOptions{Repair: RepairSales})
		if err != nil || len(report.Items) != 1 || report.Repaired != 1 {
			t.Errorf("%+v, %v, want one repair", report, err)
		}
		if held != 3 {
			t.Errorf("looked %d times under the lock, want 3", held)
		}
	})
}

// examinerFunc is a stock that calls before at each look under a lock, which it does not
// hold yet.
type examinerFunc struct {
	Examiner
	before func()
}

func (e examinerFunc) Examine(ctx context.Context, item string, look func(context.Context, *inventory.Examined) (bool, error)) error {
	e.before()
	return e.Examiner.Examine(ctx, item, look)
}

// failingExaminer is a stock whose locks cannot be acquired.
type failingExaminer struct{ Examiner }

func (failingExaminer) Examine(context.Context, string, func(context.Context, *inventory.Examined) (bool, error)) error {
	return inventory.ErrUnavailable
}

// TestReconciler_Run_BooksAgain: the background compares the books of an item again once
// it has changed, also where no other item is compared in between.
func TestReconciler_Run_BooksAgain(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		found := ""
		s := newSite(t, rdb, false, newItem("", 10, 5))
		s.work()
		r := s.reconciler()
		var b memory
		for range 3 {
			if report := s.round(r, &b); !report.Balanced {
				t.Fatalf("fresh: %+v", report)
			}
		}
		s.mustPlace(s.purchase("u", "k", 1, 0))
		s.drained()
		s.exec("UPDATE buyers SET quantity = 3 WHERE item_id = ?", s.item)
		for range 5 {
			report := s.round(r, &b)
			for _, item := range report.Items {
				found += kinds(item.Drifts)
			}
		}
		if found == "" {
			t.Errorf("the wrong row of a buyer was not found; booked %+v, row %+v", b.items[s.item].booked, b.items[s.item].row.figures())
		}
	})
}

// TestReconciler_Run_MendedBooks: what an operator had repaired is not reported again.
func TestReconciler_Run_MendedBooks(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, newItem("", 10, 5))
		s.work()
		s.mustPlace(s.purchase("u", "k", 1, 0))
		s.drained()
		s.exec("UPDATE buyers SET quantity = 3 WHERE item_id = ?", s.item)
		r := s.reconciler()
		var b memory
		found := ""
		for range 3 {
			for _, item := range s.round(r, &b).Items {
				found += kinds(item.Drifts)
			}
		}
		if found == "" {
			t.Fatal("the wrong row of a buyer was not found")
		}
		s.reconcile(RepairAll)
		s.clean("after the repair", RepairNothing)
		for n := range 25 {
			if report := s.round(r, &b); n > 2 && !report.Balanced {
				t.Fatalf("round %d after the repair: %+v", n, report)
			}
		}
	})
}
