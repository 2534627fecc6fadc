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
	unlock, err := LockSQLite(&config.Settings{DB: "sqlite:" + db}, false)
	if err == nil {
		t.Fatalf("the link was accepted (%v)", unlock())
	}
	if want := db + ".serve.lock is a symbolic link; remove the link"; !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q in it", err, want)
	}
	if _, err := os.Stat(other); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file that the link names: got %v, want it not to exist", err)
	}
}
