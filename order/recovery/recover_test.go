package recovery

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/inventory"
	"flashsale/inventory/accepted"
	"flashsale/order"
	"flashsale/order/items"
	"flashsale/order/ordertest"
	"flashsale/order/privacy"
	"flashsale/order/shoptest"
	"flashsale/order/store"
	"flashsale/order/store/storetest"
	"flashsale/order/worker"
	"flashsale/queue"
)

// saved are the tables of a backup. The orders come first: a trigger updates the counts in
// their items' rows.
var saved = []string{"orders", "items", "buyers", "payments", "releases", "stock_changes", "audit", "meta"}

// backup copies the site's database: into a file, or into a schema of Postgres.
func backup(s *shoptest.Shop) string {
	s.T.Helper()
	if s.Store.Postgres() {
		name := "backup_" + strings.ReplaceAll(uuid.NewString(), "-", "")
		mustRun(s, "CREATE SCHEMA "+name)
		for _, table := range saved {
			mustRun(s, "CREATE TABLE "+name+"."+table+" AS TABLE "+table)
		}
		return name
	}
	path := filepath.Join(s.T.TempDir(), "backup.db")
	if err := s.Store.Writer().Exec("VACUUM INTO ?", path).Error; err != nil {
		s.T.Fatal(err)
	}
	return path
}

// restore puts the backup's data into the site's database, and returns the HighWater of a
// process that starts on it.
func restore(s *shoptest.Shop, path string) *store.HighWater {
	s.T.Helper()
	schema := path
	if !s.Store.Postgres() {
		schema = "backup"
		mustRun(s, "ATTACH ? AS backup", path)
	}
	for _, table := range saved {
		mustRun(s, "DELETE FROM "+table)
		mustRun(s, "INSERT INTO "+table+" SELECT * FROM "+schema+"."+table)
	}
	if !s.Store.Postgres() {
		mustRun(s, "DETACH backup")
	}
	return s.HighWater()
}

func mustRun(s *shoptest.Shop, text string, args ...any) {
	s.T.Helper()
	if err := s.Store.Writer().Exec(text, args...).Error; err != nil {
		s.T.Fatalf("%s: %v", text, err)
	}
}

// stops checks all items, and expects only the site's to be stopped.
func stops(s *shoptest.Shop, h *store.HighWater) []store.Behind {
	s.T.Helper()
	stopped := shoptest.MustCheck(h, s.T)
	if len(stopped) != 1 || stopped[0].ItemID != s.Item {
		s.T.Fatalf("stopped %+v, want %s", stopped, s.Item)
	}
	return stopped
}

// recover decides about items; during is called when the list is synced.
func recoverItem(s *shoptest.Shop, h *store.HighWater, from RecoverFrom, items []store.Behind, during func() error) (RecoveredItem, map[string]int, error) {
	s.T.Helper()
	var list bytes.Buffer
	if during == nil {
		during = func() error { return nil }
	}
	var done RecoveredItem
	err := NewRecoverer(RecovererConfig{
		Store: s.Store, Redis: s.Rdb, Partitions: 1, Tasks: []order.Queued{accepted.NewOrders(s.Queue)}, HighWater: h, List: &list, Sync: during, By: order.By{Actor: "root"},
	}).Recover(await.Context(s.T), from, items, func(i RecoveredItem) { done = i })
	actions := make(map[string]int)
	for line := range strings.Lines(list.String()) {
		var o RecoveredOrder
		if err := json.Unmarshal([]byte(line), &o); err != nil {
			s.T.Fatalf("%s: %v", line, err)
		}
		actions[o.Action]++
	}
	return done, actions, err
}

// buys places purchases of new buyers, and returns the number of confirmed ones.
func buys(s *shoptest.Shop, users ...string) (confirmed int) {
	s.T.Helper()
	for _, user := range users {
		p, err := s.Service.Place(await.Context(s.T), s.Purchase(user, "k", 1, ordertest.Limit))
		switch {
		case err == nil && p.Order.Status == order.StatusConfirmed:
			confirmed++
		case err != nil && !errors.Is(err, inventory.ErrSoldOut):
			s.T.Fatalf("%s buys: %v", user, err)
		}
	}
	return confirmed
}

