//go:build unix

package main_test

import (
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"flashsale/internal/testing/process"
)

// letGo closes the test's own idle connections, so that they do not count as users of the
// database.
func (s *shop) letGo() { s.db.SetMaxIdleConns(0) }

// fill adds an item with the given number of orders of one kilobyte, in one transaction, to a
// database that no process of the service uses.
func fill(t *testing.T, path, item string, orders int) {
	t.Helper()
	db, err := sql.Open("sqlite3", "file:"+path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	query := strings.NewReplacer("$item", "'"+item+"'", "$n", strconv.Itoa(orders)).Replace(`BEGIN;
		INSERT INTO items (id, name, price_minor, currency, initial, total, sold, per_user_limit, opens_at, created_at, updated_at)
		VALUES ($item, 'Thing', 100, 'EUR', $n, $n, $n, 1, 1, 1, 1);
		WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < $n)
		INSERT INTO orders (id, item_id, user_id, quantity, unit_price_minor, currency, status, reason, idempotency_key, created_at)
		SELECT $item || printf('%09d', i), $item, printf('u%d', i), 1, 100, 'EUR', 'confirmed', hex(zeroblob(500)), 'k', 1 FROM n;
		INSERT INTO buyers (item_id, user_id, quantity) SELECT item_id, user_id, quantity FROM orders WHERE item_id = $item;
		COMMIT`)
	if _, err := db.ExecContext(t.Context(), query); err != nil {
		t.Fatal(err)
	}
}

// consistent reads the orders of a file, and fails the test unless they match the counts of
// items and buyers.
func consistent(t *testing.T, path string) (orders map[string]bool) {
	t.Helper()
	db, err := sql.Open("sqlite3", "file:"+path+"?immutable=1")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var differ int
	err = db.QueryRowContext(t.Context(), `
		SELECT (SELECT COUNT(*) FROM items WHERE sold != (SELECT COALESCE(SUM(quantity), 0) FROM orders WHERE item_id = items.id))
		     + (SELECT COUNT(*) FROM buyers b WHERE quantity != (SELECT COALESCE(SUM(quantity), 0) FROM orders o WHERE o.item_id = b.item_id AND o.user_id = b.user_id))
		     + (SELECT COUNT(*) FROM orders WHERE status != 'confirmed')`).Scan(&differ)
	if err != nil || differ != 0 {
		t.Errorf("%s: %d counts differ from the orders, error %v", path, differ, err)
	}
	rows, err := db.QueryContext(t.Context(), "SELECT id FROM orders")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	orders = make(map[string]bool)
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			t.Fatal(err)
		}
		orders[id] = true
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return orders
}

// shoppers buy without pause until they are stopped.
type shoppers struct {
	stop     atomic.Bool
	all      sync.WaitGroup
	mu       sync.Mutex
	got      []purchase
	answered atomic.Int64
}

func openShop(c *client, item string, width int) *shoppers {
	s := new(shoppers)
	for w := range width {
		s.all.Go(func() {
			for i := 0; !s.stop.Load(); i++ {
				p := c.buy(item, fmt.Sprintf("w%d-%d", w, i), "k", untilCommitted...)
				s.mu.Lock()
				s.got = append(s.got, p)
				s.mu.Unlock()
				s.answered.Add(1)
			}
		})
	}
	return s
}

func (s *shoppers) answers() []purchase {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.got)
}

// further waits for more answers.
func (s *shoppers) further(t *testing.T, n int64) {
	t.Helper()
	goal := s.answered.Load() + n
	eventually(t, "purchases are answered", soon, func() (bool, any) {
		have := s.answered.Load()
		return have >= goal, have
	})
}

