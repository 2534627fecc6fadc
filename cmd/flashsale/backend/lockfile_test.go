//go:build unix

package backend

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"flashsale/cmd/flashsale/config"
)

// TestLockSQLite_Link: a link in place of the lock file, which could name any file of root's, is
// refused, and what it names is neither created nor given to another owner.
func TestLockSQLite_Link(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	db, other := filepath.Join(dir, "shop.db"), filepath.Join(dir, "other")
	if err := os.Symlink(other, db+".serve.lock"); err != nil {
		t.Fatal(err)
	}
	lock, err := LockSQLite(&config.Settings{DB: "sqlite:" + db}, false)
	if err == nil {
		t.Fatalf("the link was accepted (%v)", lock.Close())
	}
	if want := db + ".serve.lock is a symbolic link; remove the link"; !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q in it", err, want)
	}
	if _, err := os.Stat(other); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file that the link names: got %v, want it not to exist", err)
	}
}

// TestLockSQLite_LinkedDatabase: under all names of a database the lock is the same one.
func TestLockSQLite_LinkedDatabase(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	db, link, gone := filepath.Join(dir, "shop.db"), filepath.Join(dir, "link.db"), filepath.Join(dir, "gone.db")
	err := errors.Join(os.WriteFile(db, nil, 0o600), os.Symlink(db, link), os.Symlink(filepath.Join(dir, "none"), gone))
	if err != nil {
		t.Fatal(err)
	}
	lock, err := LockSQLite(&config.Settings{DB: "sqlite:" + db}, true)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := lock.Close(); err != nil {
			t.Error(err)
		}
	}()
	for _, exclusive := range []bool{false, true} {
		if _, err := LockSQLite(&config.Settings{DB: "sqlite:" + link}, exclusive); !errors.Is(err, ErrServed) {
			t.Errorf("by a link, exclusive %v: %v, want ErrServed", exclusive, err)
		}
	}
	// A new database may be behind a link.
	first, err := LockSQLite(&config.Settings{DB: "sqlite:" + gone}, true)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "none.serve.lock")); err != nil {
		t.Error(err)
	}
	if err := first.Close(); err != nil {
		t.Error(err)
	}
}

// TestLockSQLite_StrayLog: a database that is missing beside its log gets no lock file.
func TestLockSQLite_StrayLog(t *testing.T) {
	t.Parallel()
	db := filepath.Join(t.TempDir(), "shop.db")
	if err := os.WriteFile(db+"-wal", []byte("log"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, start := range map[string]func(*config.Settings) error{
		"lock": func(s *config.Settings) error { _, err := LockSQLite(s, true); return err }, "need": NeedDatabase,
	} {
		if err := start(&config.Settings{DB: "sqlite:" + db}); err == nil || !strings.Contains(err.Error(), "put the database back beside its -wal file") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := os.Stat(db + ".serve.lock"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the lock file: %v, want none", err)
	}
}

// TestFileLock_Abandon: a lock that is abandoned leaves nothing that it has created, and everything else.
func TestFileLock_Abandon(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(t.TempDir(), "data")
	s := &config.Settings{DataDir: folder, DB: "sqlite:" + filepath.Join(folder, "shop.db")}
	lock, err := LockSQLite(s, true)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := LockSQLite(s, false); !errors.Is(err, ErrServed) {
		t.Errorf("a second lock: %v, want ErrServed", err)
	}
	if err := lock.Abandon(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(folder); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder: %v, want it to be removed", err)
	}
	for _, exclusive := range []bool{false, true} { // the first one creates the file, and stays
		if lock, err = LockSQLite(s, exclusive); err != nil {
			t.Fatal(err)
		}
		if err := lock.Abandon(); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(folder, "shop.db.serve.lock")); err != nil {
			t.Errorf("exclusive %v: the lock file was removed: %v", exclusive, err)
		}
	}
}

// TestLockFile_Removed: of a file that was removed after it was opened, the lock is worth nothing, and is
// taken on the new file.
func TestLockFile_Removed(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	open, _, err := openLock(path)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if same, err := isAt(open, path); !same || err != nil {
		t.Errorf("the file: %v, %v", same, err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if same, err := isAt(open, path); same || err != nil {
		t.Errorf("after its removal: %v, %v", same, err)
	}
	lock, err := lockFile(path, true)
	if err != nil {
		t.Fatal(err)
	}
	if same, err := isAt(open, path); same || err != nil {
		t.Errorf("beside a new file: %v, %v", same, err)
	}
	if err := lock.Close(); err != nil {
		t.Error(err)
	}
}
