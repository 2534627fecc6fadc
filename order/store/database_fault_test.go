//go:build unix

package store_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mattn/go-sqlite3"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/disktest"
	"flashsale/internal/testing/redistest"
	"flashsale/order"
	"flashsale/order/ordertest"
	"flashsale/order/shoptest"
	"flashsale/order/store"
	"flashsale/order/store/database"
	"flashsale/order/store/sqlite"
	"flashsale/order/store/storetest"
	"flashsale/order/worker"
	"flashsale/queue"
)

// intact makes SQLite check the whole file.
func intact(t *testing.T, s *store.Store) {
	t.Helper()
	var says string
	if err := s.Reader().Raw("PRAGMA integrity_check").Scan(&says).Error; err != nil || says != "ok" {
		t.Errorf("the database's integrity: %q, %v", says, err)
	}
}

// TestStore_transient makes the database refuse writes, for each of its reasons: the error
// is transient, and nothing is half written.
func TestStore_transient(t *testing.T) {
	t.Parallel()
	ordertest.NeedSQLite(t)
	for _, f := range ordertest.DatabaseFaults {
		t.Run(f.Name, func(t *testing.T) {
			t.Parallel()
			s := storetest.New(t)
			storetest.MustInsert(t, s, ordertest.NewItem("item", 100_000, 1))
			storetest.MustCommit(t, s, ordertest.Bought("first", "item", "u", "k", 1))
			end := f.Begin(t, s)
			var err error
			for i := 0; err == nil && i < 100; i++ { // the free space of existing pages can still be used
				_, err = s.Commit(await.Context(t), ordertest.Distinct(fmt.Sprintf("%d-", i), "item", 100))
			}
			var se sqlite3.Error
			if !errors.As(err, &se) || !slices.Contains(f.Codes, se.Code) || !database.Transient(err) {
				t.Errorf("commit: %v, transient %v; want one of the codes %v, transient", err, database.Transient(err), f.Codes)
			}
			if _, err := s.InsertItem(await.Context(t), ordertest.NewItem("other", 1, 1)); f.Name != "full" && !errors.Is(err, database.ErrUnavailable) {
				t.Errorf("a new item: %v, want %v", err, database.ErrUnavailable)
			}
			if _, err := s.Order(await.Context(t), "first"); err != nil {
				t.Errorf("reading meanwhile: %v", err)
			}
			end()
			storetest.MustCommit(t, s, ordertest.Distinct("after", "item", 300)...)
			ordertest.AuditStore(t, s)
			intact(t, s)
		})
	}
}

// TestStore_ReopensConnection opens the writing connection while the database's files
// refuse writes: once they accept writes again, so does the store.
func TestStore_ReopensConnection(t *testing.T) {
	t.Parallel()
	ordertest.NeedSQLite(t)
	s := storetest.New(t)
	storetest.MustInsert(t, s, ordertest.NewItem("item", 10, 1))
	pool, err := s.Writer().DB()
	if err != nil {
		t.Fatal(err)
	}
	allow := disktest.Deny(t, s.Path(), s.Path()+"-wal")
	// The pool closes its connection and opens another one at the next call.
	pool.SetMaxIdleConns(0)
	await.True(t, "the connection is closed", func() bool { return pool.Stats().OpenConnections == 0 }) // the store may be using it
	pool.SetMaxIdleConns(1)
	_, err = s.Commit(await.Context(t), []order.Task{ordertest.Bought("refused", "item", "u", "k", 1)})
	var se sqlite3.Error
	if !errors.As(err, &se) || se.Code != sqlite3.ErrReadonly {
		t.Errorf("a commit to a database that refuses writes: %v, want code %d", err, sqlite3.ErrReadonly)
	}
	allow()
	storetest.MustCommit(t, s, ordertest.Bought("taken", "item", "u", "k", 1))
	intact(t, s)
}

// TestOpenStore_NotWritable opens databases that can only be read.
func TestOpenStore_NotWritable(t *testing.T) {
	t.Parallel()
	disk := disktest.New(t, 16<<20)
	path := filepath.Join(disk.Path(), "shop.db")
	s := storetest.NewAt(t, path)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	open := func() error {
		s, err := store.Open(await.Context(t), "sqlite:"+path)
		if err == nil {
			err = s.Close()
		}
		return err
	}
	if err := open(); err != nil {
		t.Errorf("a writable database: %v", err)
	}
	disk.Remount(true)
	if err := open(); !errors.Is(err, sqlite.ErrNotWritable) || !strings.Contains(fmt.Sprint(err), path) {
		t.Errorf("a read-only mount: %v, want %v with the path", err, sqlite.ErrNotWritable)
	}
	disk.Remount(false)
	if err := open(); err != nil {
		t.Errorf("once it is writable: %v", err)
	}
}

