package order

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
	"flashsale/lock"
	"flashsale/queue"
)

// allConfirmed sells the rest, handles all tasks, and expects that every accepted order got
// its unit of the stock.
func (s *site) allConfirmed(stock int64) {
	s.t.Helper()
	s.sellOut("rest", 0)
	s.work()
	s.drained()
	for id, row := range allRows(s.t, s.store) {
		if row.Status != string(StatusConfirmed) {
			s.t.Errorf("order %s was accepted, and is %s (%s)", id, row.Status, row.Reason)
		}
	}
	if l := ledgerOf(s); l.Sold != stock || l.Left != 0 {
		s.t.Errorf("ledger %+v", l)
	}
	auditStore(s.t, s.store)
}

// TestRecovery_Rewound_InHands: Redis returns without an order that a worker holds and that
// has no row yet. No row shows the loss, but the process that sold the order detects it;
// the rebuilt sale must not sell the unit again.
func TestRecovery_Rewound_InHands(t *testing.T) {
	t.Parallel()
	alone(t, func(t *testing.T, rdb *redis.Client) {
		var r atomic.Pointer[Recovery]
		s := newSiteWith(t, rdb, newItem("", 10, 1), inventory.Config{Observe: inventory.Observers{OnLoss: func(ctx context.Context, rewound int64) {
			if err := r.Load().Lost(ctx, rewound); err != nil {
				t.Error(err)
			}
		}}.For})
		r.Store(s.recovery())
		s.settled(r.Load())
		s.mustPlace(s.purchase("a", "k", 1, 0))
		old := takePicture(t, rdb)
		for i := range 3 {
			s.mustPlace(s.purchase(fmt.Sprintf("held%d", i), "k", 1, 0))
		}
		f, err := s.queue.Dequeue(await.Context(t), 10)
		if err != nil || len(f.Tasks) != 4 {
			t.Fatalf("dequeue: %+v, %v", f, err)
		}
		rewind(t, rdb, old)
		s.mustPlace(s.purchase("b", "k", 1, 0))
		s.fulfiller.queued = []Membership{s.queue}
		for i, err := range s.fulfiller.Handle(await.Context(t), f.Tasks) {
			if err != nil {
				t.Errorf("order %d: %v", i, err)
			}
		}
		s.allConfirmed(10)
	})
}

// TestRecovery_Rewound_Twice: the same old copy, from the epoch before the recovery,
// replaces Redis's data a second time. It contains nothing of the tasks that a worker took
// under the new epoch.
func TestRecovery_Rewound_Twice(t *testing.T) {
	t.Parallel()
	alone(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, newItem("", 10, 1))
		r := s.recovery()
		s.settled(r)
		if err := s.stock.Reload(await.Context(t), s.item); err != nil {
			t.Fatal(err)
		}
		old := takePicture(t, rdb)
		first := s.work()
		s.mustPlace(s.purchase("a", "k", 1, long))
		first()
		rewind(t, rdb, old)
		s.settled(r)
		for i := range 3 {
			s.mustPlace(s.purchase(fmt.Sprintf("held%d", i), "k", 1, 0))
		}
		f, err := s.queue.Dequeue(await.Context(t), 10)
		if err != nil || len(f.Tasks) != 3 {
			t.Fatalf("dequeue: %+v, %v", f, err)
		}
		rewind(t, rdb, old)
		s.settled(s.recovery()) // the first process that detects it
		if err := s.stock.Reload(await.Context(t), s.item); err != nil {
			t.Fatal(err)
		}
		s.fulfiller.queued = []Membership{s.queue}
		for i, err := range s.fulfiller.Handle(await.Context(t), f.Tasks) {
			if err != nil {
				t.Errorf("order %d: %v", i, err)
			}
		}
		s.allConfirmed(10)
	})
}

// restarted replaces the site's inventory with one that has received no messages.
func (s *site) restarted(onRestart func(context.Context) error) {
	s.t.Helper()
	locks, err := lock.New(s.rdb, patientLocks)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { s.end(locks.Close) })
	before := s.stock
	s.t.Cleanup(func() { s.end(before.Close) })
	sales := &Sales{Store: s.store, Tasks: []Tasks{s.queue}, Partition: func(string) int { return 0 }}
	s.stock, err = inventory.New(await.Context(s.t), s.rdb, locks, []*queue.Queue{s.queue}, sales,
		inventory.Config{Patience: 20 * time.Second, OnError: s.heard, Observe: inventory.Observers{OnRestart: onRestart}.For})
	if err != nil {
		s.t.Fatal(err)
	}
	s.service.Stock = s.stock // newSiteWith closes this one at the end
}