// resumes expects that no item is stopped, and that the database is consistent.
func resumes(s *shoptest.Shop, h *store.HighWater) {
	s.T.Helper()
	if stopped := shoptest.MustCheck(h, s.T); len(stopped) != 0 {
		s.T.Fatalf("stopped %+v after the decision", stopped)
	}
	row := ordertest.ItemOf(s.T, s.Store, s.Item)
	var changes int64
	if err := s.Store.Writer().Raw("SELECT COALESCE(SUM(quantity), 0) FROM stock_changes WHERE item_id = ?", s.Item).Scan(&changes).Error; err != nil {
		s.T.Fatal(err)
	}
	if row.Initial+changes != row.Total {
		s.T.Errorf("initial %d + changes %d is not the total %d", row.Initial, changes, row.Total)
	}
	ordertest.AuditStore(s.T, s.Store)
}

// TestHighWater_Sticks: neither commits after the restore nor a loss in Redis end the stop;
// replacing the database with a newer file does.
func TestHighWater_Sticks(t *testing.T) {
	t.Parallel()
	s := shoptest.New(t, redistest.Embedded(t), false, ordertest.NewItem("", 6, 1))
	s.HighWater()
	stop := s.Work()
	first := s.MustPlace(s.Purchase("u1", "k", 1, ordertest.Limit))
	old := backup(s)
	s.MustPlace(s.Purchase("u2", "k", 1, ordertest.Limit))
	s.Drained()
	stop()
	queued := s.MustPlace(s.Purchase("u3", "k", 1, 0))
	newer := backup(s)
	h := restore(s, old)
	stops(s, h)
	for _, reference := range []string{"psp-1", "psp-2", "psp-3"} {
		// Only the first one pays, but each of them is committed.
		if _, err := s.Service.Pay(await.Context(t), first.Order.ID, order.Payment{Reference: reference, AmountMinor: 1999, Currency: "EUR"}); err != nil && !errors.Is(err, order.ErrOrderFinal) {
			t.Fatal(err)
		}
	}
	stops(s, h)
	stop = s.Work()
	await.True(t, "the queued order to be snoozed", func() bool {
		st, err := s.Queue.Stats(await.Context(t))
		return err == nil && st.Ready+st.Leased == 0 && st.Delayed == 1
	})
	stop()
	if _, err := s.Store.Order(await.Context(t), queued.Order.ID); !errors.Is(err, order.ErrNotFound) {
		t.Errorf("the queued order of a stopped sale was committed (%v)", err)
	}
	stops(s, h)
	if err := s.Rdb.FlushAll(await.Context(t)).Err(); err != nil {
		t.Fatal(err)
	}
	stops(s, h)
	if stopped := shoptest.MustCheck(restore(s, newer), t); len(stopped) != 0 {
		t.Errorf("stopped %+v with the newer database back", stopped)
	}
}

// TestHighWater_OtherDatabaseMeanwhile: another database on the same Redis does not remove
// the marks of this one.
func TestHighWater_OtherDatabaseMeanwhile(t *testing.T) {
	t.Parallel()
	s := shoptest.New(t, redistest.Embedded(t), false, ordertest.NewItem("", 3, 1))
	s.HighWater()
	stop := s.Work()
	s.MustPlace(s.Purchase("u1", "k", 1, ordertest.Limit))
	old := backup(s)
	s.MustPlace(s.Purchase("u2", "k", 1, ordertest.Limit))
	s.Drained()
	stop()
	other := storetest.New(t)
	h, err := store.NewHighWater(await.Context(t), store.HighWaterConfig{Store: other, Redis: s.Rdb, Partitions: 1})
	if err != nil {
		t.Fatal(err)
	}
	shoptest.MustCheck(h, t)
	stops(s, restore(s, old))
}

