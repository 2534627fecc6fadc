package database

import (
	"database/sql"
	"errors"
	"path/filepath"
	"testing"

	"gorm.io/gorm"

	"flashsale/internal/testing/await"
	"flashsale/order/store/sqlite"
)

// TestOpen_PageSize: a new database has small pages, an existing one keeps its own, and the
// limits of the log are the same number of bytes in both.
func TestOpen_PageSize(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	existing := filepath.Join(dir, "existing.db")
	plain, err := sql.Open("sqlite3", existing) // with SQLite's default
	if err != nil {
		t.Fatal(err)
	}
	_, err = plain.ExecContext(await.Context(t), tables)
	if err := errors.Join(err, plain.Close()); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]int64{filepath.Join(dir, "new.db"): sqlite.PageSize, existing: 4096} {
		for range 2 { // a later start does not change it
			db, err := open(t, "sqlite:"+path)
			if err != nil {
				t.Fatal(err)
			}
			for name, pool := range map[string]*gorm.DB{"writer": db.write, "reader": db.read, "checkpoints": db.wal.copyDB} {
				if size, most := pragma[int64](t, pool, "page_size"), pragma[int64](t, pool, "wal_autocheckpoint"); size != want || most != sqlite.AutoCheckpoint/want {
					t.Errorf("%s, %s: pages of %d, want %d; checkpoints at %d pages, want %d", filepath.Base(path), name, size, want, most, sqlite.AutoCheckpoint/want)
				}
			}
			if mode := pragma[string](t, db.write, "journal_mode"); mode != "wal" {
				t.Errorf("%s: the journal's mode is %q", filepath.Base(path), mode)
			}
			if got := db.wal.startPages * want; got > walBytes || got < walBytes-want {
				t.Errorf("%s: a checkpoint begins at %d bytes, want %d", filepath.Base(path), got, walBytes)
			}
			if got := db.wal.restPages * want; got > walRest || got < walRest-want {
				t.Errorf("%s: a checkpoint leaves %d bytes, want %d", filepath.Base(path), got, walRest)
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func pragma[T any](t *testing.T, db *gorm.DB, name string) (value T) {
	t.Helper()
	if err := db.Raw("PRAGMA " + name).Scan(&value).Error; err != nil {
		t.Fatal(err)
	}
	return value
}
