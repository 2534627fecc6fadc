package database

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"gorm.io/gorm"

	"flashsale/internal/testing/await"
)

// TestOpen: a setting names a file, which is created, or a server.
func TestOpen(t *testing.T) {
	t.Parallel()
	for _, setting := range []string{"", "sqlite:", "shop.db", "mysql://host/db", "SQLITE:x"} {
		if db, err := open(t, setting); !errors.Is(err, ErrURL) {
			t.Errorf("%q: %v, %v, want ErrURL", setting, db, err)
		}
	}
	// A path is used literally, even if it contains characters with a meaning in a URI.
	for _, name := range []string{"plain.db", "a?mode=memory", "b#c", "d%20e", "with space & more;x=y"} {
		path := filepath.Join(t.TempDir(), name)
		db, err := open(t, "sqlite:"+path)
		if err != nil {
			t.Errorf("%q: %v", name, err)
			continue
		}
		if _, err := os.Stat(path); err != nil {
			t.Errorf("%q: %v", name, err)
		}
		if err := db.Close(); err != nil {
			t.Errorf("%q: close: %v", name, err)
		}
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := open(t, "sqlite:"+filepath.Join(file, "shop.db")); err == nil {
		t.Error("a folder that is a file: no error")
	}
	missing := filepath.Join(t.TempDir(), "missing")
	if _, err := open(t, "sqlite:"+filepath.Join(missing, "shop.db")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a folder that does not exist: %v", err)
	}
	if _, err := os.Stat(missing); err == nil {
		t.Error("the folder was created")
	}
}

// TestDB_Pools: loads and long reads have their own connections, so short reads are answered while all
// of those are in use; and large loads leave some of them to small ones.
func TestDB_Pools(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	mustNote(t, db, "n", 1)
	ctx, cancel := context.WithCancel(await.Context(t))
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	began := make(chan string, 100)
	read := func(name string, run func(fn func(tx *gorm.DB) error) error) {
		all.Go(func() {
			err := run(func(tx *gorm.DB) error {
				var n int
				if err := tx.Raw("SELECT COUNT(*) FROM notes").Scan(&n).Error; err != nil {
					return err
				}
				began <- name
				<-ctx.Done()
				return context.Cause(ctx)
			})
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	load := func(large bool) func(fn func(tx *gorm.DB) error) error {
		return func(fn func(tx *gorm.DB) error) error { return db.Load(ctx, large, fn) }
	}
	wait := func(want string) {
		t.Helper()
		select {
		case got := <-began:
			if got != want {
				t.Fatalf("%s began, want %s", got, want)
			}
		case <-ctx.Done():
			t.Fatalf("%s did not begin", want)
		}
	}
	for range 6 {
		read("large", load(true))
	}
	for range largeLoads {
		wait("large")
	}
	for range loaders - largeLoads {
		read("small", load(false))
		wait("small")
	}
	for range longReaders {
		read("snapshot", func(fn func(tx *gorm.DB) error) error { return db.Snapshot(ctx, fn) })
		wait("snapshot")
	}
	for range 2 * readers {
		var n int
		if err := db.Reader().WithContext(await.Context(t)).Raw("SELECT COUNT(*) FROM notes").Scan(&n).Error; err != nil || n != 1 {
			t.Fatalf("a short read beside them: %d, %v", n, err)
		}
	}
	select {
	case name := <-began:
		t.Errorf("another %s load began beside %d", name, loaders)
	default:
	}
}
