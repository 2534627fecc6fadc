package store_test

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/mattn/go-sqlite3"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/items"
	"flashsale/order/ordertest"
	"flashsale/order/reconcile/reconciletest"
	"flashsale/order/shoptest"
	"flashsale/order/store"
	"flashsale/order/store/database"
	"flashsale/order/store/storetest"
	"flashsale/order/worker"
	"flashsale/queue"
)

// ambiguous runs fn for the ways in which the outcome of a COMMIT is unknown: an error of
// SQLite, and one of a closed connection.
func ambiguous(t *testing.T, fn func(t *testing.T, fault store.CommitFault)) {
	for _, committed := range []bool{false, true} {
		for _, e := range []struct {
			name string
			err  error
		}{
			{"ioerr", sqlite3.Error{Code: sqlite3.ErrIoErr}},
			{"full", sqlite3.Error{Code: sqlite3.ErrFull}},
			{"busy", sqlite3.Error{Code: sqlite3.ErrBusy}},
			{"bad connection", driver.ErrBadConn},
			{"cut", io.ErrUnexpectedEOF},
		} {
			t.Run(fmt.Sprintf("committed=%v %s", committed, e.name), func(t *testing.T) {
				t.Parallel()
				fn(t, store.CommitFault{Committed: committed, Err: e.err})
			})
		}
	}
}

// TestFulfiller_CommitUnknown commits batches whose COMMIT fails once or twice: each order
// becomes one row, with its event, and its task is done.
func TestFulfiller_CommitUnknown(t *testing.T) {
	t.Parallel()
	ambiguous(t, func(t *testing.T, fault store.CommitFault) {
		s := storetest.New(t)
		faults := store.BreakCommits(t, s)
		events := ordertest.SubscribeAll(t, s)
		storetest.MustInsert(t, s, ordertest.NewItem("item", 25, 1))
		f := worker.NewFulfiller(s, redistest.Embedded(t), nil, func(error) {})
		leased := func(tasks []order.Task) []queue.Leased {
			out := make([]queue.Leased, len(tasks))
			for i := range tasks {
				out[i] = queue.Leased{ID: tasks[i].ID, Payload: []byte(tasks[i].Payload())}
			}
			return out
		}
		done := func(batch []order.Task, strikes int) {
			t.Helper()
			faults.Strike(slices.Repeat([]store.CommitFault{fault}, strikes)...)
			for i, err := range f.Handle(await.Context(t), leased(batch)) {
				if err != nil {
					t.Errorf("task %d of a batch whose commit failed %d times: %v", i, strikes, err)
				}
			}
			faults.Struck(t, strikes)
		}
		first := ordertest.Distinct("a", "item", 10)
		done(first, 1)
		// Half of them exist already, so they are committed one by one; there are more of
		// them than units.
		second := append(slices.Clone(first[:5]), ordertest.Distinct("b", "item", 20)...)
		done(second, 3)
		rows := ordertest.AllRows(t, s)
		status := map[string]int{}
		for _, r := range rows {
			status[r.Status+" "+r.Reason]++
		}
		if len(rows) != 30 || status["confirmed "] != 25 || status["rejected sold_out"] != 5 {
			t.Errorf("%d rows: %v, want 25 confirmed and 5 sold out", len(rows), status)
		}
		// One for each order, and one for the last unit.
		if n := events(); n != 31 {
			t.Errorf("%d events, want 31", n)
		}
		ordertest.AuditStore(t, s)
	})
}

// TestBreakCommits_Path: the faults occur in the store's own file, whatever its path is.
func TestBreakCommits_Path(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "100%25 sure? #1")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s := storetest.NewAt(t, filepath.Join(dir, "shop.db"))
	store.BreakCommits(t, s)
	storetest.MustInsert(t, s, ordertest.NewItem("item", 1, 1))
	if rows := storetest.MustCommit(t, s, ordertest.Distinct("a", "item", 1)...); len(rows) != 1 {
		t.Errorf("%d orders, want one", len(rows))
	}
}

