package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mattn/go-sqlite3"
	"pgregory.net/rapid"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/longtest"
	"flashsale/order"
	"flashsale/order/ordertest"
	"flashsale/order/schema"
	"flashsale/order/store/database"
)

func TestStore_commit_Row(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	now := time.Date(2026, 5, 1, 12, 0, 0, 123_000_000, time.UTC)
	s.now = func() time.Time { return now }
	mustInsert(t, s, ordertest.NewItem("plain", 10, 5))
	asked := ordertest.NewItem("asked", 10, 5)
	asked.PaymentWindow = 90 * time.Second
	mustInsert(t, s, asked)
	tasks := []order.Task{ordertest.Bought("o1", "plain", "u", "k", 2), ordertest.Bought("o2", "asked", "u", "k", 3)}
	out := mustCommit(t, s, tasks...)
	ms := now.UnixMilli()
	for i, expires := range []int64{0, ms + 90_000} {
		if want := (order.Outcome{Status: order.StatusConfirmed, ConfirmedAt: ms, ExpiresAt: expires}); out[i] != want {
			t.Errorf("outcome %d is %+v, want %+v", i, out[i], want)
		}
		got, err := s.Order(await.Context(t), tasks[i].ID)
		if err != nil {
			t.Fatal(err)
		}
		want := order.Order{
			ID: tasks[i].ID, ItemID: tasks[i].ItemID, UserID: "u", Quantity: tasks[i].Quantity, UnitPriceMinor: 1999, Currency: "EUR",
			Status: order.StatusConfirmed, IdempotencyKey: "k", CreatedAt: time.UnixMilli(tasks[i].CreatedAt).UTC(),
			ConfirmedAt: now, ExpiresAt: order.FromMillis(expires),
		}
		if got != want {
			t.Errorf("row is %+v, want %+v", got, want)
		}
	}
	ordertest.AuditStore(t, s)
}

// TestStore_commitWhole: the fast path commits new and allowed orders, and leaves nothing
// of a batch that it cannot commit.
func TestStore_commitWhole(t *testing.T) {
	t.Parallel()
	old := ordertest.Bought("old", "item", "regular", "k", 1)
	for name, c := range map[string]struct {
		tasks    []order.Task
		notWhole bool
	}{
		"all new":          {ordertest.Distinct("n", "item", 20), false},
		"one buyer's two":  {[]order.Task{ordertest.Bought("a", "item", "u", "1", 1), ordertest.Bought("b", "item", "u", "2", 1)}, false},
		"redelivered":      {append(ordertest.Distinct("n", "item", 3), old), true},
		"twice the same":   {append(ordertest.Distinct("n", "item", 3), ordertest.Distinct("n", "item", 1)...), true},
		"key of another":   {append(ordertest.Distinct("n", "item", 3), ordertest.Bought("b", "item", "regular", "k", 1)), true},
		"over the limit":   {append(ordertest.Distinct("n", "item", 3), ordertest.Bought("a", "item", "u", "1", 3)), true},
		"id of another":    {append(ordertest.Distinct("n", "item", 3), ordertest.Bought("old", "item", "u", "1", 1)), true},
		"up to the limit":  {[]order.Task{ordertest.Bought("b", "item", "regular", "2", 1)}, false},
		"limit in sum":     {append(ordertest.Distinct("n", "item", 3), ordertest.Bought("b", "item", "regular", "2", 2)), true},
		"limit within":     {[]order.Task{ordertest.Bought("a", "item", "u", "1", 2), ordertest.Bought("b", "item", "u", "2", 1)}, true},
		"over the total":   {ordertest.Distinct("n", "item", 40), true},
		"unknown item":     {append(ordertest.Distinct("n", "item", 3), ordertest.Bought("a", "none", "u", "1", 1)), true},
		"without quantity": {append(ordertest.Distinct("n", "item", 3), ordertest.Bought("a", "item", "u", "1", 0)), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			mustInsert(t, s, ordertest.NewItem("item", 40, 2))
			mustCommit(t, s, old)
			before := ordertest.AllRows(t, s)
			out, err := s.commitWhole(await.Context(t), c.tasks)
			if errors.Is(err, errNotWhole) != c.notWhole || (err != nil) != c.notWhole {
				t.Fatalf("commitWhole: %v, want notWhole %v", err, c.notWhole)
			}
			after := ordertest.AllRows(t, s)
			if c.notWhole {
				if !maps.Equal(before, after) || ordertest.ItemOf(t, s, "item").Sold != 1 {
					t.Error("an abandoned batch left something")
				}
			} else if len(out) != len(c.tasks) || len(after) != 1+len(c.tasks) {
				t.Errorf("%d outcomes, %d rows of %d tasks", len(out), len(after)-1, len(c.tasks))
			}
			ordertest.AuditStore(t, s)
		})
	}
}

