package sqlite

import (
	"database/sql"
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