// TestRecovery_Rewound_Unnoticed: Redis returns without an order that a worker holds, and
// the seller cannot detect it: it is another process than before, or the sale is missing as
// if it had been dropped. The worker detects it because the order's task is missing.
func TestRecovery_Rewound_Unnoticed(t *testing.T) {
	t.Parallel()
	for _, dropped := range []bool{false, true} {
		alone(t, func(t *testing.T, rdb *redis.Client) {
			s := newSite(t, rdb, false, newItem("", 10, 1))
			s.settled(s.recovery())
			if dropped {
				if err := inventory.Distrust(await.Context(t), rdb, 1, []string{s.item}); err != nil {
					t.Fatal(err)
				}
			} else if err := s.stock.Reload(await.Context(t), s.item); err != nil {
				t.Fatal(err)
			}
			old := takePicture(t, rdb)
			for i := range 3 {
				s.mustPlace(s.purchase(fmt.Sprintf("held%d", i), "k", 1, 0))
			}
			// The worker has the orders, and is blocked before its commit.
			tx := s.store.Writer().Begin()
			if err := tx.Exec("UPDATE meta SET value = value WHERE key = 'epoch'").Error; err != nil {
				t.Fatal(err)
			}
			stop := s.work()
			await.True(t, "the worker to take the orders", func() bool {
				st, err := s.queue.Stats(await.Context(t))
				if err != nil {
					t.Fatal(err)
				}
				return st.Leased == 3 && st.Ready == 0
			})
			rewind(t, rdb, old)
			s.restarted(nil)
			s.mustPlace(s.purchase("b", "k", 1, 0))
			if err := tx.Rollback().Error; err != nil {
				t.Fatal(err)
			}
			await.True(t, "the orders to be rows", func() bool { return len(allRows(t, s.store)) >= 3 })
			stop() // it has acknowledged by then
			s.allConfirmed(10)
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
	alone(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, newItem("", 10, 1))
		r := s.recovery()
		slow := &holdingUp{s.stock, make(chan struct{}, 1), make(chan struct{})}
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
		case <-time.After(limit):
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
	alone(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, newItem("", 10, 1))
		s.settled(s.recovery())
		stop := s.work()
		s.mustPlace(s.purchase("a", "k", 1, long))
		s.drained()
		old := takePicture(t, rdb)
		s.mustPlace(s.purchase("lost0", "k", 1, long))
		s.mustPlace(s.purchase("lost1", "k", 1, long))
		s.drained()
		stop()
		rewind(t, rdb, old)
		if err := rdb.ScriptFlush(await.Context(t)).Err(); err != nil { // a restart loses the scripts
			t.Fatal(err)
		}
		r := s.recovery()
		s.restarted(func(ctx context.Context) error { // a process that has received no messages
			r.Stock = s.stock
			return r.Check(ctx)
		})
		s.mustPlace(s.purchase("b", "k", 1, 0))
		s.mustPlace(s.purchase("c", "k", 1, 0))
		s.settled(s.recovery())
		s.allConfirmed(10)
	})
}

// TestRecovery_Restart_NotCompared: while it is unknown whether a restarted server has all
// its data, nothing is sold from it.
func TestRecovery_Restart_NotCompared(t *testing.T) {
	t.Parallel()
	alone(t, func(t *testing.T, rdb *redis.Client) {
		fail := true
		s := newSiteWith(t, rdb, newItem("", 10, 1), inventory.Config{Observe: inventory.Observers{OnRestart: func(context.Context) error {
			if fail {
				return errTest
			}
			return nil
		}}.For})
		for range 2 {
			_, err := s.service.Place(await.Context(t), s.purchase("a", "k", 1, 0))
			if !errors.Is(err, inventory.ErrRebuilding) {
				t.Fatalf("before the comparison: %v, want ErrRebuilding", err)
			}
		}
		fail = false
		s.mustPlace(s.purchase("a", "k", 1, 0))
		fail = true // once is enough
		s.mustPlace(s.purchase("b", "k", 1, 0))
	})
}