// commitWhole commits the tasks together or not at all.
func (s *Store) commitWhole(ctx context.Context, tasks []order.Task) (out []order.Outcome, err error) {
	err = s.batch(ctx, false, tasks, func(ctx context.Context, tx *database.Tx, box *Outbox) (err error) {
		out, err = commitWhole(ctx, tx, tasks, box)
		return err
	})
	return out, err
}

func TestStore_commit_Redelivery(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	mustInsert(t, s, ordertest.NewItem("item", 60, 1))
	tasks := ordertest.Distinct("n", "item", 50)
	first := mustCommit(t, s, tasks...)
	before := ordertest.AllRows(t, s)
	for range 2 {
		if again := mustCommit(t, s, tasks...); !slices.Equal(again, first) {
			t.Errorf("redelivery answered %v, want %v", ordertest.Verdicts(again), ordertest.Verdicts(first))
		}
	}
	if !maps.Equal(before, ordertest.AllRows(t, s)) || ordertest.ItemOf(t, s, "item").Sold != 50 {
		t.Errorf("redelivery changed the tables: sold %d", ordertest.ItemOf(t, s, "item").Sold)
	}
	// Half old, half new, as after a reclaimed lease.
	mixed := append(slices.Clone(tasks[:5]), ordertest.Distinct("m", "item", 5)...)
	for i, o := range mustCommit(t, s, mixed...) {
		if o.Status != order.StatusConfirmed {
			t.Errorf("order %s: %+v", mixed[i].ID, o)
		}
	}
	if sold := ordertest.ItemOf(t, s, "item").Sold; sold != 55 {
		t.Errorf("sold is %d, want 55", sold)
	}
	// One batch that contains an order twice.
	d := ordertest.Distinct("d", "item", 2)
	ordertest.WantVerdicts(t, mustCommit(t, s, d[0], d[1], d[0]), "confirmed", "confirmed", "confirmed")
	if sold := ordertest.ItemOf(t, s, "item").Sold; sold != 57 {
		t.Errorf("sold is %d, want 57", sold)
	}
	ordertest.AuditStore(t, s)
}

