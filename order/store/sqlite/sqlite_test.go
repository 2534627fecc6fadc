package sqlite

import (
	"database/sql"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sync/errgroup"

	"flashsale/internal/testing/await"
)

// TestFormat_Together: several processes may create the same database.
func TestFormat_Together(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "new.db")
	var all errgroup.Group
	for range 8 {
		all.Go(func() error { return format(await.Context(t), path) })
	}
	if err := all.Wait(); err != nil {
		t.Fatal(err)
	}
	var size int
	if err := writerOf(t, path).QueryRow("PRAGMA page_size").Scan(&size); err != nil || size != PageSize {
		t.Errorf("pages of %d, %v, want %d", size, err, PageSize)
	}
}

// TestCreate_ErrStrayLog: a database that is missing or empty beside its log is neither created nor read, because
// SQLite would delete the log.
func TestCreate_ErrStrayLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	missing, empty, link := filepath.Join(dir, "missing.db"), filepath.Join(dir, "empty.db"), filepath.Join(dir, "link.db")
	dangling := filepath.Join(dir, "dangling.db")
	err := errors.Join(os.WriteFile(missing+"-wal", []byte("log"), 0o600), os.WriteFile(empty+"-wal", []byte("log"), 0o600),
		os.WriteFile(empty, nil, 0o600), os.Symlink(empty, link),
		os.Symlink("missing.db", dangling))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{missing, empty, link, dangling} {
		if err := Create(t.Context(), path); !errors.Is(err, ErrStrayLog) {
			t.Errorf("create %s: %v, want ErrStrayLog", path, err)
		}
		err := Peek(path, func(db *sql.DB) error { return db.QueryRow("SELECT 1 FROM sqlite_master").Err() })
		if !errors.Is(err, ErrStrayLog) {
			t.Errorf("peek at %s: %v, want ErrStrayLog", path, err)
		}
	}
	for _, log := range []string{missing + "-wal", empty + "-wal"} {
		if text, err := os.ReadFile(log); err != nil || string(text) != "log" {
			t.Errorf("%s: %q, %v; want it as it was", log, text, err)
		}
	}
	if _, err := os.Stat(missing); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the missing database: %v, want that it does not exist", err)
	}
}

// TestResolve: links are followed to the database, also to one that does not exist.
func TestResolve(t *testing.T) {
	t.Parallel()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	err = errors.Join(os.Mkdir(at("volume"), 0o700), os.WriteFile(at("shop.db"), nil, 0o600), os.Symlink("shop.db", at("link.db")),
		os.Symlink("volume", at("folder")), os.Symlink("../new.db", at("volume/up.db")), os.Symlink("folder/up.db", at("twice.db")),
		os.Symlink("loop.db", at("loop.db")))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"shop.db": "shop.db", "link.db": "shop.db", "absent.db": "absent.db", "folder/absent.db": "volume/absent.db",
		"folder/up.db": "new.db", "twice.db": "new.db",
	} {
		if got, err := Resolve(at(name)); got != at(want) || err != nil {
			t.Errorf("%s: got %s, %v; want %s", name, got, err, want)
		}
	}
	for _, name := range []string{"loop.db", "none/shop.db"} {
		if got, err := Resolve(at(name)); err == nil {
			t.Errorf("%s: got %s, want an error", name, got)
		}
	}
}

// writerOf opens a pool with one writing connection.
func writerOf(t *testing.T, path string) *sql.DB {
	t.Helper()
	db, err := OpenWriter(path)
	if err != nil {
		t.Fatal(err)
	}
	pool, err := db.DB()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pool.Close(); err != nil {
			t.Error(err)
		}
	})
	return pool
}
