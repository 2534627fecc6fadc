package order

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/redistest"
)

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

// TestStore_Books_Erased: a buyer who is erased between two pages of the books, and so
// moves to the other side of what was read, is no difference.
func TestStore_Books_Erased(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	const buyers = booksPage + 100
	mustInsert(t, s, newItem("item", buyers, 1))
	for n := 0; n < buyers; n += 1000 {
		tasks := make([]task, 0, 1000)
		for i := n; i < min(n+1000, buyers); i++ {
			user := fmt.Sprintf("u%05d", i)
			tasks = append(tasks, bought(user, "item", user, "k", 1))
		}
		mustCommit(t, s, tasks...)
	}
	var b books
	if _, err := s.readBooks(testContext(t), "item", &b, 3); err != nil || b.phase != 1 || b.after == "" {
		t.Fatalf("%+v, %v", b, err)
	}
	if _, err := s.eraseFromItem(testContext(t), fmt.Sprintf("u%05d", buyers-1), "item", newPseudonym(), Erasure{Actor: "a"}); err != nil {
		t.Fatal(err)
	}
	for !b.done() {
		if _, err := s.readBooks(testContext(t), "item", &b, 100); err != nil {
			t.Fatal(err)
		}
	}
	if drifts := b.drifts(); len(drifts) > 0 {
		t.Errorf("%+v", drifts)
	}
}

// TestRecover_Reopened: an item that had ended when the backup was made, and was opened
// again, is removed from Redis at its next end.
func TestRecover_Reopened(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, newItem("", 10, 5))
		h := s.highWater()
		s.work()
		s.exec("UPDATE items SET opens_at = ?, closes_at = ?, freed = 1 WHERE id = ?", time.Now().Add(-2*time.Hour).UnixMilli(), time.Now().Add(-time.Hour).UnixMilli(), s.item)
		backup := s.backup()
		closes := time.Now().Add(time.Hour).Truncate(time.Millisecond)
		if _, err := s.service.ChangeItem(testContext(t), s.item, ItemChange{ClosesAt: &closes}, By{Actor: "root"}); err != nil {
			t.Fatal(err)
		}
		s.load()
		s.buys("a", "b")
		h.note(testContext(t))
		h = s.restore(backup)
		if _, _, err := s.recover(h, RecoverFromRedis, s.stops(h), nil); err != nil {
			t.Fatal(err)
		}
		if row := itemOf(t, s.store, s.item); row.Freed || row.ClosesAt != closes.UnixMilli() {
			t.Errorf("after it: freed %v, closes at %d, want %d", row.Freed, row.ClosesAt, closes.UnixMilli())
		}
	})
}
