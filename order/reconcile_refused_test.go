package order

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/catalog"
	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/queue"
)

// TestReconciler_Refused: the database has refused an order, and its worker has not dropped
// the sale yet. While the task exists, this is no difference; if it becomes a dead letter,
// the units are leaked.
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
		if l := ledgerOf(s); l != want {
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
		if l := ledgerOf(s); l != want {
			t.Errorf("ledger when it is dead: %+v, want %+v", l, want)
		}
	})
}

// TestReconciler_NotRepairable: orders that hold more than the total, and a sale that would
// be built from a wrong count.
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
		// A sale is not built from a wrong count either, unless the count is repaired
		// first.
		s.exec("UPDATE orders SET quantity = 1 WHERE id = ?", o.ID)
		s.exec("UPDATE items SET sold = 6 WHERE id = ?", s.item)
		if r := s.reconcile(RepairSales); r.Mended() || s.redisState() != state {
			t.Errorf("repair of only the sale: %+v", r)
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

// audits counts the audit entries of repairs of the site's item, and checks that they are
// complete.
func (s *site) audits() int {
	s.t.Helper()
	var list []struct{ Actor, Before, After, RequestID string }
	err := s.store.Reader().WithContext(await.Context(s.t)).
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

// TestReconciler_NotLoaded: a sale that is not in Redis is no fault, and stays unloaded.
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
		if l := ledgerOf(s); l != (Ledger{Initial: 10, Left: 7, Held: 3}) {
			t.Errorf("ledger %+v", l)
		}
		if _, err := s.reconciler().Reconcile(await.Context(t), ReconcileOptions{ItemID: "none"}); !errors.Is(err, catalog.ErrItemNotFound) {
			t.Errorf("no item: %v, want ErrItemNotFound", err)
		}
	})
}

// TestReconciler_BrokenItem: unreadable data of one item does not prevent the examination
// of the others.
func TestReconciler_BrokenItem(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, newItem("", 10, 5))
		ids := []string{s.item}
		for _, suffix := range []string{"-b", "-c"} {
			n := newItem(s.item+suffix, 10, 5)
			if _, err := s.sales.CreateItem(await.Context(t), n); err != nil {
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
			t.Errorf("repair: %+v, %v; reported %v", report, err, heard)
		}
	})
}
