package recovery

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/inventory"
	"flashsale/inventory/accepted"
	"flashsale/lock"
	"flashsale/order"
	"flashsale/order/ordertest"
	"flashsale/order/reconcile/reconciletest"
	"flashsale/order/sales"
	"flashsale/order/shoptest"
	"flashsale/order/store/storetest"
	"flashsale/order/worker"
	"flashsale/queue"
)

// allConfirmed sells the rest, handles all tasks, and expects that every accepted order got
// its unit of the stock.
func allConfirmed(s *shoptest.Shop, stock int64) {
	s.T.Helper()
	sellOut(s, "rest", 0)
	s.Work()
	s.Drained()
	for id, row := range ordertest.AllRows(s.T, s.Store) {
		if row.Status != string(order.StatusConfirmed) {
			s.T.Errorf("order %s was accepted, and is %s (%s)", id, row.Status, row.Reason)
		}
	}
	if l := reconciletest.LedgerOf(s); l.Sold != stock || l.Left != 0 {
		s.T.Errorf("ledger %+v", l)
	}
	ordertest.AuditStore(s.T, s.Store)
}

// TestRecovery_Rewound_InHands: Redis returns without an order that a worker holds and that
// has no row yet. No row shows the loss, but the process that sold the order detects it;
// the rebuilt sale must not sell the unit again.
func TestRecovery_Rewound_InHands(t *testing.T) {
	t.Parallel()
	shoptest.OnOwnEngine(t, func(t *testing.T, rdb *redis.Client) {
		var r atomic.Pointer[Recovery]
		s := shoptest.NewWith(t, rdb, ordertest.NewItem("", 10, 1), inventory.Config{Observe: inventory.Observers{OnLoss: func(ctx context.Context, rewound int64) {
			if err := r.Load().Lost(ctx, rewound); err != nil {
				t.Error(err)
			}
		}}.For})
		r.Store(recovery(s))
		settled(s, r.Load())
		s.MustPlace(s.Purchase("a", "k", 1, 0))
		old := takePicture(t, rdb)
		for i := range 3 {
			s.MustPlace(s.Purchase(fmt.Sprintf("held%d", i), "k", 1, 0))
		}
		f, err := s.Queue.Dequeue(await.Context(t), 10)
		if err != nil || len(f.Tasks) != 4 {
			t.Fatalf("dequeue: %+v, %v", f, err)
		}
		rewind(t, rdb, old)
		s.MustPlace(s.Purchase("b", "k", 1, 0))
		s.Fulfiller.Queued = []worker.Membership{accepted.NewOrders(s.Queue)}
		for i, err := range s.Fulfiller.Handle(await.Context(t), f.Tasks) {
			if err != nil {
				t.Errorf("order %d: %v", i, err)
			}
		}
		allConfirmed(s, 10)
	})
}

// TestRecovery_Rewound_Twice: the same old copy, from the epoch before the recovery,
// replaces Redis's data a second time. It contains nothing of the tasks that a worker took
// under the new epoch.
func TestRecovery_Rewound_Twice(t *testing.T) {
	t.Parallel()
	shoptest.OnOwnEngine(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 10, 1))
		r := recovery(s)
		settled(s, r)
		if err := s.Stock.Reload(await.Context(t), s.Item); err != nil {
			t.Fatal(err)
		}
		old := takePicture(t, rdb)
		first := s.Work()
		s.MustPlace(s.Purchase("a", "k", 1, ordertest.Long))
		first()
		rewind(t, rdb, old)
		settled(s, r)
		for i := range 3 {
			s.MustPlace(s.Purchase(fmt.Sprintf("held%d", i), "k", 1, 0))
		}
		f, err := s.Queue.Dequeue(await.Context(t), 10)
		if err != nil || len(f.Tasks) != 3 {
			t.Fatalf("dequeue: %+v, %v", f, err)
		}
		rewind(t, rdb, old)
		settled(s, recovery(s)) // the first process that detects it
		if err := s.Stock.Reload(await.Context(t), s.Item); err != nil {
			t.Fatal(err)
		}
		s.Fulfiller.Queued = []worker.Membership{accepted.NewOrders(s.Queue)}
		for i, err := range s.Fulfiller.Handle(await.Context(t), f.Tasks) {
			if err != nil {
				t.Errorf("order %d: %v", i, err)
			}
		}
		allConfirmed(s, 10)
	})
}