// TestRecover_Twice: of two decisions about an item the second fails, and sells nothing.
func TestRecover_Twice(t *testing.T) {
	t.Parallel()
	s := shoptest.New(t, redistest.Embedded(t), false, ordertest.NewItem("", 3, 1))
	s.HighWater()
	stop := s.Work()
	s.MustPlace(s.Purchase("u1", "k", 1, ordertest.Limit))
	old := backup(s)
	s.MustPlace(s.Purchase("u2", "k", 1, ordertest.Limit))
	s.MustPlace(s.Purchase("u3", "k", 1, ordertest.Limit))
	s.Drained()
	stop()
	h := restore(s, old)
	stopped := stops(s, h)
	s.Work()
	decided := false
	_, _, err := recoverItem(s, h, RecoverFromRedis, stopped, func() error {
		if decided {
			return nil
		}
		decided = true
		if _, _, err := recoverItem(s, h, RecoverFromDatabase, stopped, nil); err != nil {
			t.Errorf("the other decision: %v", err)
		}
		shoptest.MustCheck(h, t)
		if n := buys(s, "x", "y"); n != 2 {
			t.Errorf("%d units are sold after the other decision, want 2", n)
		}
		return nil
	})
	if !errors.Is(err, ErrDecided) {
		t.Errorf("the second decision: %v, want %v", err, ErrDecided)
	}
	if row := ordertest.ItemOf(t, s.Store, s.Item); row.Sold != 3 || row.Total != 3 {
		t.Errorf("sold %d of %d, want 3 of 3", row.Sold, row.Total)
	}
	resumes(s, h)
}

// TestRecover_Interrupted: an interrupted recovery is finished by the next, and the units
// and the changes of the total count once.
func TestRecover_Interrupted(t *testing.T) {
	t.Parallel()
	s := shoptest.New(t, redistest.Embedded(t), false, ordertest.NewItem("", 2, 1))
	s.HighWater()
	stop := s.Work()
	s.MustPlace(s.Purchase("u1", "k", 1, ordertest.Limit))
	old := backup(s)
	if _, _, err := s.Sales.Restock(await.Context(t), s.Item, items.Restock{Quantity: 4, Reason: "r", IdempotencyKey: "r1"}, order.By{}); err != nil {
		t.Fatal(err)
	}
	for _, user := range []string{"u2", "u3", "u4"} {
		s.MustPlace(s.Purchase(user, "k", 1, ordertest.Limit))
	}
	s.Drained()
	stop()
	queued := s.MustPlace(s.Purchase("u5", "k", 1, 0))
	h := restore(s, old)
	broken := errors.New("the disk is full")
	syncs := 0
	_, _, err := recoverItem(s, h, RecoverFromRedis, stops(s, h), func() error {
		if syncs++; syncs == 2 { // after the first page
			return broken
		}
		return nil
	})
	if !errors.Is(err, broken) {
		t.Fatalf("the first recovery: %v, want %v", err, broken)
	}
	if rows := ordertest.AllRows(t, s.Store); len(rows) != 4 {
		t.Fatalf("%d orders after the interrupted recovery, want 4", len(rows))
	}
	done, _, err := recoverItem(s, h, RecoverFromRedis, stops(s, h), nil)
	if err != nil || done.TotalAfter != 6 {
		t.Fatalf("recovered %+v, %v, want a total of 6", done, err)
	}
	resumes(s, h)
	s.Work()
	if n := buys(s, "x", "y"); n != 1 {
		t.Errorf("%d more units are sold, want 1 of 6", n)
	}
	await.True(t, "the queued order to be committed", func() bool {
		o, err := s.Store.Order(await.Context(t), queued.Order.ID)
		return err == nil && o.Status == order.StatusConfirmed
	})
	resumes(s, h)
}

