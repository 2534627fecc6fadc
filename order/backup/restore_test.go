package backup

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mattn/go-sqlite3"

	"flashsale/order"
)

// noon is the time of the restores in these tests.
var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// taken returns a shop with that many orders, and a backup of it outside its folder.
func taken(t *testing.T, orders int) (s *shop, file string) {
	t.Helper()
	s = newShop(t, filepath.Join(t.TempDir(), "shop.db"))
	if orders > 0 {
		s.sell(orders)
	}
	file = filepath.Join(t.TempDir(), "copy.db")
	if _, err := Take(t.Context(), s.path, file, false); err != nil {
		t.Fatal(err)
	}
	return s, file
}

// crash leaves the database's files as a killed process does: the log is not empty.
func (s *shop) crash() {
	s.t.Helper()
	left := map[string][]byte{}
	for _, side := range []string{"", "-wal", "-shm"} {
		b, err := os.ReadFile(s.path + side)
		if err != nil {
			s.t.Fatal(err)
		}
		left[s.path+side] = b
	}
	s.disconnect()
	for path, b := range left {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			s.t.Fatal(err)
		}
	}
}

// TestRestore: the old database is kept complete, with the contents of its log, and none of
// that log reaches the new one.
func TestRestore(t *testing.T) {
	t.Parallel()
	s, file := taken(t, 3)
	s.sell(2)
	s.crash()
	r, err := Restore(t.Context(), file, s.path, noon)
	if err != nil {
		t.Fatal(err)
	}
	kept := s.path + ".before-restore-20260102T120000Z"
	if r.Path != s.path || r.Kept != kept || r.Orders != 3 || r.Schema != r.Latest || r.Latest == 0 {
		t.Errorf("restored %+v", r)
	}
	wantNames(t, filepath.Dir(s.path), "shop.db", filepath.Base(kept))
	if items, orders := sold(t, s.path); items != 3 || orders != 3 {
		t.Errorf("restored: %d units sold, orders of %d, want 3", items, orders)
	}
	if items, orders := sold(t, kept); items != 5 || orders != 5 {
		t.Errorf("kept: %d units sold, orders of %d, want 5", items, orders)
	}
	if contents(t, s.path) != contents(t, file) {
		t.Error("the database differs from the backup")
	}
	if info, err := os.Stat(s.path); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, error %v, want 0600", info.Mode(), err)
	}
	s.connect()
	s.sell(1)
}

// TestRestore_BareName: a database in the working folder may be named without a folder.
func TestRestore_BareName(t *testing.T) {
	_, file := taken(t, 3)
	t.Chdir(t.TempDir())
	r, err := Restore(t.Context(), file, "new.db", noon)
	if err != nil {
		t.Fatal(err)
	}
	if r.Path != "new.db" || r.Orders != 3 {
		t.Errorf("restored %+v", r)
	}
	wantNames(t, ".", "new.db")
	if r, err = Restore(t.Context(), file, "new.db", noon); err != nil || r.Kept != "new.db.before-restore-20260102T120000Z" {
		t.Errorf("restored again: %+v, error %v", r, err)
	}
}

// TestRestore_Unpaid: payments since the backup are lost, so no unpaid order may expire before the
// provider can report them again. Other orders and later times stay.
func TestRestore_Unpaid(t *testing.T) {
	t.Parallel()
	s, _ := taken(t, 0)
	s.sell(5)
	until := noon.Add(order.PayAgainWithin).UnixMilli()
	s.exec(`UPDATE orders SET expires_at = CASE id WHEN '000000001' THEN 1 WHEN '000000002' THEN ?1 - 1 WHEN '000000003' THEN ?1 + 1
		WHEN '000000004' THEN 2 ELSE 0 END`, until)
	s.exec("UPDATE orders SET status = 'paid', paid_at = 1 WHERE id = '000000004'")
	file := filepath.Join(t.TempDir(), "unpaid.db")
	if _, err := Take(t.Context(), s.path, file, false); err != nil {
		t.Fatal(err)
	}
	s.crash()
	r, err := Restore(t.Context(), file, s.path, noon)
	if err != nil || r.Unpaid != 3 || !r.PayUntil.Equal(time.UnixMilli(until)) {
		t.Fatalf("restored %+v, %v, want 3 unpaid orders until %v", r, err, time.UnixMilli(until))
	}
	wantNames(t, filepath.Dir(s.path), "shop.db", filepath.Base(r.Kept))
	s.connect()
	var got string
	if err := s.db.QueryRowContext(t.Context(), "SELECT group_concat(expires_at, ' ') FROM (SELECT expires_at FROM orders ORDER BY id)").Scan(&got); err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprint(until, until, until+1, 2, 0); got != want {
		t.Errorf("the orders expire at %s, want %s", got, want)
	}
}