// TestStore_beginsWithinDeadline makes another process hold the database's lock for longer
// than a transaction may take: the transaction fails while the lock is still held, even if
// the connection would wait longer.
func TestStore_beginsWithinDeadline(t *testing.T) {
	t.Parallel()
	ordertest.NeedSQLite(t)
	s := storetest.New(t)
	pool, err := s.Writer().DB()
	if err != nil {
		t.Fatal(err)
	}
	storetest.MustInsert(t, s, ordertest.NewItem("item", 10, 1))
	const set = 600_000
	for _, f := range ordertest.DatabaseFaults {
		if f.Name != "busy" {
			continue
		}
		end := f.Begin(t, s)
		ordertest.Pragma(t, s, fmt.Sprintf("busy_timeout = %d", set))
		done := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(await.Context(t), 50*time.Millisecond)
			defer cancel()
			tx, err := pool.BeginTx(ctx, nil)
			if err == nil {
				err = tx.Rollback()
			}
			done <- err
		}()
		select {
		case err := <-done:
			if err == nil || !database.Transient(err) && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a transaction without the lock: %v", err)
			}
			end()
		case <-time.After(time.Minute):
			t.Error("the transaction waits for the lock beyond its deadline")
			end()
			if err := <-done; err != nil {
				t.Log(err)
			}
		}
	}
	var wait int
	if err := s.Writer().Raw("PRAGMA busy_timeout").Scan(&wait).Error; err != nil || wait != set {
		t.Errorf("afterwards the connection waits for %d ms, %v; want %d, as before", wait, err, set)
	}
	storetest.MustCommit(t, s, ordertest.Bought("after", "item", "u", "k", 1))
}

// TestFulfiller_DatabaseFault keeps the database from writing while orders arrive: they are
// accepted, the worker keeps its tasks and takes no more, and it continues on its own.
func TestFulfiller_DatabaseFault(t *testing.T) {
	t.Parallel()
	ordertest.NeedSQLite(t)
	for _, f := range ordertest.DatabaseFaults {
		t.Run(f.Name, func(t *testing.T) {
			t.Parallel()
			s := shoptest.New(t, redistest.Redis(t), false, ordertest.NewItem("", 100_000, 1))
			s.MustPlace(s.Purchase("first", "k", 1, 0))
			s.Work()
			s.Drained()
			began := time.Now()
			end := f.Begin(t, s.Store)
			placed := 1
			buy := func() { // more than fits into the free space of existing pages
				for range 50 {
					p := s.MustPlace(s.Purchase(fmt.Sprintf("u%d", placed), "k", 1, 0))
					if p.Committed {
						t.Errorf("order %s is committed", p.Order.ID)
					}
					placed++
				}
			}
			stats := func() queue.Stats {
				st, err := s.Queue.Stats(await.Context(t))
				if err != nil {
					t.Fatal(err)
				}
				return st
			}
			refused := func() int {
				s.Mu.Lock()
				defer s.Mu.Unlock()
				n := 0
				for _, err := range s.Errors {
					if database.Transient(err) {
						n++
					}
				}
				return n
			}
			await.True(t, "the database refuses", func() bool {
				if refused() == 0 && placed < 20_000 {
					buy()
				}
				return refused() > 0
			})
			seen := refused()
			buy()
			await.True(t, "another attempt", func() bool { return refused() > seen+2 })
			// Another worker may get the tasks after ten seconds, which pass here only on a busy machine.
			st := stats()
			s.Mu.Lock()
			returned := time.Since(began) >= 10*time.Second &&
				slices.ContainsFunc(s.Errors, func(err error) bool { return errors.Is(err, worker.ErrReturned) })
			s.Mu.Unlock()
			if st.Leased == 0 && !returned || st.Dead != 0 {
				t.Errorf("meanwhile %d tasks are leased and %d dead", st.Leased, st.Dead)
			}
			end()
			s.Drained()
			if rows := ordertest.AllRows(t, s.Store); len(rows) != placed {
				t.Errorf("%d rows, want %d", len(rows), placed)
			}
			if st := stats(); st.Dead != 0 || st.Failed != 0 {
				t.Errorf("%d dead letters, %d failed attempts", st.Dead, st.Failed)
			}
			if p := s.MustPlace(s.Purchase("last", "k", 1, time.Minute)); !p.Committed {
				t.Error("an order after the fault is not committed")
			}
			ordertest.AuditStore(t, s.Store)
			intact(t, s.Store)
		})
	}
}