// TestRecover_Changes: a restock and another limit exist in Redis only. So they do if a further change was
// interrupted.
func TestRecover_Changes(t *testing.T) {
	t.Parallel()
	for _, want := range []struct {
		from                RecoverFrom
		added, total, limit int64
	}{{RecoverFromRedis, 4, 6, 3}, {RecoverFromRedis, -1, 1, 3}, {RecoverFromDatabase, 4, 2, 1}, {RecoverFromDatabase, -1, 2, 1}} {
		from := want.from
		t.Run(fmt.Sprint(from, want.added), func(t *testing.T) {
			t.Parallel()
			s := shoptest.New(t, redistest.Embedded(t), false, ordertest.NewItem("", 2, 1))
			s.HighWater()
			old := backup(s)
			ctx := await.Context(t)
			if _, _, err := s.Sales.Restock(ctx, s.Item, items.Restock{Quantity: want.added, Reason: "r", IdempotencyKey: "r1"}, order.By{}); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Sales.ChangeItem(ctx, s.Item, items.Change{PerUserLimit: ordertest.Ptr(int64(3))}, order.By{}); err != nil {
				t.Fatal(err)
			}
			key := s.Rdb.Keys(ctx, "fs:*sale:"+s.Item).Val()[0]
			if err := s.Rdb.HSet(ctx, key, "changing", "1-died").Err(); err != nil {
				t.Fatal(err)
			}
			h := restore(s, old)
			before, err := s.Store.Epoch(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := recoverItem(s, h, from, stops(s, h), nil); err != nil {
				t.Fatal(err)
			}
			// Only this decision makes the data of the processes invalid.
			if epoch, err := s.Store.Epoch(ctx); err != nil || epoch > before != (from == RecoverFromDatabase) {
				t.Errorf("epoch %d after %d, %v", epoch, before, err)
			}
			if row := ordertest.ItemOf(t, s.Store, s.Item); row.Total != want.total || row.PerUserLimit != want.limit {
				t.Errorf("total %d, limit %d, want %+v", row.Total, row.PerUserLimit, want)
			}
			resumes(s, h)
		})
	}
}

// TestRecover_Releases: the units of closed orders count once, whether Redis has released them or not.
func TestRecover_Releases(t *testing.T) {
	t.Parallel()
	s := shoptest.New(t, redistest.Embedded(t), false, ordertest.NewItem("", 5, 1))
	s.HighWater()
	stop := s.Work()
	s.MustPlace(s.Purchase("u1", "k", 1, ordertest.Limit))
	released := s.MustPlace(s.Purchase("u2", "k", 1, ordertest.Limit)).Order
	s.Drained()
	if _, err := s.Service.Cancel(await.Context(t), released.ID, order.Canceller{UserID: "u2"}); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the units in Redis", func() bool { return s.Rdb.HGet(await.Context(t), "fs:{p0}:sale:"+s.Item, "left").Val() == "4" })
	stop()
	mustRun(s, "UPDATE orders SET status = 'cancelled', closed_at = 1 WHERE status = 'confirmed'")
	mustRun(s, "UPDATE items SET sold = 0")
	mustRun(s, `INSERT INTO releases (order_id, item_id, user_id, idempotency_key, quantity, created_at)
		SELECT id, item_id, user_id, idempotency_key, quantity, 1 FROM orders WHERE id NOT IN (SELECT order_id FROM releases)`)
	old := backup(s)
	if _, _, err := s.Sales.Restock(await.Context(t), s.Item, items.Restock{Quantity: 4, Reason: "r", IdempotencyKey: "r1"}, order.By{}); err != nil {
		t.Fatal(err)
	}
	h := restore(s, old)
	done, _, err := recoverItem(s, h, RecoverFromRedis, stops(s, h), nil)
	if err != nil || done.TotalAfter != 9 || done.Cancelled != 0 {
		t.Errorf("recovered %+v, %v, want a total of 9, and no order cancelled", done, err)
	}
}

// noScripts is a Redis that refuses scripts.
type noScripts struct{ redis.Hook }

var errNoScripts = errors.New("no scripts")

func (noScripts) DialHook(next redis.DialHook) redis.DialHook { return next }
func (noScripts) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
func (noScripts) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if strings.HasPrefix(cmd.Name(), "eval") {
			return errNoScripts
		}
		return next(ctx, cmd)
	}
}

// TestRecover_LastSteps: a sale resumes only after the database is valid, and a recovery that cannot
// resume it says so.
func TestRecover_LastSteps(t *testing.T) {
	t.Parallel()
	s := shoptest.New(t, redistest.Embedded(t), false, ordertest.NewItem("", 3, 1))
	s.HighWater()
	stop := s.Work()
	old := backup(s)
	s.MustPlace(s.Purchase("u1", "k", 1, ordertest.Limit))
	s.Drained()
	stop()
	h := restore(s, old)
	stopped := stops(s, h)
	stays := func() {
		t.Helper()
		if mark := s.Rdb.HGet(await.Context(t), "fs:{p0}:sale:"+s.Item, "changing").Val(); mark != "stopped" {
			t.Errorf("the sale has the mark %q, want it stopped", mark)
		}
	}
	for _, from := range []RecoverFrom{RecoverFromDatabase, RecoverFromRedis} {
		broken := errors.New("the disk is full")
		if _, _, err := recoverItem(s, h, from, stopped, func() error { return broken }); !errors.Is(err, broken) {
			t.Errorf("from %s with a list that is not durable: %v, want %v", from, err, broken)
		}
		stays()
	}
	mustRun(s, "ALTER TABLE audit RENAME TO audit_away")
	if done, _, err := recoverItem(s, h, RecoverFromRedis, stopped, nil); err == nil || done.ItemID != "" {
		t.Errorf("recovered %+v, %v, want the error of the database", done, err)
	}
	stays()
	mustRun(s, "ALTER TABLE audit_away RENAME TO audit")
	rdb := s.Rdb
	refusing := redis.NewClient(rdb.Options())
	refusing.AddHook(noScripts{})
	s.Rdb = refusing
	if done, _, err := recoverItem(s, h, RecoverFromRedis, stopped, nil); !errors.Is(err, errNoScripts) || done.ItemID != "" {
		t.Errorf("recovered %+v, %v, want %v", done, err, errNoScripts)
	}
	s.Rdb = rdb
	stays()
	if err := refusing.Close(); err != nil {
		t.Error(err)
	}
}

