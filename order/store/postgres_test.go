package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/pooltest"
	"flashsale/order"
	"flashsale/order/ordertest"
	"flashsale/order/store/database"
	"flashsale/order/store/postgres"
)

// onPostgres returns stores of n processes on one database of Postgres.
func onPostgres(t testing.TB, n int) []*Store {
	t.Helper()
	url := ordertest.NewPostgres(t)
	stores := make([]*Store, n)
	for i := range stores {
		stores[i] = openStore(t, url)
	}
	return stores
}

// backend returns the number of the server process that runs c's statements.
func backend(ctx context.Context, c database.Conn) (pid int, err error) {
	err = c.QueryRowContext(ctx, "SELECT pg_backend_pid()").Scan(&pid)
	return pid, err
}

// terminate ends a server process, and with it the connection.
func terminate(t testing.TB, s *Store, pid int) {
	t.Helper()
	if err := s.Reader().WithContext(await.Context(t)).Exec("SELECT pg_terminate_backend(?::int, 10000)", strconv.Itoa(pid)).Error; err != nil {
		t.Fatal(err)
	}
}

// TestPostgres_LostConnection: a change whose connection is lost before the commit is run
// again, and is made once.
func TestPostgres_LostConnection(t *testing.T) {
	t.Parallel()
	s := onPostgres(t, 1)[0]
	mustInsert(t, s, ordertest.NewItem("item", 10, 5))
	for name, strike := range map[string]func(ctx context.Context, c database.Conn) error{
		"before the write": func(ctx context.Context, c database.Conn) error {
			pid, err := backend(ctx, c)
			if err == nil {
				terminate(t, s, pid)
			}
			return err
		},
		"in the change": func(ctx context.Context, c database.Conn) error {
			pid, err := backend(ctx, c)
			if err != nil {
				return err
			}
			terminate(t, s, pid)
			_, err = backend(ctx, c)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := ordertest.ItemOf(t, s, "item").Revision
			runs := 0
			err := s.ChangeWithEvents(await.Context(t), "change", func(ctx context.Context, c database.Conn, box *Outbox) error {
				runs++
				box.Touch("item")
				if runs == 1 {
					return strike(ctx, c)
				}
				return nil
			})
			if err != nil || runs != 2 {
				t.Errorf("%d runs: %v, want 2 and no error", runs, err)
			}
			if got := ordertest.ItemOf(t, s, "item").Revision; got != before+1 {
				t.Errorf("the revision rose by %d, want 1", got-before)
			}
		})
	}
}

// TestPostgres_Batches_Concurrent: processes commit the same orders concurrently, in any
// order. Each order is committed once, and no two transactions wait for each other.
func TestPostgres_Batches_Concurrent(t *testing.T) {
	t.Parallel()
	const workers, items, batches, size = 4, 5, 12, 60
	stores := onPostgres(t, workers)
	var tasks []order.Task
	for item := range items {
		id := fmt.Sprintf("item%d", item)
		n := ordertest.NewItem(id, batches*size, 100)
		if item%2 == 0 {
			n.PaymentWindow = 60_000_000_000
		}
		mustInsert(t, stores[0], n)
		tasks = append(tasks, ordertest.Distinct(id+"-", id, batches*size/items)...)
	}
	for i := range tasks { // buyers buy several items, and several times
		tasks[i].UserID, tasks[i].IdempotencyKey = fmt.Sprintf("u%d", i%97), tasks[i].ID
	}
	var running sync.WaitGroup
	for _, s := range stores {
		mine := slices.Clone(tasks)
		rand.Shuffle(len(mine), func(i, j int) { mine[i], mine[j] = mine[j], mine[i] })
		running.Go(func() {
			for batch := range slices.Chunk(mine, size) {
				out, err := s.Commit(await.Context(t), batch)
				if err != nil {
					t.Errorf("commit: %v", err)
					return
				}
				for i := range out {
					if out[i].Status != order.StatusConfirmed {
						t.Errorf("order %s: %+v", batch[i].ID, out[i])
					}
				}
			}
		})
	}
	running.Wait()
	if rows := ordertest.AllRows(t, stores[0]); len(rows) != len(tasks) {
		t.Errorf("%d rows, want %d", len(rows), len(tasks))
	}
	ordertest.AuditStore(t, stores[0])
	if n := deadlocks(t, stores[0]); n != 0 {
		t.Errorf("%d deadlocks", n)
	}
}