func TestStore_commit_Rejections(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	now := time.Now()
	s.now = func() time.Time { return now }
	mustInsert(t, s, ordertest.NewItem("item", 5, 2))
	out := mustCommit(t, s,
		ordertest.Bought("a1", "item", "a", "k", 2),
		ordertest.Bought("a2", "item", "a", "k2", 1),  // over the limit
		ordertest.Bought("b1", "item", "b", "k", 2),   // 4 of 5
		ordertest.Bought("a3", "item", "a", "k", 2),   // a key that another order has
		ordertest.Bought("c1", "item", "c", "k", 2),   // over the total
		ordertest.Bought("x1", "none", "a", "k", 1),   // no such item
		ordertest.Bought("d1", "item", "d", "k", 1),   // the last unit
		ordertest.Bought("e1", "item", "e", "k", 1),   // nothing left
		ordertest.Bought("a4", "item", "a", "k", 2),   // the key once more
		ordertest.Bought("f1", "item", "f", "k", 100), // over both
	)
	ordertest.WantVerdicts(t, out, "confirmed", ordertest.RejectedPrefix+order.ReasonUserLimit, "confirmed", ordertest.RejectedPrefix+order.ReasonDuplicate,
		ordertest.RejectedPrefix+order.ReasonSoldOut, ordertest.RejectedPrefix+order.ReasonNoItem, "confirmed", ordertest.RejectedPrefix+order.ReasonSoldOut,
		ordertest.RejectedPrefix+order.ReasonDuplicate, ordertest.RejectedPrefix+order.ReasonSoldOut)
	rows := ordertest.AllRows(t, s)
	if len(rows) != 10 {
		t.Fatalf("%d rows, want 10: a refused order is a row that says why", len(rows))
	}
	for id, r := range rows {
		rejected := r.Status == string(order.StatusRejected)
		if rejected != (r.Reason != "") || rejected != (r.ClosedAt == now.UnixMilli()) || rejected != (r.ConfirmedAt == 0) {
			t.Errorf("row %s is %+v", id, r)
		}
	}
	if rows["a3"].IdempotencyKey == "k" || rows["a1"].IdempotencyKey != "k" {
		t.Errorf("the key belongs to %q and %q", rows["a1"].IdempotencyKey, rows["a3"].IdempotencyKey)
	}
	revision := func() (n int64) {
		if err := s.Reader().Raw("SELECT revision FROM items WHERE id = 'item'").Scan(&n).Error; err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := revision()
	// A redelivered order that was refused is refused again, for the same reason.
	if again := mustCommit(t, s, ordertest.Bought("a2", "item", "a", "k2", 1), ordertest.Bought("c1", "item", "c", "k", 2)); again[0] != out[1] || again[1] != out[4] {
		t.Errorf("redelivered refusals: %v", ordertest.Verdicts(again))
	}
	if after := revision(); after <= before {
		t.Errorf("revision %d after a redelivery, %d before: Redis may not know of the first commit", after, before)
	}
	ordertest.AuditStore(t, s)
}

// TestStore_commit_ChunkSizes commits batches around the sizes of the prepared statements:
// every row must exist, for any remainder.
func TestStore_commit_ChunkSizes(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	mustInsert(t, s, ordertest.NewItem("item", 1_000_000, 1))
	total := 0
	for _, n := range []int{1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 20, 21, 63, 64, 65, 80, 85, 127, 128, 255, 256, 257, 320, 341, 511, 512, 513, 599, 600} {
		tasks := ordertest.Distinct(fmt.Sprintf("b%d-", n), "item", n)
		out, err := s.commitWhole(await.Context(t), tasks)
		if err != nil {
			t.Fatalf("%d tasks: %v", n, err)
		}
		for i, o := range out {
			if o.Status != order.StatusConfirmed {
				t.Fatalf("task %d of %d: %+v", i, n, o)
			}
		}
		total += n
		var rows, buyers int64
		if err := s.Reader().Model(&schema.Order{}).Count(&rows).Error; err != nil {
			t.Fatal(err)
		}
		if err := s.Reader().Raw("SELECT COUNT(*) FROM buyers").Scan(&buyers).Error; err != nil {
			t.Fatal(err)
		}
		if int(rows) != total || int(buyers) != total {
			t.Fatalf("after %d tasks: %d rows and %d buyers, want %d", n, rows, buyers, total)
		}
	}
	ordertest.AuditStore(t, s)
}

// TestSchema_Checks: the database itself refuses changes that the code must never make.
func TestSchema_Checks(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	mustInsert(t, s, ordertest.NewItem("item", 3, 1))
	mustCommit(t, s, ordertest.Bought("o1", "item", "u", "k", 1))
	const order = "INSERT INTO orders (id, item_id, user_id, quantity, unit_price_minor, currency, status, idempotency_key, created_at) VALUES "
	const item = "INSERT INTO items (id, name, price_minor, currency, initial, total, per_user_limit, opens_at, closes_at, payment_window_seconds, control, created_at, updated_at) VALUES "
	for name, sql := range map[string]string{
		"sold above total":      "UPDATE items SET sold = total + 1 WHERE id = 'item'",
		"sold below zero":       "UPDATE items SET sold = -1 WHERE id = 'item'",
		"total below sold":      "UPDATE items SET total = 0 WHERE id = 'item'",
		"limit of zero":         "UPDATE items SET per_user_limit = 0 WHERE id = 'item'",
		"unknown control":       "UPDATE items SET control = 'ajar' WHERE id = 'item'",
		"closes before opening": "UPDATE items SET closes_at = opens_at WHERE id = 'item'",
		"negative price":        "UPDATE items SET price_minor = -1 WHERE id = 'item'",
		"short currency":        "UPDATE items SET currency = 'EU' WHERE id = 'item'",
		"negative window":       "UPDATE items SET payment_window_seconds = -1 WHERE id = 'item'",
		"negative initial":      "UPDATE items SET initial = -1 WHERE id = 'item'",
		"same item":             item + "('item', 'n', 1, 'EUR', 1, 1, 1, 0, 0, 0, 'open', 0, 0)",
		"empty item id":         item + "('', 'n', 1, 'EUR', 1, 1, 1, 0, 0, 0, 'open', 0, 0)",
		"quantity zero":         order + "('o2', 'item', 'u', 0, 1, 'EUR', 'confirmed', 'k2', 0)",
		"quantity below zero":   order + "('o2', 'item', 'u', -1, 1, 'EUR', 'confirmed', 'k2', 0)",
		"queued row":            order + "('o2', 'item', 'u', 1, 1, 'EUR', 'queued', 'k2', 0)",
		"negative unit price":   order + "('o2', 'item', 'u', 1, -1, 'EUR', 'confirmed', 'k2', 0)",
		"same order":            order + "('o1', 'item', 'u', 1, 1, 'EUR', 'confirmed', 'k2', 0)",
		"same key":              order + "('o2', 'item', 'u', 1, 1, 'EUR', 'confirmed', 'k', 0)",
		"order without a key":   order + "('o2', 'item', 'u', 1, 1, 'EUR', 'confirmed', NULL, 0)",
		"buyer below zero":      "UPDATE buyers SET quantity = -1 WHERE item_id = 'item'",
		"same buyer":            "INSERT INTO buyers (item_id, user_id, quantity) VALUES ('item', 'u', 1)",
		"write on a reader":     "",
	} {
		db := s.Writer()
		if sql == "" {
			db, sql = s.Reader(), "UPDATE items SET sold = 2 WHERE id = 'item'"
		}
		if res := db.Exec(sql); res.Error == nil {
			t.Errorf("%s: accepted, %d rows", name, res.RowsAffected)
		}
	}
	ordertest.AuditStore(t, s)
	// The same statements in their allowed form, so that the refusals above are not caused
	// by a misspelt statement.
	for _, sql := range []string{
		item + "('other', 'n', 1, 'EUR', 1, 1, 1, 0, 0, 0, 'open', 0, 0)",
		order + "('o2', 'other', 'u', 1, 1, 'EUR', 'rejected', 'k', 0)",
		"UPDATE items SET sold = 0, total = 1, control = 'paused' WHERE id = 'other'",
	} {
		if err := s.Writer().Exec(sql).Error; err != nil {
			t.Errorf("%s: %v", sql, err)
		}
	}
}

// TestStore_commit_ContextEnded: a running commit is not cancelled, because its outcome
// would be unknown.
func TestStore_commit_ContextEnded(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	mustInsert(t, s, ordertest.NewItem("item", 10, 1))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 2 { // the second is a redelivery, which takes the other path
		out, err := s.Commit(ctx, ordertest.Distinct("n", "item", 3))
		if err != nil {
			t.Fatalf("commit on an ended context: %v", err)
		}
		ordertest.WantVerdicts(t, out, "confirmed", "confirmed", "confirmed")
	}
	if n := len(ordertest.AllRows(t, s)); n != 3 {
		t.Errorf("%d rows, want 3", n)
	}
	ordertest.AuditStore(t, s)
}

// tables is a model of the effects of commit on the database.
type tables struct {
	items map[string]*schema.Item
	rows  map[string]string // order id -> verdict
	keys  map[string]bool
	held  map[string]int64
}

func (m *tables) commit(t *order.Task) string {
	if v, ok := m.rows[t.ID]; ok {
		return v
	}
	key, holder := t.UserID+" "+t.ItemID+" "+t.IdempotencyKey, t.ItemID+" "+t.UserID
	it := m.items[t.ItemID]
	v := string(order.StatusConfirmed)
	switch {
	case m.keys[key]:
		v = ordertest.RejectedPrefix + order.ReasonDuplicate
	case it == nil:
		v = ordertest.RejectedPrefix + order.ReasonNoItem
	case it.Sold+t.Quantity > it.Total:
		v = ordertest.RejectedPrefix + order.ReasonSoldOut
	case m.held[holder]+t.Quantity > it.PerUserLimit:
		v = ordertest.RejectedPrefix + order.ReasonUserLimit
	default:
		it.Sold += t.Quantity
		m.held[holder] += t.Quantity
	}
	m.keys[key] = true
	m.rows[t.ID] = v
	return v
}

// TestStore_commit_Model commits random batches and compares outcomes and tables with the
// model.
func TestStore_commit_Model(t *testing.T) {
	t.Parallel()
	testCommitModel(t)
}

func TestStore_commit_Model_Long(t *testing.T) {
	longtest.Only(t)
	t.Parallel()
	testCommitModel(t)
}

func testCommitModel(t *testing.T) {
	s := newStore(t)
	ids := 0
	rapid.Check(t, func(rt *rapid.T) {
		ids++
		run := fmt.Sprintf("r%d-", ids)
		m := &tables{items: map[string]*schema.Item{}, rows: map[string]string{}, keys: map[string]bool{}, held: map[string]int64{}}
		for _, id := range []string{run + "a", run + "b"} {
			stock, perUser := rapid.Int64Range(0, 60).Draw(rt, "stock"), rapid.Int64Range(1, 6).Draw(rt, "limit")
			mustInsert(t, s, ordertest.NewItem(id, stock, perUser))
			m.items[id] = &schema.Item{Total: stock, PerUserLimit: perUser}
		}
		for range rapid.IntRange(1, 6).Draw(rt, "batches") {
			n := rapid.OneOf(rapid.IntRange(1, 25), rapid.IntRange(60, 70)).Draw(rt, "batch")
			tasks, want := make([]order.Task, n), make([]string, n)
			for i := range tasks {
				tasks[i] = ordertest.Bought(
					fmt.Sprintf("%so%d", run, rapid.IntRange(0, 200).Draw(rt, "order")),
					run+rapid.SampledFrom([]string{"a", "a", "a", "b", "b", "none"}).Draw(rt, "item"),
					fmt.Sprintf("u%d", rapid.IntRange(0, 25).Draw(rt, "user")),
					fmt.Sprintf("k%d", rapid.IntRange(0, 20).Draw(rt, "key")),
					rapid.Int64Range(1, 3).Draw(rt, "quantity"),
				)
				want[i] = m.commit(&tasks[i])
			}
			out, err := s.Commit(await.Context(t), tasks)
			if err != nil {
				rt.Fatal(err)
			}
			if got := ordertest.Verdicts(out); !slices.Equal(got, want) {
				rt.Fatalf("verdicts are %q, want %q, of %+v", got, want, tasks)
			}
		}
		for id, it := range m.items {
			if sold := ordertest.ItemOf(t, s, id).Sold; sold != it.Sold {
				rt.Fatalf("item %s: sold %d, want %d", id, sold, it.Sold)
			}
			for user, n := range ordertest.BuyersOf(t, s, id) {
				if n != m.held[id+" "+user] {
					rt.Fatalf("item %s: %s is counted with %d, want %d", id, user, n, m.held[id+" "+user])
				}
			}
		}
		var rows []schema.Order
		if err := s.Reader().Where("id LIKE ?", run+"%").Find(&rows).Error; err != nil {
			rt.Fatal(err)
		}
		for _, r := range rows {
			if got := strings.TrimSpace(r.Status + " " + r.Reason); got != m.rows[r.ID] {
				rt.Fatalf("row %s is %q, want %q", r.ID, got, m.rows[r.ID])
			}
		}
		if len(rows) != len(m.rows) {
			rt.Fatalf("%d rows, want %d", len(rows), len(m.rows))
		}
	})
	ordertest.AuditStore(t, s)
}

// TestStore_Commit_AfterChange: a batch that joins the transaction of a change fails. Its writes are undone, and
// the change is committed. If they cannot be undone, nothing of the transaction is committed.
func TestStore_Commit_AfterChange(t *testing.T) {
	t.Parallel()
	ordertest.NeedSQLite(t)
	for _, lost := range []bool{false, true} {
		s := newStore(t)
		mustInsert(t, s, ordertest.NewItem("item", 10, 5))
		first := ordertest.Bought("o1", "item", "u1", "k1", 1)
		mustCommit(t, s, first)
		if lost {
			breakUndo(t, s)
		}
		var runs int
		begun, proceed := make(chan struct{}), make(chan struct{})
		release := sync.OnceFunc(func() { close(proceed) })
		t.Cleanup(release)
		change, batch := make(chan error, 1), make(chan error, 1)
		go func() {
			change <- s.Change(await.Context(t), "test", func(ctx context.Context, c database.Conn, _ int64) error {
				if runs++; runs == 1 {
					close(begun)
					<-proceed
				}
				_, err := c.ExecContext(ctx, "UPDATE items SET name = 'changed'")
				return err
			})
		}()
		<-begun
		go func() {
			_, err := s.Commit(await.Context(t), []order.Task{first, ordertest.Bought("o2", "item", "u2", "k2", 1)})
			batch <- err
		}()
		await.True(t, "the batch to wait", func() bool { n, _ := s.Waiting(); return n == 1 })
		release()
		if err := <-change; err != nil {
			t.Errorf("lost %v: the change: %v", lost, err)
		}
		if err := <-batch; (err != nil) != lost {
			t.Errorf("lost %v: the batch: %v", lost, err)
		}
		wantRuns, wantSold := 1, int64(2)
		if lost {
			wantRuns, wantSold = 2, 1
		}
		row := ordertest.ItemOf(t, s, "item")
		if runs != wantRuns || row.Name != "changed" || row.Sold != wantSold || row.Revision != wantSold {
			t.Errorf("lost %v: the change ran %d times, the item is %q, sold %d, revision %d; want %d, changed, %d and %d",
				lost, runs, row.Name, row.Sold, row.Revision, wantRuns, wantSold, wantSold)
		}
		ordertest.AuditStore(t, s)
	}
}

// breakUndo makes every undoing of a savepoint fail.
func breakUndo(t *testing.T, s *Store) {
	t.Helper()
	db, err := s.Writer().DB()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := db.Conn(await.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	err = conn.Raw(func(driver any) error {
		driver.(interface {
			RegisterAuthorizer(func(op int, what, name, database string) int)
		}).RegisterAuthorizer(func(op int, what, _, _ string) int {
			if op == sqlite3.SQLITE_SAVEPOINT && what == "ROLLBACK" {
				return sqlite3.SQLITE_DENY
			}
			return sqlite3.SQLITE_OK
		})
		return nil
	})
	if err := errors.Join(err, conn.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestStore_commit_Mixed: a batch with orders that exist, that repeat a key, that exceed a limit
// and that are new has one outcome for each, and the rows of the new ones.
func TestStore_commit_Mixed(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	mustInsert(t, s, ordertest.NewItem("item", 60, 2))
	before := ordertest.Distinct("n", "item", 10)
	mustCommit(t, s, before...)
	batch := ordertest.Distinct("n", "item", 40)
	batch = append(batch, ordertest.Bought("again", "item", batch[20].UserID, batch[20].IdempotencyKey, 1),
		ordertest.Bought("above", "item", "greedy", "k", 3), ordertest.Bought("last", "item", "u", "k", 2))
	out := mustCommit(t, s, batch...)
	for i := range batch {
		want := order.Outcome{Status: order.StatusConfirmed}
		switch batch[i].ID {
		case "again":
			want = order.Outcome{Status: order.StatusRejected, Reason: order.ReasonDuplicate}
		case "above":
			want = order.Outcome{Status: order.StatusRejected, Reason: order.ReasonUserLimit}
		}
		if out[i].Status != want.Status || out[i].Reason != want.Reason {
			t.Errorf("order %s: %+v, want %+v", batch[i].ID, out[i], want)
		}
	}
	if sold := ordertest.ItemOf(t, s, "item").Sold; sold != 42 {
		t.Errorf("%d units sold, want 42", sold)
	}
	ordertest.AuditStore(t, s)
}

// TestStore_Commit_EarlierLimit: an order counts against the highest limit since it was accepted, whatever the order of a
// batch. A change at the time of its acceptance may have come later.
func TestStore_Commit_EarlierLimit(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	mustInsert(t, s, ordertest.NewItem("item", 1000, 1))
	const ms = 1_790_000_000_000
	err := s.Change(await.Context(t), "test", func(ctx context.Context, c database.Conn, _ int64) error {
		return WriteAudit(ctx, c,
			&AuditRow{At: ms, Action: order.ActionItemChange, ItemID: "item", Before: `{"per_user_limit":3}`, After: `{"per_user_limit":2}`},
			&AuditRow{At: ms + 10, Action: order.ActionItemChange, ItemID: "item", Before: `{"per_user_limit":2}`, After: `{"per_user_limit":1}`})
	})
	if err != nil {
		t.Fatal(err)
	}
	const refused = ordertest.RejectedPrefix + order.ReasonUserLimit
	batch, want := []order.Task{}, []string{}
	for _, c := range []struct {
		at, quantity int64
		want         string
	}{{ms + 11, 2, refused}, {ms + 11, 1, "confirmed"}, {ms + 10, 2, "confirmed"}, {ms + 1, 3, refused}, {ms, 3, "confirmed"}} {
		name := fmt.Sprint("o", len(batch))
		o := ordertest.Bought(name, "item", name, "k", c.quantity)
		o.CreatedAt = c.at
		batch, want = append(batch, o), append(want, c.want)
	}
	ordertest.WantVerdicts(t, mustCommit(t, s, batch...), want...)
}

// TestStore_Commit_RefusalFails: if the row of a refused order cannot be written, nothing of the batch is committed.
func TestStore_Commit_RefusalFails(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	mustInsert(t, s, ordertest.NewItem("item", 1, 1))
	ordertest.Refuse(t, s, "INSERT", "orders", "NEW.status = 'rejected'")
	if out, err := s.Commit(await.Context(t), ordertest.Distinct("n", "item", 2)); err == nil {
		t.Errorf("committed: %v", ordertest.Verdicts(out))
	}
	if n := len(ordertest.AllRows(t, s)); n != 0 {
		t.Errorf("%d rows", n)
	}
	ordertest.AuditStore(t, s)
}

// TestPostgres_commit_Statements: the number of statements of a batch does not grow with the number
// of its orders that exist, are refused, or were accepted under a higher limit. A batch that takes
// as many statements as orders could exceed the time of a transaction, each time again.
func TestPostgres_commit_Statements(t *testing.T) {
	t.Parallel()
	server := loggingServer(t)
	s := openStore(t, ordertest.NewPostgresOn(t, server))
	mustInsert(t, s, ordertest.NewItem("item", 1000, 1))
	const ms = 1_790_000_000_000
	err := s.Change(await.Context(t), "test", func(ctx context.Context, c database.Conn, _ int64) error {
		return WriteAudit(ctx, c, &AuditRow{At: ms, Action: order.ActionItemChange, ItemID: "item", Before: `{"per_user_limit":2}`, After: `{"per_user_limit":1}`})
	})
	if err != nil {
		t.Fatal(err)
	}
	statements := func(prefix string, n int) int {
		exist := ordertest.Distinct(prefix+"exist", "item", n)
		mustCommit(t, s, exist...)
		batch := exist
		for i := range n {
			name := fmt.Sprint(prefix, i)
			earlier := ordertest.Bought(name+"earlier", "item", name+"earlier", "k", 2)
			above := ordertest.Bought(name+"above", "item", name+"above", "k", 2)
			again := ordertest.Bought(name+"again", "item", exist[i].UserID, exist[i].IdempotencyKey, 1)
			earlier.CreatedAt, above.CreatedAt = ms-1, ms+1
			batch = append(batch, earlier, above, again)
		}
		before := statementsOf(t, server)
		verdicts := make(map[string]int)
		for _, v := range ordertest.Verdicts(mustCommit(t, s, batch...)) {
			verdicts[v]++
		}
		if verdicts["confirmed"] != 2*n || verdicts[ordertest.RejectedPrefix+order.ReasonUserLimit] != n || verdicts[ordertest.RejectedPrefix+order.ReasonDuplicate] != n {
			t.Errorf("verdicts of 4 times %d orders: %v", n, verdicts)
		}
		return statementsOf(t, server) - before
	}
	if few, many := statements("few", 1), statements("many", 50); few == 0 || many > 2*few { // a connection may be new
		t.Errorf("%d statements for 200 orders, and %d for 4", many, few)
	}
	if sold := ordertest.ItemOf(t, s, "item").Sold; sold != 51*3 {
		t.Errorf("%d units sold, want %d", sold, 51*3)
	}
}