// TestRecover_DeadLetter: the units of a dead letter whose order was rejected after the
// backup are released, and count once.
func TestRecover_DeadLetter(t *testing.T) {
	t.Parallel()
	s := shoptest.New(t, redistest.Embedded(t), false, ordertest.NewItem("", 3, 1))
	s.HighWater()
	ctx := await.Context(t)
	s.MustPlace(s.Purchase("u1", "k", 1, 0))
	f, err := s.Queue.Dequeue(ctx, 1)
	if err != nil || len(f.Tasks) != 1 {
		t.Fatal(f, err)
	}
	if _, err := s.Queue.Reject(ctx, queue.Rejection{Task: f.Tasks[0], Dead: true}); err != nil {
		t.Fatal(err)
	}
	old := backup(s)
	clock := storetest.SetClock(s.Store)
	sweeper := worker.NewSweeper(s.Fulfiller, worker.SweeperConfig{Dead: []worker.DeadLetters{s.Queue}})
	for _, ms := range []int64{worker.DeadLetterAfter.Milliseconds() + 1000, worker.SweepGrace.Milliseconds() + 1} {
		clock.Add(ms)
		if _, err := sweeper.Sweep(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := s.Sales.Restock(ctx, s.Item, items.Restock{Quantity: 1, Reason: "r", IdempotencyKey: "r1"}, order.By{}); err != nil {
		t.Fatal(err)
	}
	h := restore(s, old)
	done, actions, err := recoverItem(s, h, RecoverFromRedis, stops(s, h), nil)
	if err != nil || done.TotalAfter != 4 || actions[recoverCancelled] != 1 {
		t.Fatalf("recovered %+v, %v, %v, want a total of 4 and one order cancelled", done, actions, err)
	}
	resumes(s, h)
	s.Work()
	if n := buys(s, "v1", "v2", "v3", "v4", "v5", "v6"); n != 4 {
		t.Errorf("%d units are sold, want 4", n)
	}
}

// TestRecover_PaidMeanwhile: a payment that arrives during the stop, for an order that was
// cancelled after the backup, needs a refund afterwards.
func TestRecover_PaidMeanwhile(t *testing.T) {
	t.Parallel()
	s := shoptest.New(t, redistest.Embedded(t), false, ordertest.Asking("", 2, 1, time.Minute))
	s.HighWater()
	stop := s.Work()
	ctx := await.Context(t)
	cancelled, kept := s.MustPlace(s.Purchase("u1", "k", 1, ordertest.Limit)), s.MustPlace(s.Purchase("u2", "k", 1, ordertest.Limit))
	old := backup(s)
	if _, err := s.Service.Cancel(ctx, cancelled.Order.ID, order.Canceller{UserID: "u1"}); err != nil {
		t.Fatal(err)
	}
	s.MustPlace(s.Purchase("u3", "k", 1, ordertest.Limit))
	s.Drained()
	stop()
	h := restore(s, old)
	stopped := stops(s, h)
	if _, err := s.Service.Pay(ctx, cancelled.Order.ID, order.Payment{Reference: "psp-1", AmountMinor: 1999, Currency: "EUR"}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := recoverItem(s, h, RecoverFromRedis, stopped, nil); err != nil {
		t.Fatal(err)
	}
	resumes(s, h)
	if o, err := s.Store.Order(ctx, cancelled.Order.ID); err != nil || o.Status != order.StatusCancelled || o.Reason != order.ReasonRecovered {
		t.Errorf("the cancelled order is %s (%s), %v", o.Status, o.Reason, err)
	}
	var refunds int64
	if err := s.Store.Writer().Raw("SELECT COUNT(*) FROM payments WHERE order_id = ? AND "+store.PaymentNeedsRefund, cancelled.Order.ID).Scan(&refunds).Error; err != nil || refunds != 1 {
		t.Errorf("%d payments of the cancelled order need a refund, %v, want 1", refunds, err)
	}
	o, err := s.Store.Order(ctx, kept.Order.ID)
	if err != nil || o.ExpiresAt.Before(time.Now().Add(order.PayAgainWithin-time.Hour)) {
		t.Errorf("an unpaid order expires at %v, %v, want it to have at least a day", o.ExpiresAt, err)
	}
}

// TestRecover_Erased: an order was cancelled and its buyer erased after the backup. Redis
// has the buyer's pseudonym, and the row the name; the units are subtracted from the row's
// buyer.
func TestRecover_Erased(t *testing.T) {
	t.Parallel()
	s := shoptest.New(t, redistest.Embedded(t), false, ordertest.Asking("", 2, 1, time.Minute))
	s.HighWater()
	stop := s.Work()
	ctx := await.Context(t)
	cancelled := s.MustPlace(s.Purchase("u1", "k", 1, ordertest.Limit))
	s.Drained()
	old := backup(s)
	if _, err := s.Service.Cancel(ctx, cancelled.Order.ID, order.Canceller{UserID: "u1"}); err != nil {
		t.Fatal(err)
	}
	erasing := privacy.Service{Store: s.Store, Tasks: []order.Queued{accepted.NewOrders(s.Queue)}, Queued: accepted.NewIndex(s.Rdb, s.Queue), Renamer: s.Stock}
	if _, err := erasing.EraseBuyer(await.Context(t), "u1", privacy.Erasure{Actor: "root", Reason: "asked for"}); err != nil {
		t.Fatal(err)
	}
	stop()
	h := restore(s, old)
	if _, _, err := recoverItem(s, h, RecoverFromRedis, stops(s, h), nil); err != nil {
		t.Fatal(err)
	}
	resumes(s, h)
}

// TestRecover_ErasedAndBack: a buyer was erased after the backup and has bought again under
// the same name and key. Both orders are kept, although the backup has the first one under
// that key.
func TestRecover_ErasedAndBack(t *testing.T) {
	t.Parallel()
	s := shoptest.New(t, redistest.Embedded(t), false, ordertest.NewItem("", 10, 5))
	s.HighWater()
	stop := s.Work()
	ctx := await.Context(t)
	first := s.MustPlace(s.Purchase("u1", "k", 1, ordertest.Limit)).Order
	s.Drained()
	old := backup(s)
	erasing := privacy.Service{Store: s.Store, Tasks: []order.Queued{accepted.NewOrders(s.Queue)}, Queued: accepted.NewIndex(s.Rdb, s.Queue), Renamer: s.Stock}
	if _, err := erasing.EraseBuyer(ctx, "u1", privacy.Erasure{Actor: "root", Reason: "asked for"}); err != nil {
		t.Fatal(err)
	}
	second := s.MustPlace(s.Purchase("u1", "k", 2, ordertest.Limit)).Order
	if second.ID == first.ID {
		t.Fatal("the second purchase is a repeat of the first")
	}
	s.Drained()
	stop()
	h := restore(s, old)
	if _, actions, err := recoverItem(s, h, RecoverFromRedis, stops(s, h), nil); err != nil || actions["recreated"] != 1 {
		t.Fatalf("%v, %v", actions, err)
	}
	resumes(s, h)
	for _, want := range []order.Order{first, second} {
		if o, err := s.Store.Order(ctx, want.ID); err != nil || o.Status != order.StatusConfirmed || o.Quantity != want.Quantity {
			t.Errorf("order %s: %+v, %v", want.ID, o, err)
		}
	}
	if row := ordertest.ItemOf(t, s.Store, s.Item); row.Sold != 3 {
		t.Errorf("sold %d, want 3", row.Sold)
	}
}

// TestRecover_Incomplete: if Redis has lost a part of its data, the data is not used.
func TestRecover_Incomplete(t *testing.T) {
	t.Parallel()
	s := shoptest.New(t, redistest.Embedded(t), false, ordertest.NewItem("", 3, 1))
	s.HighWater()
	stop := s.Work()
	old := backup(s)
	s.MustPlace(s.Purchase("u1", "k", 1, ordertest.Limit))
	s.Drained()
	stop()
	// The state after a load that was killed while it wrote the orders.
	ctx, key := await.Context(t), "fs:{p0}:"
	if _, err := s.Rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.Del(ctx, key+"sale:"+s.Item)
		p.HSet(ctx, key+"sale:"+s.Item, "building", "x")
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	h := restore(s, old)
	if _, _, err := recoverItem(s, h, RecoverFromRedis, stops(s, h), nil); !errors.Is(err, inventory.ErrIncomplete) {
		t.Errorf("from Redis: %v, want %v", err, inventory.ErrIncomplete)
	}
	if rows := ordertest.AllRows(t, s.Store); len(rows) != 0 {
		t.Errorf("%d orders were recovered from an incomplete record", len(rows))
	}
	if _, _, err := recoverItem(s, h, RecoverFromDatabase, stops(s, h), nil); err != nil {
		t.Errorf("from the database: %v", err)
	}
	resumes(s, h)
}

// TestRecover_Reopened: an item that had ended when the backup was made, and was reopened,
// is removed from Redis after its next end.
func TestRecover_Reopened(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 10, 5))
		h := s.HighWater()
		stop := s.Work()
		s.Exec("UPDATE items SET opens_at = ?, closes_at = ?, freed = 1 WHERE id = ?", time.Now().Add(-2*time.Hour).UnixMilli(), time.Now().Add(-time.Hour).UnixMilli(), s.Item)
		backup := backup(s)
		closes := time.Now().Add(time.Hour).Truncate(time.Millisecond)
		if _, err := s.Sales.ChangeItem(await.Context(t), s.Item, items.Change{ClosesAt: &closes}, order.By{Actor: "root"}); err != nil {
			t.Fatal(err)
		}
		s.Load()
		buys(s, "a", "b")
		stop()
		h.Note(await.Context(t))
		h = restore(s, backup)
		if _, _, err := recoverItem(s, h, RecoverFromRedis, stops(s, h), nil); err != nil {
			t.Fatal(err)
		}
		if row := ordertest.ItemOf(t, s.Store, s.Item); row.Freed || row.ClosesAt != closes.UnixMilli() {
			t.Errorf("after it: freed %v, closes at %d, want %d", row.Freed, row.ClosesAt, closes.UnixMilli())
		}
	})
}

