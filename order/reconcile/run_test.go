package reconcile

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/ordertest"
	"flashsale/order/shoptest"
)

// round runs a round of the background.
func round(s *shoptest.Shop, r *Reconciler, b *roundMemory) Report {
	s.T.Helper()
	report, err := r.round(await.Context(s.T), b)
	if err != nil || report.Examined != 1 || len(report.Items) > 1 {
		s.T.Fatalf("round: %+v, %v", report, err)
	}
	return report
}

// TestReconciler_Run: the background repairs a sale that differs in two rounds, and leaves
// the database to an operator.
func TestReconciler_Run(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 10, 5))
		s.MustPlace(s.Purchase("u", "k", 1, 0))
		r := ReconcilerOf(s)
		var b roundMemory
		round := func(name, kind string, balanced bool) {
			t.Helper()
			report := round(s, r, &b)
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
			s.Hset("sale", "left", left)
			round("first", "left", false)
			round("second", "left", true)
			round("third", "", true)
		}
		s.Exec("UPDATE items SET sold = 1 WHERE id = ?", s.Item)
		round("before the books are read", "left", false)
		for range 3 {
			round("database", "sold", false)
		}
		s.Exec("UPDATE items SET sold = 0 WHERE id = ?", s.Item)
		round("as it was", "", true)
		ctx, cancel := context.WithCancel(await.Context(t))
		rounds := 0
		r.Run(ctx, time.Millisecond, func(report Report, err error) {
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

// TestReconciler_Run_Fenced: a sale that refuses every holder of its lock looks idle. The
// background finds it and rebuilds it.
func TestReconciler_Run_Fenced(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 10, 5))
		r := ReconcilerOf(s)
		var b roundMemory
		round(s, r, &b)
		s.Hset("sale", "fence", "9000000000000000")
		for range idleRounds + 2 {
			round(s, r, &b)
		}
		s.MustPlace(s.Purchase("u", "k", 1, 0))
	})
}

// stubborn is a stock that reports a rebuild of a sale without making it.
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

// on sets another stock.
func (r *Reconciler) on(stock Examiner) { r.Stock = stock }

// TestReconciler_Run_Busy: the background does not read a long queue, reports that, and
// keeps known differences. A requested reconciliation reads it, and so does the background
// once it is short.
func TestReconciler_Run_Busy(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 10, 5))
		r := ReconcilerOf(s)
		r.busy = 2
		var b roundMemory
		round := func(partial bool, kind string) {
			t.Helper()
			report := round(s, r, &b)
			if len(report.Items) != 1 || kinds(report.Items[0].Drifts) != kind || report.Items[0].Partial != partial {
				t.Errorf("round: %+v; want %q, partial %v", report, kind, partial)
			}
		}
		s.Hset("sale", "left", 8)
		round(false, "left")
		for i := range 3 {
			s.MustPlace(s.Purchase("u", fmt.Sprint(i), 1, 0))
		}
		round(true, "")
		round(true, "")
		if b.items[s.Item].differ != 1 {
			t.Errorf("%+v after rounds without a change", b.items[s.Item])
		}
		report, err := r.Reconcile(await.Context(t), Options{})
		if err != nil || kinds(report.Items[0].Drifts) != "left" {
			t.Errorf("requested: %+v, %v", report, err)
		}
		s.Work()
		s.Drained()
		round(false, "left") // found the second time, and repaired
		if l := Clean(s, "at the end", RepairNothing); l != (order.Ledger{Initial: 10, Left: 7, Sold: 3}) {
			t.Errorf("ledger %+v", l)
		}
	})
}

