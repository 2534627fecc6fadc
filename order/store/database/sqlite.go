package database

import (
	"context"
	"fmt"

	"gorm.io/gorm"

	"flashsale/order/store/sqlite"
)

// openFile opens the pools of a database on SQLite.
func openFile(ctx context.Context, db *DB, path string) (err error) {
	if err := sqlite.Create(ctx, path); err != nil {
		return err
	}
	db.file, db.prepared = path, newPrepared(db.cfg.Prepared)
	if db.write, err = sqlite.OpenWriter(path); err != nil {
		return err
	}
	if err := sqlite.TryWrite(ctx, db.write); err != nil {
		return fmt.Errorf("database %s: %w", path, err)
	}
	if err := db.wal.measure(ctx, db.write); err != nil {
		return fmt.Errorf("database %s: %w", path, err)
	}
	if db.wal.copyDB, err = sqlite.OpenReader(path, 1); err != nil {
		return err
	}
	return db.openReaders(func(conns int) (*gorm.DB, error) { return sqlite.OpenReader(path, conns) })
}
