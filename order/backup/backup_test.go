package backup

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"flashsale/migrations"
	"flashsale/order/store"
)

// shop is a database of the service, with a connection of a process that uses it.
type shop struct {
	t    *testing.T
	path string
	db   *sql.DB
}

// newShop returns a migrated database with one item.
func newShop(t *testing.T, path string) *shop {
	t.Helper()
	store, err := store.Open(t.Context(), "sqlite:"+path)
	if err != nil {
		t.Fatal(err)
	}
	db, err := store.Writer().DB()
	if err != nil {
		t.Fatal(err)
	}
	m, err := migrations.New(db, "sqlite")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	s := &shop{t: t, path: path}
	s.connect()
	s.exec("INSERT INTO items (id, name, price_minor, currency, initial, total, per_user_limit, opens_at, created_at, updated_at) " +
		"VALUES ('drop', 'Drop', 100, 'EUR', 1000000, 1000000, 1, 1, 1, 1)")
	return s
}

// connect opens the database as another process would. There are no checkpoints, so commits
// stay in the log.
func (s *shop) connect() {
	s.t.Helper()
	db, err := sql.Open("sqlite3", "file:"+s.path+"?_busy_timeout=0&_journal_mode=WAL&_synchronous=OFF")
	if err != nil {
		s.t.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	s.db = db
	s.t.Cleanup(func() { db.Close() }) //nolint:errcheck // a test may have closed it
	s.exec("PRAGMA wal_autocheckpoint = 0")
}

func (s *shop) disconnect() {
	s.t.Helper()
	if err := s.db.Close(); err != nil {
		s.t.Fatal(err)
	}
}

func (s *shop) exec(query string, args ...any) {
	s.t.Helper()
	if _, err := s.db.ExecContext(s.t.Context(), query, args...); err != nil {
		s.t.Fatalf("%s: %v", query, err)
	}
}

// sell commits n more orders of one unit in one transaction.
func (s *shop) sell(n int) {
	s.t.Helper()
	s.exec("BEGIN IMMEDIATE")
	s.exec(`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
		INSERT INTO orders (id, item_id, user_id, quantity, unit_price_minor, currency, status, idempotency_key, created_at)
		SELECT printf('%09d', sold + i), 'drop', printf('buyer-%d', sold + i), 1, 100, 'EUR', 'confirmed', 'key', 1700000000000 + sold + i FROM n, items`, n)
	s.exec("UPDATE items SET sold = sold + ?", n)
	s.exec("COMMIT")
}

// sold returns the sold units according to the items of a file, and according to its
// orders.
func sold(t *testing.T, path string) (items, orders int64) {
	t.Helper()
	db, err := sql.Open("sqlite3", "file:"+path+"?mode=ro&immutable=1")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	err = db.QueryRowContext(t.Context(), "SELECT (SELECT SUM(sold) FROM items), (SELECT COALESCE(SUM(quantity), 0) FROM orders)").Scan(&items, &orders)
	if err != nil {
		t.Fatalf("read %s: %v", path, err)
	}
	return items, orders
}

// names lists the files of a folder, without the lock file that a database keeps beside it.
func names(t *testing.T, folder string) []string {
	t.Helper()
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), "-turn") {
			out = append(out, e.Name())
		}
	}
	return out
}

func wantNames(t *testing.T, folder string, want ...string) {
	t.Helper()
	if got := names(t, folder); !slices.Equal(got, want) {
		t.Errorf("files: %q, want %q", got, want)
	}
}

// contents returns a digest of a file.
func contents(t *testing.T, path string) [32]byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return sha256.Sum256(b)
}

// wantFault fails the test unless err blames that file, has that cause, and names a fix.
func wantFault(t *testing.T, err error, database bool, cause error, words ...string) {
	t.Helper()
	var f *Fault
	if !errors.As(err, &f) {
		t.Errorf("error %v is no fault of a file", err)
		return
	}
	if f.Database != database || f.Fix == "" || cause != nil && !errors.Is(err, cause) {
		t.Errorf("database %v, fix %q, cause %v; want database %v, cause %v", f.Database, f.Fix, f.Cause, database, cause)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the error does not name %q: %v", w, err)
		}
	}
}