// TestPostgres_Payments_Concurrent: two processes record the same payments while another one commits orders of
// the same items. Each payment is recorded once, and no two transactions wait for each other.
func TestPostgres_Payments_Concurrent(t *testing.T) {
	t.Parallel()
	const items, orders = 4, 10 // the tests' groups are not bounded, and none may hold the lock for too long
	stores := onPostgres(t, 3)
	var paid, bought []order.Task
	for item := range items {
		id := fmt.Sprintf("item%d", item)
		n := ordertest.NewItem(id, 2*orders, 1)
		if item%2 == 0 {
			n.PaymentWindow = 60_000_000_000
		}
		mustInsert(t, stores[0], n)
		all := ordertest.Distinct(id+"-", id, 2*orders)
		paid, bought = append(paid, all[:orders]...), append(bought, all[orders:]...)
	}
	mustCommit(t, stores[0], paid...)
	var running sync.WaitGroup
	for _, s := range stores[:2] {
		for _, i := range rand.Perm(len(paid)) {
			running.Go(func() {
				id := paid[i].ID
				if o, err := s.Pay(await.Context(t), id, ordertest.Money("psp-"+id, 1)); err != nil || o.Status != order.StatusPaid {
					t.Errorf("payment of %s: %s, %v", id, o.Status, err)
				}
			})
		}
	}
	rand.Shuffle(len(bought), func(i, j int) { bought[i], bought[j] = bought[j], bought[i] })
	for batch := range slices.Chunk(bought, 2*items) {
		mustCommit(t, stores[2], batch...)
	}
	running.Wait()
	if n := len(ordertest.PaymentsOf(t, stores[0])); n != len(paid) {
		t.Errorf("%d payments, want %d", n, len(paid))
	}
	ordertest.AuditStore(t, stores[0])
	if n := deadlocks(t, stores[0]); n != 0 {
		t.Errorf("%d deadlocks", n)
	}
}