// TestSweeper_DeadLetters_Stopped: a dead letter of a stopped sale may belong to an order that
// was committed, and that the database has lost. It waits for the decision.
func TestSweeper_DeadLetters_Stopped(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 3, 1))
		h := s.HighWater()
		ctx := await.Context(t)
		old := backup(s)
		p := s.MustPlace(s.Purchase("u1", "k", 1, 0))
		f, err := s.Queue.Dequeue(ctx, 1)
		if err != nil || len(f.Tasks) != 1 {
			t.Fatal(f, err)
		}
		// It is committed, and the work after the commit has failed in every attempt.
		storetest.MustCommit(t, s.Store, ordertest.MustParse(t, f.Tasks[0].ID, f.Tasks[0].Payload))
		h.Note(ctx)
		if _, err := s.Queue.Reject(ctx, queue.Rejection{Task: f.Tasks[0], Dead: true}); err != nil {
			t.Fatal(err)
		}
		h = restore(s, old)
		stopped := stops(s, h)
		clock := storetest.SetClock(s.Store)
		sweeper := worker.NewSweeper(s.Fulfiller, worker.SweeperConfig{Dead: []worker.DeadLetters{s.Queue}})
		sweep := func() {
			t.Helper()
			clock.Add(worker.DeadLetterAfter.Milliseconds() + 1000)
			if _, err := sweeper.Sweep(ctx); err != nil {
				t.Fatal(err)
			}
		}
		sweep()
		if rows := ordertest.AllRows(t, s.Store); len(rows) != 0 {
			t.Fatalf("the sweeper has decided about %+v", rows)
		}
		if _, _, err := recoverItem(s, h, RecoverFromRedis, stopped, nil); err != nil {
			t.Fatal(err)
		}
		resumes(s, h)
		// The letter still belongs to a purchase that may be committed.
		sweep()
		if row := ordertest.AllRows(t, s.Store)[p.Order.ID]; row.Status == "" {
			t.Error("the letter was not read after the decision")
		}
	})
}