// TestBackup_UnderLoadIsConsistent takes backups during a sale: no purchase is refused, and
// each backup is a consistent state with every order that was answered before the backup began.
func TestBackup_UnderLoadIsConsistent(t *testing.T) {
	needProcesses(t)
	needSQLite(t)
	engines(t, noLimit, func(t *testing.T, s *shop, c *client) {
		item := s.newItem(c, 1_000_000, 1)
		buyers := openShop(c, item, 16)
		folder := t.TempDir()
		for i := range 4 {
			buyers.further(t, 50)
			before := buyers.answers()
			file := filepath.Join(folder, fmt.Sprintf("%d.db", i))
			r := s.run("backup", file)
			orders := consistent(t, file)
			wantCode(t, 0, r, file, fmt.Sprintf("orders        %d\n", len(orders)))
			for _, p := range before {
				if !orders[p.Order.ID] {
					t.Errorf("backup %d lacks order %s of %s, which was answered %s before", i, p.Order.ID, p.user, p.verdict())
				}
			}
		}
		buyers.further(t, 50)
		buyers.stop.Store(true)
		buyers.all.Wait()
		only(t, buyers.got, "201")
		if rows := s.audit(c, item, 1, buyers.got); len(rows) != len(buyers.got) {
			t.Errorf("%d rows, want %d", len(rows), len(buyers.got))
		}
		if list, err := os.ReadDir(folder); err != nil || len(list) != 4 {
			t.Errorf("%d files, error %v, want 4", len(list), err)
		}
	})
}

// A signal during the copy leaves no file.
func TestBackup_InterruptedLeavesNoFile(t *testing.T) {
	needProcesses(t)
	needSQLite(t)
	s := newShop(t)
	wantCode(t, 0, s.run("migrate", "up"))
	fill(t, s.dbPath, "full", 5000)
	folder := t.TempDir()
	spec := s.faultySpec("backup.copying:1:stop", "backup", []string{filepath.Join(folder, "copy.db")})
	spec.NoWait = true
	p := process.Start(t, spec)
	eventually(t, "the copy has begun", soon, func() (bool, any) {
		list, err := filepath.Glob(filepath.Join(folder, "copy.db.tmp-*"))
		return len(list) == 1 && err == nil && p.Stopped(), list
	})
	if code := p.Stop(); code != 1 || !strings.Contains(p.Log(), "interrupted; nothing was changed") {
		t.Errorf("exit code %d:\n%s", code, p.Log())
	}
	if list, err := os.ReadDir(folder); err != nil || len(list) != 0 {
		t.Errorf("files %v, error %v, want none", list, err)
	}
}

// TestBackup_KilledKeepsThePreviousBackup kills a backup at each step: the target file does not
// exist, or is the unchanged previous backup.
func TestBackup_KilledKeepsThePreviousBackup(t *testing.T) {
	needProcesses(t)
	needSQLite(t)
	s := newShop(t)
	wantCode(t, 0, s.run("migrate", "up"))
	fill(t, s.dbPath, "full", 5000)
	folder := t.TempDir()
	fresh, old := filepath.Join(folder, "fresh.db"), filepath.Join(folder, "old.db")
	wantCode(t, 0, s.run("backup", old))
	before, err := os.ReadFile(old)
	if err != nil {
		t.Fatal(err)
	}
	fill(t, s.dbPath, "more", 1)
	for _, place := range []string{"backup.copying", "backup.copied", "backup.verified"} {
		for _, file := range []string{fresh, old} {
			if r := process.Run(t, s.faultySpec(place, "backup", []string{file, "--force"})); r.Code != -1 {
				t.Fatalf("%s: the fault never struck: exit code %d\n%s", place, r.Code, r.Output)
			}
		}
		if _, err := os.Stat(fresh); !os.IsNotExist(err) {
			t.Errorf("%s: %s: %v", place, fresh, err)
		}
		if now, err := os.ReadFile(old); err != nil || string(now) != string(before) {
			t.Errorf("%s: the backup before it changed, error %v", place, err)
		}
	}
	wantCode(t, 0, s.run("backup", old, "--force"))
	if n := len(consistent(t, old)); n != 5001 {
		t.Errorf("%d orders, want 5001", n)
	}
}
