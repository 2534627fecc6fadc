package reconcile

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
	"flashsale/order"
	"flashsale/order/ordertest"
	"flashsale/order/shoptest"
	"flashsale/queue"
)

// TestReconciler_Refused: the database has refused an order, and its worker has not dropped
// the sale yet. While the task exists, this is no difference; if it becomes a dead letter,
// the units are leaked.
func TestReconciler_Refused(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 10, 5))
		s.MustPlace(s.Purchase("u", "k", 2, 0))
		f, err := s.Queue.Dequeue(await.Context(t), 1)
		if err != nil || len(f.Tasks) != 1 {
			t.Fatal(f, err)
		}
		refused := ordertest.MustParse(t, f.Tasks[0].ID, f.Tasks[0].Payload)
		s.Exec("INSERT INTO orders (id, item_id, user_id, quantity, unit_price_minor, currency, status, reason, idempotency_key, created_at, closed_at)"+
			" VALUES (?, ?, 'u', 2, 1999, 'EUR', 'rejected', 'sold_out', 'k', 1, 1)", refused.ID, s.Item)
		state := s.RedisState()
		r := reconcile(s, RepairAll)
		want := order.Ledger{Initial: 10, Left: 8, Held: 2}
		if len(r.Drifts) > 0 || r.Ledger != want || s.RedisState() != state {
			t.Errorf("while its task is leased: %+v", r)
		}
		if l := ledgerOf(s); l != want {
			t.Errorf("ledger while its task is leased: %+v, want %+v", l, want)
		}
		if _, err := s.Queue.Reject(await.Context(t), queue.Rejection{Task: f.Tasks[0], Dead: true}); err != nil {
			t.Fatal(err)
		}
		r = reconcile(s, RepairAll)
		want = order.Ledger{Initial: 10, Left: 10}
		if kinds(r.Drifts) != "holds left" || !r.Clean() || r.Ledger != want {
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
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 10, 10))
		s.Work()
		s.MustPlace(s.Purchase("a", "k", 9, ordertest.Long))
		o := s.MustPlace(s.Purchase("b", "k", 1, ordertest.Long)).Order
		s.Drained()
		s.Exec("UPDATE orders SET quantity = 3 WHERE id = ?", o.ID)
		s.Exec("UPDATE buyers SET quantity = 7 WHERE user_id = 'a'")
		s.Hset("sale", "left", 4)
		state, rows := s.RedisState(), fmt.Sprint(ordertest.ItemOf(t, s.Store, s.Item), ordertest.BuyersOf(t, s.Store, s.Item))
		r := reconcile(s, RepairAll)
		if kinds(r.Drifts) != "buyers holds left oversold sold" || r.Clean() {
			t.Fatalf("repair: %+v", r)
		}
		for _, d := range r.Drifts {
			if d.Repaired || !strings.Contains(d.Note, "not repair") {
				t.Errorf("%+v, want it not repaired, and why", d)
			}
		}
		if got := fmt.Sprint(ordertest.ItemOf(t, s.Store, s.Item), ordertest.BuyersOf(t, s.Store, s.Item)); got != rows || s.RedisState() != state {
			t.Errorf("changed to %s\n%s", got, s.RedisState())
		}
		if n := audits(s); n != 0 {
			t.Errorf("%d records of repairs", n)
		}
		// A sale is not built from a wrong count either, unless the count is repaired
		// first.
		s.Exec("UPDATE orders SET quantity = 1 WHERE id = ?", o.ID)
		s.Exec("UPDATE items SET sold = 6 WHERE id = ?", s.Item)
		if r := reconcile(s, RepairSales); r.Clean() || s.RedisState() != state {
			t.Errorf("repair of only the sale: %+v", r)
		}
		if r := reconcile(s, RepairAll); !r.Clean() || r.Ledger != (order.Ledger{Initial: 10, Sold: 10}) {
			t.Errorf("repair of all: %+v", r)
		}
		if n := audits(s); n != 2 {
			t.Errorf("%d records of repairs, want one of the buyers and one of the item", n)
		}
		ordertest.AuditStore(t, s.Store)
	})
}