// TestPostgres_Payments_OwnBatch: a process records a payment while it commits a batch of orders.
func TestPostgres_Payments_OwnBatch(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	if !s.Postgres() {
		t.Skip("skipped: on SQLite they are in one transaction, or one after the other")
	}
	mustInsert(t, s, ordertest.NewItem("item", 10, 1))
	mustCommit(t, s, ordertest.Bought("o", "item", "u", "k", 1))
	err := s.batch(await.Context(t), false, nil, func(context.Context, *database.Tx, *Outbox) error {
		if o, err := s.Pay(await.Context(t), "o", ordertest.Money("psp", 1)); err != nil || o.Status != order.StatusPaid {
			t.Errorf("payment beside a batch: %s, %v", o.Status, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	ordertest.AuditStore(t, s)
}

// deadlocks is the number of deadlocks in the database so far.
func deadlocks(t *testing.T, s *Store) (n int) {
	t.Helper()
	if err := s.Reader().Raw("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").Scan(&n).Error; err != nil {
		t.Fatal(err)
	}
	return n
}

// TestPostgres_Locks: batches of two processes, and payments, run concurrently; another change excludes them.
func TestPostgres_Locks(t *testing.T) {
	t.Parallel()
	stores := onPostgres(t, 3)
	for _, item := range []string{"a", "b"} {
		mustInsert(t, stores[0], ordertest.NewItem(item, 10, 5))
	}
	inBatch, release := make(chan struct{}), make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		err := stores[0].batch(await.Context(t), false, nil, func(context.Context, *database.Tx, *Outbox) error {
			close(inBatch)
			<-release
			return nil
		})
		if err != nil {
			t.Errorf("first batch: %v", err)
		}
	})
	<-inBatch
	mustCommit(t, stores[1], ordertest.Bought("o1", "b", "u", "k", 1))
	if o, err := stores[1].Pay(await.Context(t), "o1", ordertest.Money("psp-1", 1)); err != nil || o.Status != order.StatusPaid {
		t.Errorf("a payment beside a batch: %s, %v", o.Status, err)
	}
	var changed atomic.Bool
	running.Go(func() {
		err := stores[2].Change(await.Context(t), "change", func(context.Context, database.Conn, int64) error {
			changed.Store(true)
			return nil
		})
		if err != nil {
			t.Errorf("change: %v", err)
		}
	})
	awaitLocked(t, stores[1])
	if changed.Load() {
		t.Error("a change ran beside a batch")
	}
	close(release)
	running.Wait()
}

// awaitLocked waits until a transaction waits for the lock of all writes.
func awaitLocked(t *testing.T, s *Store) {
	t.Helper()
	await.True(t, "the change waits for the lock", func() bool {
		var waiting int
		err := s.Reader().Raw("SELECT COUNT(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())").
			Scan(&waiting).Error
		return err == nil && waiting == 1
	})
}

// TestPostgres_Moved: once the shop was moved to another database, no process writes into this
// one.
func TestPostgres_Moved(t *testing.T) {
	t.Parallel()
	s := onPostgres(t, 1)[0]
	mustInsert(t, s, ordertest.NewItem("item", 10, 5))
	mark := func(key string) {
		t.Helper()
		if err := s.Writer().Exec("INSERT INTO meta (key, value) VALUES (?, 'x')", key).Error; err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range []string{MarkMoved, MarkUnfinished} {
		mark(key)
		if _, err := s.Commit(await.Context(t), ordertest.Distinct(key, "item", 2)); !errors.Is(err, errMoved) || !database.Transient(err) {
			t.Errorf("%s: a batch is committed with %v, want errMoved", key, err)
		}
		err := s.Change(await.Context(t), "change", func(context.Context, database.Conn, int64) error { return nil })
		if !errors.Is(err, database.ErrUnavailable) {
			t.Errorf("%s: a change is made with %v, want ErrUnavailable", key, err)
		}
		if err := s.Writer().Exec("DELETE FROM meta WHERE key = ?", key).Error; err != nil {
			t.Fatal(err)
		}
	}
	mustCommit(t, s, ordertest.Distinct("o", "item", 2)...)
	if rows := ordertest.AllRows(t, s); len(rows) != 2 {
		t.Errorf("%d rows, want those of the batch without a mark", len(rows))
	}
}

// TestPostgres_LockTimeout: all payments of a transaction that did not get the lock are refused
// together. None of them is at fault, so none waits for the lock once more.
func TestPostgres_LockTimeout(t *testing.T) {
	t.Parallel()
	s := onPostgres(t, 1)[0]
	mustInsert(t, s, ordertest.NewItem("item", 10, 5))
	const payments = 4
	mustCommit(t, s, ordertest.Distinct("o", "item", payments)...)
	other, err := postgres.Open(s.URL(), 1)
	if err != nil {
		t.Fatal(err)
	}
	db, err := other.DB()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	tx, err := db.BeginTx(await.Context(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.ExecContext(await.Context(t), "SELECT pg_advisory_xact_lock($1)", postgres.WriteLock); err != nil {
		t.Fatal(err)
	}
	unlock := sync.OnceValue(tx.Rollback)
	session := sessionOf(t, s)
	begin := pooltest.Hold(t, s.Writer())
	var paying sync.WaitGroup
	for i := range payments {
		paying.Go(func() {
			id := fmt.Sprintf("o%04d", i)
			_, err := s.Pay(await.Context(t), id, ordertest.Money("psp-"+id, 1))
			if !errors.Is(err, database.ErrUnavailable) {
				t.Errorf("payment of %s: %v, want ErrUnavailable", id, err)
			}
			if err := unlock(); err != nil { // the others could get it now
				t.Error(err)
			}
		})
	}
	await.True(t, "all payments wait", func() bool {
		_, changes := s.Waiting()
		return changes == payments
	})
	begin()
	paying.Wait()
	if now := sessionOf(t, s); now != session {
		t.Errorf("the connection was given up: session %d, then %d", session, now)
	}
}

// sessionOf returns the server's process of the writer's connection.
func sessionOf(t *testing.T, s *Store) (pid int) {
	t.Helper()
	db, err := s.Writer().DB()
	if err != nil {
		t.Fatal(err)
	}
	if err := db.QueryRowContext(await.Context(t), "SELECT pg_backend_pid()").Scan(&pid); err != nil {
		t.Fatal(err)
	}
	return pid
}

// TestPostgres_ReadWrite: the check of target_session_attrs does not refuse the connections that
// only read.
func TestPostgres_ReadWrite(t *testing.T) {
	t.Parallel()
	s := openStore(t, ordertest.NewPostgres(t)+"&target_session_attrs=read-write")
	mustInsert(t, s, ordertest.NewItem("item", 10, 5))
	mustCommit(t, s, ordertest.Distinct("o", "item", 2)...)
	ordertest.AuditStore(t, s)
	if err := s.Reader().Exec("DELETE FROM orders").Error; err == nil {
		t.Error("a connection for reads has written")
	}
}

// TestPostgres_ColumnAdded: a migration that adds a column does not disturb the processes that run.
func TestPostgres_ColumnAdded(t *testing.T) {
	t.Parallel()
	s := onPostgres(t, 1)[0]
	mustInsert(t, s, ordertest.NewItem("item", 10, 5))
	read := func() {
		t.Helper()
		if items, err := s.Items(await.Context(t)); err != nil || len(items) != 1 {
			t.Fatalf("items %v, %v, want 1", items, err)
		}
	}
	read()
	if err := s.Writer().WithContext(await.Context(t)).Exec("ALTER TABLE items ADD COLUMN later TEXT NOT NULL DEFAULT ''").Error; err != nil {
		t.Fatal(err)
	}
	read()
}
