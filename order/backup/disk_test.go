//go:build unix

package backup

import (
	"os"
	"path/filepath"
	"testing"

	"flashsale/internal/testing/disktest"
)

// TestTake_DiskFull: a backup that does not fit on the disk returns an error and leaves no
// file.
func TestTake_DiskFull(t *testing.T) {
	t.Parallel()
	disk := disktest.New(t, 1<<20)
	s := newShop(t, filepath.Join(t.TempDir(), "shop.db"))
	s.sell(10_000)
	_, err := Take(t.Context(), s.path, filepath.Join(disk.Path(), "copy.db"), false)
	wantFault(t, err, false, nil, "full", "free space")
	wantNames(t, disk.Path())
}

// TestRestore_DiskFull: if the new database does not fit on the disk, the old one is
// unchanged.
func TestRestore_DiskFull(t *testing.T) {
	t.Parallel()
	disk := disktest.New(t, 1<<20)
	_, file := taken(t, 10_000)
	s := newShop(t, filepath.Join(disk.Path(), "shop.db"))
	s.sell(1)
	s.disconnect()
	before := contents(t, s.path)
	_, err := Restore(t.Context(), file, s.path, noon)
	wantFault(t, err, true, nil, "no space left on device", "free space")
	if contents(t, s.path) != before {
		t.Error("the database was changed")
	}
	wantNames(t, disk.Path(), "shop.db")
}

// TestRestore_DiskFullLog: if the log does not fit into the old database, it stays beside
// it, and nothing is replaced.
func TestRestore_DiskFullLog(t *testing.T) {
	t.Parallel()
	disk := disktest.New(t, 4<<20)
	_, file := taken(t, 1)
	s := newShop(t, filepath.Join(disk.Path(), "shop.db"))
	s.sell(5_000)
	s.crash()
	// There is space for the new file, but not for the log's contents.
	room := disk.Path() + "/room"
	if err := os.WriteFile(room, make([]byte, 256<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	disk.Fill()
	if err := os.Remove(room); err != nil {
		t.Fatal(err)
	}
	_, err := Restore(t.Context(), file, s.path, noon)
	wantFault(t, err, true, nil, "write-ahead log", "free space")
	disk.Free()
	s.connect()
	var orders int
	if err := s.db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM orders").Scan(&orders); err != nil || orders != 5_000 {
		t.Errorf("%d orders, error %v, want 5000", orders, err)
	}
	wantNames(t, disk.Path(), "shop.db", "shop.db-shm", "shop.db-wal")
}
