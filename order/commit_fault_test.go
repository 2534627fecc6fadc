package order

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/mattn/go-sqlite3"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/inventory"
	"flashsale/queue"
)

// ambiguous runs fn for the ways in which the outcome of a COMMIT is unknown: an error of
// SQLite, and one of a closed connection.
func ambiguous(t *testing.T, fn func(t *testing.T, fault commitFault)) {
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
				fn(t, commitFault{committed, e.err})
			})
		}
	}
}

// TestFulfiller_CommitUnknown commits batches whose COMMIT fails once or twice: each order
// becomes one row, with its event, and its task is done.
func TestFulfiller_CommitUnknown(t *testing.T) {
	t.Parallel()
	ambiguous(t, func(t *testing.T, fault commitFault) {
		s := newStore(t)
		faults := breakCommits(t, s)
		events := hearing(t, s)
		mustInsert(t, s, newItem("item", 25, 1))
		f := NewFulfiller(s, redistest.Embedded(t), nil, func(error) {})
		leased := func(tasks []task) []queue.Leased {
			out := make([]queue.Leased, len(tasks))
			for i := range tasks {
				out[i] = queue.Leased{ID: tasks[i].ID, Payload: []byte(tasks[i].payload())}
			}
			return out
		}
		done := func(batch []task, strikes int) {
			t.Helper()
			faults.strike(slices.Repeat([]commitFault{fault}, strikes)...)
			for i, err := range f.Handle(await.Context(t), leased(batch)) {
				if err != nil {
					t.Errorf("task %d of a batch whose commit failed %d times: %v", i, strikes, err)
				}
			}
			faults.struck(t, strikes)
		}
		first := distinct("a", "item", 10)
		done(first, 1)
		// Half of them exist already, so they are committed one by one; there are more of
		// them than units.
		second := append(slices.Clone(first[:5]), distinct("b", "item", 20)...)
		done(second, 3)
		rows := allRows(t, s)
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
		auditStore(t, s)
	})
}

// TestStore_LifeUnknown ends orders by transactions whose COMMIT fails. A repeat gets the
// present state, and no change is made twice.
func TestStore_LifeUnknown(t *testing.T) {
	t.Parallel()
	ambiguous(t, func(t *testing.T, fault commitFault) {
		s := newStore(t)
		faults := breakCommits(t, s)
		events := hearing(t, s)
		now := setClock(s)
		mustInsert(t, s, asking("item", 10, 2, time.Minute))
		mustCommit(t, s, distinct("o", "item", 3)...)
		paid, cancelled, expired := "o0000", "o0001", "o0002"
		ctx := await.Context(t)

		faults.strike(fault)
		if _, err := s.pay(ctx, paid, money("psp-1", 1)); !errors.Is(err, ErrDatabase) {
			t.Errorf("a payment of unknown outcome: %v, want %v", err, ErrDatabase)
		}
		faults.struck(t, 1)
		if o, err := s.pay(ctx, paid, money("psp-1", 1)); err != nil || o.Status != StatusPaid {
			t.Errorf("the payment again: %s, %v", o.Status, err)
		}
		if got := payments(t, s); len(got) != 1 || got["psp-1"] != paid+" accepted" {
			t.Errorf("payments are %v", got)
		}

		faults.strike(fault)
		if _, _, err := s.cancel(ctx, cancelled, Canceller{Admin: true}); !errors.Is(err, ErrDatabase) {
			t.Errorf("a cancellation of unknown outcome: %v, want %v", err, ErrDatabase)
		}
		faults.struck(t, 1)
		if o, owed, err := s.cancel(ctx, cancelled, Canceller{Admin: true}); err != nil || o.Status != StatusCancelled || len(owed) != 1 {
			t.Errorf("the cancellation again: %s, %d pending releases, %v", o.Status, len(owed), err)
		}

		now.Add(2 * time.Minute.Milliseconds())
		faults.strike(fault, fault)
		f := NewFulfiller(s, redistest.Embedded(t), nil, func(error) {})
		err := f.persist(ctx, func() error {
			stand, owed, err := s.expire(ctx, []string{expired})
			if err == nil && (stand[expired].status != StatusExpired || len(owed) != 1) {
				t.Errorf("the expiry: %v, %d pending releases", stand, len(owed))
			}
			return err
		})
		if err != nil {
			t.Errorf("an expiry of unknown outcome: %v", err)
		}
		faults.struck(t, 2)
		if owed := owedOf(t, s); !slices.Equal(owed, []string{cancelled, expired}) {
			t.Errorf("pending releases: %v", owed)
		}
		if n := events(); n != 6 {
			t.Errorf("%d events, want one for each of 3 orders and of 3 ends", n)
		}
		auditStore(t, s)
	})
}

// TestService_ChangeUnknown creates and restocks an item by transactions whose COMMIT
// fails: a repeat resolves the unknown outcome, and Redis and the database have equal
// counts.
func TestService_ChangeUnknown(t *testing.T) {
	t.Parallel()
	ambiguous(t, func(t *testing.T, fault commitFault) {
		rdb := redistest.Embedded(t)
		s := newSite(t, rdb, false, newItem("", 10, 1))
		faults := breakCommits(t, s.store)
		ctx := await.Context(t)

		faults.strike(fault)
		if _, err := s.sales.CreateItem(ctx, newItem("other", 5, 1)); !errors.Is(err, ErrDatabase) {
			t.Errorf("an item of unknown outcome: %v, want %v", err, ErrDatabase)
		}
		faults.struck(t, 1)
		_, err := s.sales.CreateItem(ctx, newItem("other", 5, 1))
		if fault.committed && !errors.Is(err, ErrItemExists) || !fault.committed && err != nil {
			t.Errorf("the item again: %v", err)
		}
		if got := itemOf(t, s.store, "other"); got.Total != 5 || len(trail(t, s.store, "other")) != 1 {
			t.Errorf("the item has %d units, and %d entries in the audit", got.Total, len(trail(t, s.store, "other")))
		}

		s.mustPlace(s.purchase("u", "k", 1, 0))
		r := Restock{Quantity: 7, Reason: "test", IdempotencyKey: "k"}
		faults.strike(fault)
		// The call checks for its key, and finds the restock if it was made.
		_, replayed, err := s.sales.Restock(ctx, s.item, r, root)
		if replayed != fault.committed || (err == nil) != fault.committed || errors.Is(err, inventory.ErrUnchanged) {
			t.Errorf("a restock of unknown outcome: replayed %v, %v", replayed, err)
		}
		faults.struck(t, 1)
		if _, replayed, err := s.restock(7, "k"); err != nil || replayed != fault.committed {
			t.Errorf("the restock again: replayed %v, %v", replayed, err)
		}
		if n := stockLedger(t, s.store, s.item); n != 1 {
			t.Errorf("%d restocks are recorded, want 1", n)
		}
		s.work()
		s.drained()
		s.mustPlace(s.purchase("v", "k", 1, limit))
		if l := ledgerOf(s); l.Left != 15 || l.Restocked != 7 || !l.Balanced() {
			t.Errorf("the ledger: %+v", l)
		}
		auditStore(t, s.store)
	})
}
