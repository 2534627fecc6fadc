//go:build unix

package order

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
	"flashsale/queue"
)

// intact makes SQLite check the whole file.
func intact(t *testing.T, s *Store) {
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
	for _, f := range databaseFaults {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			mustInsert(t, s, newItem("item", 100_000, 1))
			mustCommit(t, s, bought("first", "item", "u", "k", 1))
			end := f.begin(t, s)
			var err error
			for i := 0; err == nil && i < 100; i++ { // the free space of existing pages can still be used
				_, err = s.commit(await.Context(t), distinct(fmt.Sprintf("%d-", i), "item", 100))
			}
			var se sqlite3.Error
			if !errors.As(err, &se) || !slices.Contains(f.codes, se.Code) || !transient(err) {
				t.Errorf("commit: %v, transient %v; want one of the codes %v, transient", err, transient(err), f.codes)
			}
			if _, err := s.InsertItem(await.Context(t), newItem("other", 1, 1)); f.name != "full" && !errors.Is(err, ErrDatabase) {
				t.Errorf("a new item: %v, want %v", err, ErrDatabase)
			}
			if _, err := s.Order(await.Context(t), "first"); err != nil {
				t.Errorf("reading meanwhile: %v", err)
			}
			end()
			mustCommit(t, s, distinct("after", "item", 300)...)
			auditStore(t, s)
			intact(t, s)
		})
	}
}

// TestStore_ReopensConnection opens the writing connection while the database's files
// refuse writes: once they accept writes again, so does the store.
func TestStore_ReopensConnection(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	mustInsert(t, s, newItem("item", 10, 1))
	pool, err := s.Writer().DB()
	if err != nil {
		t.Fatal(err)
	}
	allow := disktest.Deny(t, s.Path(), s.Path()+"-wal")
	// The pool closes its connection and opens another one at the next call.
	pool.SetMaxIdleConns(0)
	pool.SetMaxIdleConns(1)
	_, err = s.commit(await.Context(t), []task{bought("refused", "item", "u", "k", 1)})
	var se sqlite3.Error
	if !errors.As(err, &se) || se.Code != sqlite3.ErrReadonly {
		t.Errorf("a commit to a database that refuses writes: %v, want code %d", err, sqlite3.ErrReadonly)
	}
	allow()
	mustCommit(t, s, bought("taken", "item", "u", "k", 1))
	intact(t, s)
}

// TestOpenStore_NotWritable opens databases that can only be read.
func TestOpenStore_NotWritable(t *testing.T) {
	t.Parallel()
	disk := disktest.New(t, 16<<20)
	path := filepath.Join(disk.Path(), "shop.db")
	s := newStoreAt(t, path)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	open := func() error {
		s, err := OpenStore(await.Context(t), "sqlite:"+path)
		if err == nil {
			err = s.Close()
		}
		return err
	}
	if err := open(); err != nil {
		t.Errorf("a writable database: %v", err)
	}
	disk.Remount(true)
	if err := open(); !errors.Is(err, ErrNotWritable) || !strings.Contains(fmt.Sprint(err), path) {
		t.Errorf("a read-only mount: %v, want %v with the path", err, ErrNotWritable)
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
	s := newStore(t)
	pool, err := s.Writer().DB()
	if err != nil {
		t.Fatal(err)
	}
	mustInsert(t, s, newItem("item", 10, 1))
	for _, f := range databaseFaults {
		if f.name != "busy" {
			continue
		}
		end := f.begin(t, s)
		pragma(t, s, "busy_timeout = 600000")
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
			if err == nil || !transient(err) && !errors.Is(err, context.DeadlineExceeded) {
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
	if err := s.Writer().Raw("PRAGMA busy_timeout").Scan(&wait).Error; err != nil || wait != lockWait {
		t.Errorf("afterwards the connection waits for %d ms, %v; want %d", wait, err, lockWait)
	}
	mustCommit(t, s, bought("after", "item", "u", "k", 1))
}

// TestFulfiller_DatabaseFault keeps the database from writing while orders arrive: they are
// accepted, the worker keeps its tasks and takes no more, and it continues on its own.
func TestFulfiller_DatabaseFault(t *testing.T) {
	t.Parallel()
	for _, f := range databaseFaults {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, redistest.Redis(t), false, newItem("", 100_000, 1))
			s.mustPlace(s.purchase("first", "k", 1, 0))
			s.work()
			s.drained()
			end := f.begin(t, s.store)
			placed := 1
			buy := func() { // more than fits into the free space of existing pages
				for range 50 {
					p := s.mustPlace(s.purchase(fmt.Sprintf("u%d", placed), "k", 1, 0))
					if p.Committed {
						t.Errorf("order %s is committed", p.Order.ID)
					}
					placed++
				}
			}
			stats := func() queue.Stats {
				st, err := s.queue.Stats(await.Context(t))
				if err != nil {
					t.Fatal(err)
				}
				return st
			}
			refused := func() int {
				s.mu.Lock()
				defer s.mu.Unlock()
				n := 0
				for _, err := range s.errors {
					if transient(err) {
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
			if st := stats(); st.Leased == 0 || st.Dead != 0 {
				t.Errorf("meanwhile %d tasks are leased and %d dead", st.Leased, st.Dead)
			}
			end()
			s.drained()
			if rows := allRows(t, s.store); len(rows) != placed {
				t.Errorf("%d rows, want %d", len(rows), placed)
			}
			if st := stats(); st.Dead != 0 || st.Failed != 0 {
				t.Errorf("%d dead letters, %d failed attempts", st.Dead, st.Failed)
			}
			if p := s.mustPlace(s.purchase("last", "k", 1, time.Minute)); !p.Committed {
				t.Error("an order after the fault is not committed")
			}
			auditStore(t, s.store)
			intact(t, s.store)
		})
	}
}