// TestRestore_Missing creates the database.
func TestRestore_Missing(t *testing.T) {
	t.Parallel()
	_, file := taken(t, 1)
	path := filepath.Join(t.TempDir(), "shop.db")
	r, err := Restore(t.Context(), file, path, noon)
	if err != nil || r.Kept != "" {
		t.Fatalf("%+v, error %v", r, err)
	}
	wantNames(t, filepath.Dir(path), "shop.db")
	if _, orders := sold(t, path); orders != 1 {
		t.Errorf("orders of %d units, want 1", orders)
	}
}

// TestRestore_Link replaces the file that a link names, and not the link.
func TestRestore_Link(t *testing.T) {
	t.Parallel()
	s, file := taken(t, 1)
	s.sell(1)
	s.disconnect()
	link := filepath.Join(t.TempDir(), "link.db")
	if err := os.Symlink(s.path, link); err != nil {
		t.Fatal(err)
	}
	r, err := Restore(t.Context(), file, link, noon)
	if err != nil || filepath.Dir(r.Kept) != filepath.Dir(s.path) {
		t.Fatalf("%+v, error %v", r, err)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode().IsRegular() {
		t.Errorf("the link became %v, error %v", info.Mode(), err)
	}
	if _, orders := sold(t, s.path); orders != 1 {
		t.Errorf("orders of %d units, want 1", orders)
	}
}

// TestRestore_InUse: an idle connection prevents the database from being replaced, in any
// journal mode.
func TestRestore_InUse(t *testing.T) {
	t.Parallel()
	s, file := taken(t, 1)
	before := contents(t, s.path)
	_, err := Restore(t.Context(), file, s.path, noon)
	wantFault(t, err, true, ErrInUse, "stop every")
	if contents(t, s.path) != before {
		t.Error("the database was changed")
	}
	s.sell(1) // it still works
	wantNames(t, filepath.Dir(s.path), "shop.db", "shop.db-shm", "shop.db-wal")
}

// TestRestoration_Lock: from the check to the swap, no other process can use the old
// database.
func TestRestoration_Lock(t *testing.T) {
	t.Parallel()
	s, file := taken(t, 1)
	s.disconnect()
	r := &restoration{file: file, path: s.path}
	if err := r.lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	refused := func(when string) {
		t.Helper()
		db, err := sql.Open("sqlite3", "file:"+s.path+"?_busy_timeout=0&_journal_mode=WAL")
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		var se sqlite3.Error
		if err := db.PingContext(t.Context()); !errors.As(err, &se) || se.Code != sqlite3.ErrBusy {
			t.Errorf("%s: another process gets %v, want %v", when, err, sqlite3.ErrBusy)
		}
	}
	refused("locked")
	if err := r.detach(t.Context()); err != nil {
		t.Fatal(err)
	}
	refused("detached")
	wantNames(t, filepath.Dir(s.path), "shop.db")

	// If a service starts on the new file, it keeps its log when the lock on the old one
	// ends.
	if err := os.Rename(file, s.path); err != nil {
		t.Fatal(err)
	}
	s.connect()
	s.sell(1)
	if err := r.unlock(); err != nil {
		t.Fatal(err)
	}
	wantNames(t, filepath.Dir(s.path), "shop.db", "shop.db-shm", "shop.db-wal")
	var orders int
	if err := s.db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM orders").Scan(&orders); err != nil || orders != 2 {
		t.Errorf("%d orders, error %v, want 2", orders, err)
	}
}