// restarted replaces the site's inventory with one that has received no messages.
func restarted(s *shoptest.Shop, onRestart func(context.Context) error) {
	s.T.Helper()
	locks, err := lock.New(s.Rdb, ordertest.PatientLocks)
	if err != nil {
		s.T.Fatal(err)
	}
	s.T.Cleanup(func() { s.End(locks.Close) })
	before := s.Stock
	s.T.Cleanup(func() { s.End(before.Close) })
	sales := &sales.Source{Store: s.Store, Tasks: []order.Queued{accepted.NewOrders(s.Queue)}, Partition: func(string) int { return 0 }}
	s.Stock, err = inventory.New(await.Context(s.T), s.Rdb, locks, []*queue.Queue{s.Queue}, sales,
		inventory.Config{Patience: 20 * time.Second, OnError: s.CollectError, Observe: inventory.Observers{OnRestart: onRestart}.For})
	if err != nil {
		s.T.Fatal(err)
	}
	s.Service.Stock = s.Stock // shoptest.NewWith closes this one at the end
}

// TestRecovery_Rewound_Unnoticed: Redis returns without an order that a worker holds, and
// the seller cannot detect it: it is another process than before, or the sale is missing as
// if it had been dropped. The worker detects it because the order's task is missing.
func TestRecovery_Rewound_Unnoticed(t *testing.T) {
	t.Parallel()
	for _, dropped := range []bool{false, true} {
		shoptest.OnOwnEngine(t, func(t *testing.T, rdb *redis.Client) {
			s := shoptest.New(t, rdb, false, ordertest.NewItem("", 10, 1))
			settled(s, recovery(s))
			if dropped {
				if err := inventory.Invalidate(await.Context(t), rdb, 1, []string{s.Item}); err != nil {
					t.Fatal(err)
				}
			} else if err := s.Stock.Reload(await.Context(t), s.Item); err != nil {
				t.Fatal(err)
			}
			old := takePicture(t, rdb)
			for i := range 3 {
				s.MustPlace(s.Purchase(fmt.Sprintf("held%d", i), "k", 1, 0))
			}
			// The worker has the orders, and is blocked before its commit.
			tx := s.Store.Writer().Begin()
			if err := tx.Exec("UPDATE meta SET value = value WHERE key = 'epoch'").Error; err != nil {
				t.Fatal(err)
			}
			stop := s.Work()
			await.True(t, "the worker to take the orders", func() bool {
				st, err := s.Queue.Stats(await.Context(t))
				if err != nil {
					t.Fatal(err)
				}
				return st.Leased == 3 && st.Ready == 0
			})
			rewind(t, rdb, old)
			restarted(s, nil)
			s.MustPlace(s.Purchase("b", "k", 1, 0))
			if err := tx.Rollback().Error; err != nil {
				t.Fatal(err)
			}
			await.True(t, "the orders to be rows", func() bool { return len(ordertest.AllRows(t, s.Store)) >= 3 })
			stop() // it has acknowledged by then
			allConfirmed(s, 10)
		})
	}
}

// holdingUp is an inventory whose Redis does not answer before the test allows it.
type holdingUp struct {
	Sellable
	reached chan struct{}
	release chan struct{}
}

func (h *holdingUp) States(ctx context.Context) ([]inventory.State, error) {
	select {
	case h.reached <- struct{}{}:
	default:
	}
	<-h.release
	return h.Sellable.States(ctx)
}

// TestRecovery_Check_Leaves: a caller that waits for another's check can leave before its
// end; a seller that has lost its lock does not.
func TestRecovery_Check_Leaves(t *testing.T) {
	t.Parallel()
	shoptest.OnOwnEngine(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 10, 1))
		r := recovery(s)
		slow := &holdingUp{s.Stock, make(chan struct{}, 1), make(chan struct{})}
		r.Stock = slow
		first := make(chan error, 1)
		go func() { first <- r.Check(context.Background()) }()
		<-slow.reached
		ctx, cancel := context.WithCancel(await.Context(t))
		second := make(chan error, 1)
		go func() { second <- r.Check(ctx) }()
		cancel()
		select {
		case err := <-second:
			if !errors.Is(err, context.Canceled) {
				t.Errorf("the caller that left got %v", err)
			}
		case <-time.After(ordertest.Limit):
			t.Error("the caller that left is still waiting")
		}
		close(slow.release)
		if err := <-first; err != nil {
			t.Error(err)
		}
	})
}