// TestSnapshot_Commits commits an order on another connection after each step of the copy:
// no commit has to wait, the copy takes as many steps as the database has pages, and it
// contains none of these orders.
func TestSnapshot_Commits(t *testing.T) {
	t.Parallel()
	s := newShop(t, filepath.Join(t.TempDir(), "shop.db"))
	s.sell(500)
	to := filepath.Join(t.TempDir(), "copy.db")
	if err := os.WriteFile(to, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	const pages = 4
	steps := 0
	err := snapshot(t.Context(), s.path, to, pages, func() {
		if steps++; steps <= 1000 {
			s.sell(1)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(to)
	if err != nil {
		t.Fatal(err)
	}
	if most := int(info.Size()/2048)/pages + 1; steps < 5 || steps > most {
		t.Errorf("%d steps for %d bytes, want 5 to %d", steps, info.Size(), most)
	}
	if items, orders := sold(t, to); items != 500 || orders != 500 {
		t.Errorf("the copy has %d units sold and orders of %d, want 500", items, orders)
	}
}

func TestTake(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	s := newShop(t, filepath.Join(folder, "shop.db"))
	s.sell(3) // only in the log
	before := contents(t, s.path)
	file := filepath.Join(t.TempDir(), "copy ?#%41.db")
	made, err := Take(t.Context(), s.path, file, false)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, error %v, want 0600", info.Mode(), err)
	}
	latest, err := migrations.Latest("sqlite")
	want := Summary{Path: file, Bytes: info.Size(), Schema: latest, Orders: 3, Newest: time.UnixMilli(1700000000003).UTC()}
	if err != nil || made != want {
		t.Errorf("summary %+v, error %v, want %+v", made, err, want)
	}
	wantNames(t, filepath.Dir(file), filepath.Base(file))
	if contents(t, s.path) != before {
		t.Error("the backup changed the database")
	}

	_, err = Take(t.Context(), s.path, file, false)
	wantFault(t, err, false, nil, "the file exists", "--force")
	s.sell(1)
	if made, err := Take(t.Context(), s.path, file, true); err != nil || made.Orders != 4 {
		t.Errorf("with force: %+v, error %v, want 4 orders", made, err)
	}
	wantNames(t, filepath.Dir(file), filepath.Base(file))
}

// TestTake_Stopped backs up a database that no process has open: one with an empty log, and
// one with the log left by a crash.
func TestTake_Stopped(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	s := newShop(t, filepath.Join(folder, "shop.db"))
	s.sell(2)
	crashed := filepath.Join(t.TempDir(), "crashed.db")
	for _, side := range []string{"", "-wal"} {
		b, err := os.ReadFile(s.path + side)
		if err == nil {
			err = os.WriteFile(crashed+side, b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	s.disconnect()
	for _, path := range []string{s.path, crashed} {
		if made, err := Take(t.Context(), path, filepath.Join(t.TempDir(), "copy.db"), false); err != nil || made.Orders != 2 {
			t.Errorf("%s: %+v, error %v, want 2 orders", path, made, err)
		}
	}
}

// TestTake_OlderSchema backs up the database of an earlier release.
func TestTake_OlderSchema(t *testing.T) {
	t.Parallel()
	s := newShop(t, filepath.Join(t.TempDir(), "shop.db"))
	s.sell(1)
	latest, err := migrations.Latest("sqlite")
	if err != nil {
		t.Fatal(err)
	}
	m, err := migrations.New(s.db, "sqlite")
	if err != nil {
		t.Fatal(err)
	}
	for version := latest - 1; version >= 1; version-- {
		if _, err := m.Down(t.Context()); err != nil {
			t.Fatal(err)
		}
		made, err := Take(t.Context(), s.path, filepath.Join(t.TempDir(), "copy.db"), false)
		if err != nil || made.Schema != version || made.Orders != 1 {
			t.Errorf("%+v, error %v, want schema %d and 1 order", made, err, version)
		}
	}
	if _, err := m.Down(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err = Take(t.Context(), s.path, filepath.Join(t.TempDir(), "copy.db"), false)
	wantFault(t, err, true, ErrForeign, "migrate up")
}

func TestTake_Refused(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	s := newShop(t, filepath.Join(folder, "shop.db"))
	put := func(name, text string) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	lock := put("shop.db.serve.lock", "")
	used := put("used.db", "")
	put("used.db-wal", "x")
	blank := put("blank.db", "")
	text := put("notes.txt", strings.Repeat("no database ", 1000))
	link, alias := filepath.Join(folder, "link.db"), filepath.Join(t.TempDir(), "alias.db")
	if err := errors.Join(os.Symlink(text, link), os.Symlink(s.path, alias)); err != nil {
		t.Fatal(err)
	}
	before := names(t, folder)
	for _, q := range []struct {
		path, file string
		database   bool
		words      string
	}{
		{s.path, s.path, false, "the database itself"},
		{s.path, s.path + "-wal", false, "the database itself"},
		{s.path, lock, false, "the database itself"},
		{s.path, s.path + "-turn", false, "the database itself"},
		{s.path, used, false, "used.db-wal exists"},
		{s.path, link, false, "not a regular file"},
		{s.path, folder, false, "not a regular file"},
		{s.path, filepath.Join(folder, "none", "x.db"), false, "no such file"},
		{filepath.Join(folder, "none.db"), filepath.Join(folder, "x.db"), true, "does not exist"},
		{text, filepath.Join(folder, "x.db"), true, "not a database"},
		{used, filepath.Join(folder, "x.db"), true, "used.db-wal is not"},
		{blank, filepath.Join(folder, "x.db"), true, "it is empty"},
		{alias, lock, false, "the database itself"},
		{alias, s.path + "-wal", false, "the database itself"},
		{folder, filepath.Join(folder, "x.db"), true, "not a regular file"},
	} {
		_, err := Take(t.Context(), q.path, q.file, true)
		wantFault(t, err, q.database, nil, q.words)
	}
	wantNames(t, folder, before...)
}

// TestTake_Cancelled: an interrupt leaves no file behind.
func TestTake_Cancelled(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	s := newShop(t, filepath.Join(folder, "shop.db"))
	s.sell(500)
	ctx, cancel := context.WithCancel(t.Context())
	to := filepath.Join(folder, "copy.db")
	if err := os.WriteFile(to, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := snapshot(ctx, s.path, to, 4, cancel); !errors.Is(err, context.Canceled) {
		t.Errorf("snapshot: %v, want %v", err, context.Canceled)
	}
	if err := os.Remove(to); err != nil {
		t.Fatal(err)
	}
	if _, err := Take(ctx, s.path, to, false); err == nil {
		t.Error("Take succeeds although it was cancelled")
	}
	wantNames(t, folder, "shop.db", "shop.db-shm", "shop.db-wal")
}

// TestTake_DamagedDatabase: a damaged copy is not accepted as a backup.
func TestTake_DamagedDatabase(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	s := newShop(t, filepath.Join(folder, "shop.db"))
	s.sell(500)
	s.disconnect()
	damage(t, s.path)
	_, err := Take(t.Context(), s.path, filepath.Join(folder, "copy.db"), false)
	wantFault(t, err, true, ErrDamaged)
	if got := fmt.Sprint(names(t, folder)); strings.Contains(got, "copy.db") {
		t.Errorf("a file is left: %s", got)
	}
}

// damage overwrites the second half of a file, and keeps its header and schema.
func damage(t *testing.T, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := len(b) / 2; i < len(b); i++ {
		b[i] = 0xA5
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}