// TestStore_LifeUnknown ends orders by transactions whose COMMIT fails. A repeat gets the
// present state, and no change is made twice.
func TestStore_LifeUnknown(t *testing.T) {
	t.Parallel()
	ambiguous(t, func(t *testing.T, fault store.CommitFault) {
		s := storetest.New(t)
		faults := store.BreakCommits(t, s)
		events := ordertest.SubscribeAll(t, s)
		now := storetest.SetClock(s)
		storetest.MustInsert(t, s, ordertest.Asking("item", 10, 2, time.Minute))
		storetest.MustCommit(t, s, ordertest.Distinct("o", "item", 3)...)
		paid, cancelled, expired := "o0000", "o0001", "o0002"
		ctx := await.Context(t)

		faults.Strike(fault)
		if _, err := s.Pay(ctx, paid, ordertest.Money("psp-1", 1)); !errors.Is(err, database.ErrUnavailable) {
			t.Errorf("a payment of unknown outcome: %v, want %v", err, database.ErrUnavailable)
		}
		faults.Struck(t, 1)
		if o, err := s.Pay(ctx, paid, ordertest.Money("psp-1", 1)); err != nil || o.Status != order.StatusPaid {
			t.Errorf("the payment again: %s, %v", o.Status, err)
		}
		if got := ordertest.PaymentsOf(t, s); len(got) != 1 || got["psp-1"] != paid+" accepted" {
			t.Errorf("payments are %v", got)
		}

		faults.Strike(fault)
		if _, _, err := s.Cancel(ctx, cancelled, order.Canceller{Admin: true}); !errors.Is(err, database.ErrUnavailable) {
			t.Errorf("a cancellation of unknown outcome: %v, want %v", err, database.ErrUnavailable)
		}
		faults.Struck(t, 1)
		if o, pending, err := s.Cancel(ctx, cancelled, order.Canceller{Admin: true}); err != nil || o.Status != order.StatusCancelled || len(pending) != 1 {
			t.Errorf("the cancellation again: %s, %d pending releases, %v", o.Status, len(pending), err)
		}

		now.Add(2 * time.Minute.Milliseconds())
		faults.Strike(fault, fault)
		await.True(t, "the expiry to succeed", func() bool {
			results, pending, err := s.Expire(ctx, []string{expired})
			if err == nil && (results[expired].Status != order.StatusExpired || len(pending) != 1) {
				t.Errorf("the expiry: %v, %d pending releases", results, len(pending))
			}
			if err != nil && !errors.Is(err, database.ErrUnavailable) {
				t.Errorf("an expiry of unknown outcome: %v", err)
			}
			return err == nil
		})
		faults.Struck(t, 2)
		if pending := ordertest.ReleasesOf(t, s); !slices.Equal(pending, []string{cancelled, expired}) {
			t.Errorf("pending releases: %v", pending)
		}
		if n := events(); n != 6 {
			t.Errorf("%d events, want one for each of 3 orders and of 3 ends", n)
		}
		ordertest.AuditStore(t, s)
	})
}

// TestService_ChangeUnknown creates and restocks an item by transactions whose COMMIT
// fails: a repeat resolves the unknown outcome, and Redis and the database have equal
// counts.
func TestService_ChangeUnknown(t *testing.T) {
	t.Parallel()
	ambiguous(t, func(t *testing.T, fault store.CommitFault) {
		rdb := redistest.Embedded(t)
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 10, 1))
		faults := store.BreakCommits(t, s.Store)
		ctx := await.Context(t)

		faults.Strike(fault)
		if _, err := s.Sales.CreateItem(ctx, ordertest.NewItem("other", 5, 1)); !errors.Is(err, database.ErrUnavailable) {
			t.Errorf("an item of unknown outcome: %v, want %v", err, database.ErrUnavailable)
		}
		faults.Struck(t, 1)
		_, err := s.Sales.CreateItem(ctx, ordertest.NewItem("other", 5, 1))
		if fault.Committed && !errors.Is(err, order.ErrItemExists) || !fault.Committed && err != nil {
			t.Errorf("the item again: %v", err)
		}
		if got := ordertest.ItemOf(t, s.Store, "other"); got.Total != 5 || len(ordertest.AuditLog(t, s.Store, "other")) != 1 {
			t.Errorf("the item has %d units, and %d entries in the audit", got.Total, len(ordertest.AuditLog(t, s.Store, "other")))
		}

		s.MustPlace(s.Purchase("u", "k", 1, 0))
		r := items.Restock{Quantity: 7, Reason: "test", IdempotencyKey: "k"}
		faults.Strike(fault)
		// The call checks for its key, and finds the restock if it was made.
		_, replayed, err := s.Sales.Restock(ctx, s.Item, r, ordertest.Root)
		if replayed != fault.Committed || (err == nil) != fault.Committed || errors.Is(err, inventory.ErrUnchanged) {
			t.Errorf("a restock of unknown outcome: replayed %v, %v", replayed, err)
		}
		faults.Struck(t, 1)
		if _, replayed, err := s.Restock(7, "k"); err != nil || replayed != fault.Committed {
			t.Errorf("the restock again: replayed %v, %v", replayed, err)
		}
		if n := ordertest.StockLedger(t, s.Store, s.Item); n != 1 {
			t.Errorf("%d restocks are recorded, want 1", n)
		}
		s.Work()
		s.Drained()
		s.MustPlace(s.Purchase("v", "k", 1, ordertest.Limit))
		if l := reconciletest.LedgerOf(s); l.Left != 15 || l.Restocked != 7 || !l.Balanced() {
			t.Errorf("the ledger: %+v", l)
		}
		ordertest.AuditStore(t, s.Store)
	})
}
