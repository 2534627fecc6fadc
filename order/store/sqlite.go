package store

import (
	"context"
	"fmt"

	"gorm.io/gorm"

	"flashsale/order/store/sqlite"
)

// openFile opens the pools of a store on SQLite.
func openFile(ctx context.Context, s *Store, path string) (err error) {
	if err := sqlite.Create(ctx, path); err != nil {
		return err
	}
	s.file, s.prepared = path, make(prepared, len(preparedTexts))
	if s.writeDB, err = sqlite.OpenWriter(path); err != nil {
		return err
	}
	if err := sqlite.TryWrite(ctx, s.writeDB); err != nil {
		return fmt.Errorf("database %s: %w", path, err)
	}
	if err := s.wal.measure(ctx, s.writeDB); err != nil {
		return fmt.Errorf("database %s: %w", path, err)
	}
	if s.wal.copyDB, err = sqlite.OpenReader(path, 1); err != nil {
		return err
	}
	return s.openReaders(func(conns int) (*gorm.DB, error) { return sqlite.OpenReader(path, conns) })
}