// TestRestore_File refuses files that are not backups, and leaves the database and its
// folder unchanged.
func TestRestore_File(t *testing.T) {
	t.Parallel()
	s, good := taken(t, 500)
	s.disconnect()
	before, list := contents(t, s.path), names(t, filepath.Dir(s.path))
	whole, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	edited := func(change func(path string)) string {
		path := filepath.Join(t.TempDir(), "copy.db")
		if err := os.WriteFile(path, whole, 0o600); err != nil {
			t.Fatal(err)
		}
		change(path)
		return path
	}
	execute := func(query string) func(string) {
		return func(path string) {
			db, err := sql.Open("sqlite3", "file:"+path)
			if err == nil {
				_, err = db.ExecContext(t.Context(), query)
			}
			if err = errors.Join(err, db.Close()); err != nil {
				t.Fatalf("%s: %v", query, err)
			}
		}
	}
	truncate := func(size int64) func(string) {
		return func(path string) {
			if err := os.Truncate(path, size); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, q := range map[string]struct {
		file  string
		cause error
	}{
		"truncated":             {edited(truncate(int64(len(whole)) / 2)), ErrDamaged},
		"truncated by one byte": {edited(truncate(int64(len(whole)) - 1)), ErrDamaged},
		"a piece of the header": {edited(truncate(50)), ErrDamaged},
		"empty":                 {edited(truncate(0)), ErrForeign},
		"overwritten":           {edited(func(path string) { damage(t, path) }), ErrDamaged},
		"text": {edited(func(path string) {
			if err := os.WriteFile(path, []byte(strings.Repeat("x", 10_000)), 0o600); err != nil {
				t.Fatal(err)
			}
		}), ErrDamaged},
		"newer":       {edited(execute("INSERT INTO goose_db_version (version_id, is_applied) VALUES (99999, 1)")), ErrNewer},
		"foreign":     {edited(execute("DROP TABLE orders")), ErrForeign},
		"no version":  {edited(execute("DROP TABLE goose_db_version")), ErrForeign},
		"constraint":  {edited(execute("PRAGMA ignore_check_constraints = ON; UPDATE items SET sold = total + 1")), ErrDamaged},
		"a log of it": {edited(func(path string) { _ = os.WriteFile(path+"-wal", []byte("x"), 0o600) }), nil}, //nolint:errcheck // the restore would succeed
		"itself":      {s.path, nil},
		"a folder":    {t.TempDir(), nil},
		"missing":     {filepath.Join(t.TempDir(), "none.db"), os.ErrNotExist},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Restore(t.Context(), q.file, s.path, noon)
			wantFault(t, err, false, q.cause)
			if contents(t, s.path) != before {
				t.Error("the database was changed")
			}
			wantNames(t, filepath.Dir(s.path), list...)
		})
	}
	missing := filepath.Join(t.TempDir(), "shop.db")
	if _, err := Restore(t.Context(), edited(truncate(5000)), missing, noon); err == nil {
		t.Error("a truncated file was restored")
	}
	wantNames(t, filepath.Dir(missing))
}

// TestRestore_Database refuses databases that it cannot replace safely.
func TestRestore_Database(t *testing.T) {
	t.Parallel()
	_, file := taken(t, 1)
	folder := t.TempDir()
	at := func(name string) string { return filepath.Join(folder, name) }
	for name, text := range map[string]string{"text.db": strings.Repeat("x", 10_000), "gone.db-wal": "log", "lost.db-journal": "log", "empty.db": "", "empty.db-wal": "log"} {
		if err := os.WriteFile(at(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	before := names(t, folder)
	for path, word := range map[string]string{
		at("text.db"): "move " + at("text.db"), at("gone.db"): at("gone.db-wal"), at("lost.db"): at("lost.db-journal"), at("empty.db"): at("empty.db-wal"),
		folder:                                   "not a regular file",
		filepath.Join(folder, "none", "shop.db"): "no such file",
	} {
		_, err := Restore(t.Context(), file, path, noon)
		wantFault(t, err, true, nil, word)
	}
	wantNames(t, folder, before...)
}

// TestRestore_DanglingLink: a restore follows links to a database, also to one that does not exist. An empty log has nothing
// to lose.
func TestRestore_DanglingLink(t *testing.T) {
	t.Parallel()
	_, file := taken(t, 1)
	folder := t.TempDir()
	target, link := filepath.Join(folder, "shop.db"), filepath.Join(folder, "link.db")
	if err := errors.Join(os.Symlink("shop.db", link), os.WriteFile(target+"-wal", nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := Restore(t.Context(), file, link, noon); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(target); err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
		t.Errorf("the database: %+v, %v", info, err)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link: %+v, %v", info, err)
	}
}

// TestRestore_Leftovers removes the files of an interrupted restore, and keeps the
// databases that earlier ones have replaced.
func TestRestore_Leftovers(t *testing.T) {
	t.Parallel()
	s, file := taken(t, 1)
	s.disconnect()
	earlier, alias := s.path+replaced+"20250101T000000Z", s.path+replaced+"20260101T000000Z"
	err := errors.Join(os.WriteFile(s.path+unfinished+"1", []byte("half"), 0o600), os.WriteFile(earlier, []byte("earlier"), 0o600), os.Link(s.path, alias))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Restore(t.Context(), file, s.path, noon); err != nil {
		t.Fatal(err)
	}
	wantNames(t, filepath.Dir(s.path), "shop.db", filepath.Base(earlier), "shop.db"+replaced+"20260102T120000Z")

	// Two in the same second: both replaced databases are kept.
	r, err := Restore(t.Context(), file, s.path, noon)
	if second := s.path + replaced + "20260102T120000Z-2"; err != nil || r.Kept != second {
		t.Fatalf("kept %s, %v, want %s", r.Kept, err, second)
	}
	wantNames(t, filepath.Dir(s.path), "shop.db", filepath.Base(earlier), "shop.db"+replaced+"20260102T120000Z", filepath.Base(r.Kept))
}