// audits counts the audit entries of repairs of the site's item, and checks that they are
// complete.
func audits(s *shoptest.Shop) int {
	s.T.Helper()
	var list []struct{ Actor, Before, After, RequestID string }
	err := s.Store.Reader().WithContext(await.Context(s.T)).
		Raw("SELECT actor, before, after, request_id FROM audit WHERE action = 'reconcile.repair' AND item_id = ?", s.Item).Scan(&list).Error
	if err != nil {
		s.T.Fatal(err)
	}
	for _, a := range list {
		if a.Actor != "root" || a.RequestID != "r1" || !strings.Contains(a.Before, `"sold":`) || !strings.Contains(a.After, `"sold":`) {
			s.T.Errorf("audit %+v", a)
		}
	}
	return len(list)
}

// TestReconciler_NotLoaded: a sale that is not in Redis is no fault, and stays unloaded.
func TestReconciler_NotLoaded(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 10, 5))
		s.MustPlace(s.Purchase("a", "k", 3, 0))
		for name, lose := range map[string]func(){
			"missing":    func() {},
			"half there": func() { s.Hset("sale", "left", 1) },
			"another epoch": func() {
				s.Hset("sale", "epoch", 1, "per_user_limit", 1, "opens_ms", 1, "closes_ms", 0, "version", "1.1.0")
			},
		} {
			if err := rdb.Del(await.Context(t), s.SaleKey("sale")).Err(); err != nil {
				t.Fatal(err)
			}
			lose()
			state := s.RedisState()
			r := reconcile(s, RepairAll)
			if r.Loaded || len(r.Drifts) > 0 || r.Ledger != (order.Ledger{Initial: 10, Left: 7, Held: 3}) || s.RedisState() != state {
				t.Errorf("%s: %+v", name, r)
			}
		}
		s.Exec("UPDATE items SET sold = 2 WHERE id = ?", s.Item)
		if r := reconcile(s, RepairAll); kinds(r.Drifts) != "sold" || !r.Clean() || r.Loaded {
			t.Errorf("database of a sale that is not loaded: %+v", r)
		}
		if l := ledgerOf(s); l != (order.Ledger{Initial: 10, Left: 7, Held: 3}) {
			t.Errorf("ledger %+v", l)
		}
		if _, err := ReconcilerOf(s).Reconcile(await.Context(t), Options{ItemID: "none"}); !errors.Is(err, catalog.ErrItemNotFound) {
			t.Errorf("no item: %v, want ErrItemNotFound", err)
		}
	})
}

// TestReconciler_BrokenItem: unreadable data of one item does not prevent the examination
// of the others.
func TestReconciler_BrokenItem(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 10, 5))
		ids := []string{s.Item}
		for _, suffix := range []string{"-b", "-c"} {
			n := ordertest.NewItem(s.Item+suffix, 10, 5)
			if _, err := s.Sales.CreateItem(await.Context(t), n); err != nil {
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
		r := ReconcilerOf(s)
		r.OnRepair = func(item string, d Drift) { heard = append(heard, item+" "+string(d.Kind)) }
		for _, deep := range []bool{true, false} {
			report, err := r.Reconcile(await.Context(t), Options{Deep: deep})
			if err != nil || report.Examined != 3 || report.Failed != 1 || report.Differing != 1 || report.Balanced || len(report.Items) != 3 || report.Took <= 0 {
				t.Fatalf("deep %v: %+v, %v", deep, report, err)
			}
			if report.Items[0].Err != nil || report.Items[1].Err == nil || kinds(report.Items[2].Drifts) != "left" {
				t.Errorf("deep %v: %+v", deep, report.Items)
			}
		}
		report, err := r.Reconcile(await.Context(t), Options{Repair: RepairAll})
		if err != nil || report.Repaired != 1 || report.Failed != 1 || report.Balanced || !report.Items[2].Clean() || !slices.Equal(heard, []string{ids[2] + " left"}) {
			t.Errorf("repair: %+v, %v; reported %v", report, err, heard)
		}
	})
}