// TestReconciler_Run_Once: the background rebuilds a sale only once if that does not help,
// and not at all while its count in the database is wrong.
func TestReconciler_Run_Once(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 10, 5))
		r := ReconcilerOf(s)
		asked := 0
		var b roundMemory
		rounds := func(n int, stubs bool, want int) {
			t.Helper()
			r.on(stubborn{s.Stock, &asked, stubs})
			asked = 0
			for range n {
				round(s, r, &b)
			}
			if asked != want {
				t.Errorf("%d rebuilds were requested, want %d", asked, want)
			}
		}
		s.Hset("sale", "left", 8)
		rounds(5, true, 1)
		report, err := r.Reconcile(await.Context(t), Options{ItemID: s.Item, Repair: RepairSales})
		if err != nil || report.Balanced || report.Repaired != 0 {
			t.Errorf("a rebuild that does not help: %+v, %v", report, err)
		}
		s.Hset("sale", "left", 10)
		rounds(2, true, 0)
		s.Exec("UPDATE items SET sold = 1 WHERE id = ?", s.Item)
		rounds(2, false, 0)
		s.Hset("sale", "left", 7)
		rounds(5, false, 0)
		s.Exec("UPDATE items SET sold = 0 WHERE id = ?", s.Item)
		rounds(4, false, 1)
		if l := Clean(s, "at the end", RepairNothing); l != (order.Ledger{Initial: 10, Left: 10}) {
			t.Errorf("ledger at the end: %+v", l)
		}
	})
}

// TestReconciler_Run_RepairFails: a repair that fails is retried in the next round.
func TestReconciler_Run_RepairFails(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 10, 5))
		r := ReconcilerOf(s)
		var b roundMemory
		s.Hset("sale", "left", 8)
		round(s, r, &b)
		r.on(failingExaminer{s.Stock})
		for range 2 {
			if report := round(s, r, &b); report.Repaired != 0 {
				t.Fatalf("repaired although it failed: %+v", report)
			}
		}
		r.on(s.Stock)
		round(s, r, &b)
		if l := Clean(s, "at the end", RepairNothing); l != (order.Ledger{Initial: 10, Left: 10}) {
			t.Errorf("ledger at the end: %+v", l)
		}
	})
}

// TestReconciler_LookCut: a read under the lock that was cut off is retried.
func TestReconciler_LookCut(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 10, 5))
		r := ReconcilerOf(s)
		held := 0
		r.on(examinerFunc{s.Stock, func() {
			if held++; held == 3 {
				r.hold = ordertest.Limit
			}
		}})
		r.hold = 0
		s.Hset("sale", "left", 8)
		report, err := r.Reconcile(await.Context(t), Options{Repair: RepairSales})
		if err != nil || len(report.Items) != 1 || report.Repaired != 1 {
			t.Errorf("%+v, %v, want one repair", report, err)
		}
		if held != 3 {
			t.Errorf("%d reads under the lock, want 3", held)
		}
	})
}

// examinerFunc is a stock that calls before ahead of each read under a lock, while it does
// not hold the lock yet.
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

// TestReconciler_Run_BooksAgain: the background compares the books of an item again once it
// has changed, even if no other item was compared in between.
func TestReconciler_Run_BooksAgain(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		found := ""
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 10, 5))
		s.Work()
		r := ReconcilerOf(s)
		var b roundMemory
		for range 3 {
			if report := round(s, r, &b); !report.Balanced {
				t.Fatalf("fresh: %+v", report)
			}
		}
		s.MustPlace(s.Purchase("u", "k", 1, 0))
		s.Drained()
		s.Exec("UPDATE buyers SET quantity = 3 WHERE item_id = ?", s.Item)
		for range 5 {
			report := round(s, r, &b)
			for _, item := range report.Items {
				found += kinds(item.Drifts)
			}
		}
		if found == "" {
			t.Errorf("the wrong row of a buyer was not found; booked %+v, row %+v", b.items[s.Item].booked, figures(&b.items[s.Item].row))
		}
	})
}

// TestReconciler_Run_MendedBooks: a difference that an operator has repaired is not
// reported again.
func TestReconciler_Run_MendedBooks(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 10, 5))
		s.Work()
		s.MustPlace(s.Purchase("u", "k", 1, 0))
		s.Drained()
		s.Exec("UPDATE buyers SET quantity = 3 WHERE item_id = ?", s.Item)
		r := ReconcilerOf(s)
		var b roundMemory
		found := ""
		for range 3 {
			for _, item := range round(s, r, &b).Items {
				found += kinds(item.Drifts)
			}
		}
		if found == "" {
			t.Fatal("the wrong row of a buyer was not found")
		}
		reconcile(s, RepairAll)
		Clean(s, "after the repair", RepairNothing)
		for n := range 25 {
			if report := round(s, r, &b); n > 2 && !report.Balanced {
				t.Fatalf("round %d after the repair: %+v", n, report)
			}
		}
	})
}
