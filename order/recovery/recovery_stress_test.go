package recovery

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/pause"
	"flashsale/internal/testing/await"
	"flashsale/internal/testing/longtest"
	"flashsale/internal/testing/redistest"
	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/ordertest"
	"flashsale/order/reconcile/reconciletest"
	"flashsale/order/shoptest"
	"flashsale/queue"
)

// instant is all of Redis's data, read in one step while others write.
type instant [][2]string

func takeInstant(t testing.TB, rdb *redis.Client) (all instant) {
	t.Helper()
	list, err := rdb.Eval(await.Context(t), `local all = {}
		for _, key in ipairs(redis.call('KEYS', '*')) do
			if redis.call('PTTL', key) == -1 then
				all[#all + 1] = key
				all[#all + 1] = redis.call('DUMP', key)
			end
		end
		return all`, nil).StringSlice()
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(list); i += 2 {
		all = append(all, [2]string{list[i], list[i+1]})
	}
	return all
}

// back restores Redis to an instant, also in one step.
func (all instant) back(t testing.TB, rdb *redis.Client) {
	t.Helper()
	ctx := await.Context(t)
	_, err := rdb.TxPipelined(ctx, func(tx redis.Pipeliner) error {
		tx.FlushAll(ctx)
		for _, kv := range all {
			tx.Restore(ctx, kv[0], 0, kv[1])
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestRecovery_Stress: Redis repeatedly returns with older data, during purchases, commits,
// cancellations and restocks. Orders that were answered as committed stay, and in the end
// no unit was sold twice, and none is lost.
func TestRecovery_Stress(t *testing.T) {
	t.Parallel()
	testRecoveryStress(t, 200, 50, 20)
}

func TestRecovery_Stress_Long(t *testing.T) {
	longtest.Only(t)
	t.Parallel()
	testRecoveryStress(t, 500, 150, 60)
}

// stressBuyer buys and cancels, and records the ids of committed orders.
func stressBuyer(ctx context.Context, t *testing.T, s *shoptest.Shop, b, purchases int, committed *sync.Map, seen *atomic.Int64) {
	t.Helper()
	for i := range purchases {
		wait := time.Duration(rand.IntN(2)) * time.Second
		p := s.Purchase(fmt.Sprintf("u%d", rand.IntN(600)), fmt.Sprintf("k%d-%d", b, i), 1, wait)
		placed, err := s.Service.Place(await.Context(t), p)
		switch {
		case err == nil && placed.Committed:
			committed.Store(placed.Order.ID, true)
			seen.Add(1)
			if rand.IntN(3) == 0 {
				if _, err := s.Service.Cancel(await.Context(t), placed.Order.ID, order.Canceller{Admin: true}); err != nil {
					t.Logf("cancel: %v", err)
				}
			}
		case err == nil, errors.Is(err, inventory.ErrSoldOut), errors.Is(err, inventory.ErrOverloaded), errors.Is(err, inventory.ErrUserLimit),
			errors.Is(err, inventory.ErrUnavailable), errors.Is(err, inventory.ErrRebuilding):
		default:
			t.Errorf("buy: %v", err)
		}
		pause.For(ctx, time.Duration(rand.IntN(4))*time.Millisecond)
	}
}

// checkAfterRewinds checks that no committed order was lost, and that every unit is sold once.
func checkAfterRewinds(t *testing.T, s *shoptest.Shop, committed *sync.Map) {
	t.Helper()
	rows := ordertest.AllRows(t, s.Store)
	committed.Range(func(id, _ any) bool {
		row, ok := rows[id.(string)]
		if !ok || row.Status == string(order.StatusRejected) {
			t.Errorf("order %v was committed, and is %+v", id, row)
		}
		return true
	})
	ordertest.AuditStore(t, s.Store)
	l := reconciletest.LedgerOf(s)
	if l.Initial+l.Restocked != l.Left+l.Held+l.Sold {
		t.Errorf("ledger %+v", l)
	}
	// No unit is lost: further buyers get the rest, to the last unit.
	s.Work()
	sellOut(s, "rest", 0)
	s.Drained()
	ordertest.AuditStore(t, s.Store)
	if l := reconciletest.LedgerOf(s); l.Left != 0 || l.Sold+l.Held != l.Initial+l.Restocked {
		t.Errorf("ledger %+v after the rest was sold", l)
	}
}

// testRecoveryStress makes each buyer buy that many times, and rewinds Redis at most most
// times.
func testRecoveryStress(t *testing.T, stock int64, purchases, most int) {
	rdb := redis.NewClient(redistest.Options(redistest.Real(t).Addr()))
	t.Cleanup(func() {
		if err := rdb.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	var r atomic.Pointer[Recovery]
	// A task that was leased when Redis was copied is available only after its lease.
	q := ordertest.NewQueue(t, rdb, queue.Config{Lease: 2 * time.Second})
	s := shoptest.NewOn(t, q, rdb, ordertest.NewItem("", stock, 2), inventory.Config{Observe: inventory.Observers{OnLoss: func(ctx context.Context, rewound int64) {
		if err := r.Load().Lost(ctx, rewound); err != nil && ctx.Err() == nil {
			t.Logf("check: %v", err)
		}
	}}.For})
	r.Store(recovery(s))
	settled(s, r.Load())
	ctx, cancel := context.WithCancel(await.Context(t))
	var running, buyers sync.WaitGroup
	running.Go(func() { r.Load().Run(ctx, 20*time.Millisecond) })
	defer running.Wait()
	defer cancel()
	stop := s.Work()

	var committed sync.Map // order id -> true
	var done, seen atomic.Int64
	for b := range 6 {
		buyers.Go(func() {
			stressBuyer(ctx, t, s, b, purchases, &committed, &seen)
			done.Add(1)
		})
	}
	rewinds := 0
	for done.Load() < 6 {
		then := takeInstant(t, rdb)
		for range 1 + rand.IntN(2) { // sometimes the same old copy, twice in a row
			pause.For(ctx, time.Duration(rand.IntN(60))*time.Millisecond)
			if rewinds == most { // the buyers must finish
				break
			}
			then.back(t, rdb)
			r.Load().Nudges.Nudge()
			rewinds++
		}
		if rewinds < most/3 {
			if _, _, err := s.Restock(1, fmt.Sprintf("more%d", rewinds)); err != nil {
				t.Logf("restock: %v", err)
			}
		}
		pause.For(ctx, time.Duration(rand.IntN(100))*time.Millisecond)
	}
	buyers.Wait()
	// Once more, without purchases: only the check detects it.
	settled(s, r.Load())
	s.MustRestock(10, "last")
	then := takeInstant(t, rdb)
	for i := range 3 {
		s.MustPlace(s.Purchase(fmt.Sprintf("last%d", i), "k", 1, ordertest.Long))
	}
	s.Drained()
	then.back(t, rdb)
	settled(s, r.Load())
	s.Drained()
	stop()
	t.Logf("%d rewinds, %d orders committed", rewinds, seen.Load())
	checkAfterRewinds(t, s, &committed)
}