// TestRecovery_Rewound_SoldOn: Redis restarts without orders that have rows. A process
// without knowledge of them would sell until the sale's sequence reaches the one in the
// rows, and the loss could not be detected any more. So it compares the two before its
// first script.
func TestRecovery_Rewound_SoldOn(t *testing.T) {
	t.Parallel()
	shoptest.OnOwnEngine(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 10, 1))
		settled(s, recovery(s))
		stop := s.Work()
		s.MustPlace(s.Purchase("a", "k", 1, ordertest.Long))
		s.Drained()
		old := takePicture(t, rdb)
		s.MustPlace(s.Purchase("lost0", "k", 1, ordertest.Long))
		s.MustPlace(s.Purchase("lost1", "k", 1, ordertest.Long))
		s.Drained()
		stop()
		rewind(t, rdb, old)
		if err := rdb.ScriptFlush(await.Context(t)).Err(); err != nil { // a restart loses the scripts
			t.Fatal(err)
		}
		r := recovery(s)
		restarted(s, func(ctx context.Context) error { // a process that has received no messages
			r.Stock = s.Stock
			return r.Check(ctx)
		})
		bought(s, s.Purchase("b", "k", 1, 0))
		bought(s, s.Purchase("c", "k", 1, 0))
		settled(s, recovery(s))
		allConfirmed(s, 10)
	})
}

// TestRecovery_Restart_NotCompared: while it is unknown whether a restarted server has all
// its data, nothing is sold from it.
func TestRecovery_Restart_NotCompared(t *testing.T) {
	t.Parallel()
	shoptest.OnOwnEngine(t, func(t *testing.T, rdb *redis.Client) {
		fail := true
		s := shoptest.NewWith(t, rdb, ordertest.NewItem("", 10, 1), inventory.Config{Observe: inventory.Observers{OnRestart: func(context.Context) error {
			if fail {
				return ordertest.ErrTest
			}
			return nil
		}}.For})
		for range 2 {
			_, err := s.Service.Place(await.Context(t), s.Purchase("a", "k", 1, 0))
			if !errors.Is(err, inventory.ErrRebuilding) {
				t.Fatalf("before the comparison: %v, want ErrRebuilding", err)
			}
		}
		fail = false
		s.MustPlace(s.Purchase("a", "k", 1, 0))
		fail = true // once is enough
		s.MustPlace(s.Purchase("b", "k", 1, 0))
	})
}

// olderAt is a Redis in which the sale of one item is older than its row.
type olderAt struct {
	Sellable
	item     string
	sequence int64
	voided   int
	declared int // sales that were invalid when the epoch was declared
}

func (o *olderAt) Progress(_ context.Context, _ int64, items []string) ([]inventory.Progress, error) {
	marks := make([]inventory.Progress, len(items))
	for i, item := range items {
		marks[i] = inventory.Progress{Loaded: item == o.item, Sequence: o.sequence}
	}
	return marks, nil
}

func (o *olderAt) Adopt(int64) {}
func (o *olderAt) Void(_ context.Context, _ int64, items []string) error {
	o.voided += len(items)
	return nil
}
func (o *olderAt) Declare(context.Context, int64) error {
	if o.declared = o.voided; o.declared == 0 {
		return ordertest.ErrTest
	}
	return nil
}

// TestRecovery_Pages: each check compares the next page of sales, and one of all compares every page. A loss
// makes the sales of every page invalid, and those that have not ended are loaded again.
func TestRecovery_Pages(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	storetest.MustInsert(t, s, ordertest.NewItem("a", 1, 1))
	mustExec(t, s, fmt.Sprintf(`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i <= %d)
		INSERT INTO items (id, name, price_minor, currency, initial, total, per_user_limit, opens_at, created_at, updated_at, version, sequence)
		SELECT 'b' || (1000 + i), name, price_minor, currency, initial, total, per_user_limit, opens_at, created_at, updated_at, version, 7 FROM n, items WHERE id = 'a'`, markPage))
	ctx := await.Context(t)
	stock := &olderAt{item: fmt.Sprint("b", 1000+markPage)}
	r := NewRecovery(Config{Store: s, Stock: stock})
	for n, want := range []bool{false, true} {
		if found, err := r.behind(ctx, 1, false); err != nil || (found != "") != want {
			t.Errorf("check %d: %q, %v", n+1, found, err)
		}
	}
	for _, stock.sequence = range []int64{0, 7} { // then only its version is older
		if found, err := r.behind(ctx, 1, true); err != nil || found == "" {
			t.Errorf("the check of all at sequence %d: %q, %v", stock.sequence, found, err)
		}
	}
	const all = markPage + 2
	if err := r.void(ctx, loss{}); err != nil || stock.voided != all || stock.declared != all {
		t.Errorf("%d sales are invalid, %d when the epoch was declared, want %d; %v", stock.voided, stock.declared, all, err)
	}
	for closes, want := range map[int64]int{1: all - 1, s.Now().Add(time.Hour).UnixMilli(): all} {
		mustExec(t, s, fmt.Sprintf("UPDATE items SET opens_at = 0, closes_at = %d WHERE id = 'a'", closes))
		if sales, err := onSale(ctx, s); err != nil || len(sales) != want {
			t.Errorf("%d sales to load, want %d; %v", len(sales), want, err)
		}
	}
}
