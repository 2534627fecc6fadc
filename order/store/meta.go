package store

import (
	"context"
	"fmt"
	"strconv"

	"gorm.io/gorm"

	"flashsale/order/store/database"
	"flashsale/order/timeouts"
)

// Epoch is the number of the current build of the state in Redis.
func (s *Store) Epoch(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	return epochOf(s.Reader().WithContext(ctx))
}

// metaOf reads a value of the table meta; empty: there is none.
func metaOf(db *gorm.DB, key string) (value string, err error) {
	if err := db.Raw("SELECT value FROM meta WHERE key = ?", key).Scan(&value).Error; err != nil {
		return "", database.Wrap("read "+key, err)
	}
	return value, nil
}

func epochOf(db *gorm.DB) (int64, error) {
	value, err := metaOf(db, "epoch")
	if err != nil {
		return 0, err
	}
	epoch, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read epoch: %w", err)
	}
	return epoch, nil
}

// CheckPartitions records the number of partitions at the first start and returns the
// recorded number. Redis records it too, and may lose it.
func CheckPartitions(ctx context.Context, s *Store, n int) (int, error) {
	// Read first: a process must be able to start while another one holds the write lock.
	have, err := partitionsOf(s.Reader().WithContext(ctx))
	if err != nil || have > 0 {
		return have, err
	}
	err = s.Change(ctx, "record partitions", func(ctx context.Context, c database.Conn, _ int64) error {
		_, err := c.ExecContext(ctx, "INSERT INTO meta (key, value) VALUES ('partitions', ?1) ON CONFLICT DO NOTHING", strconv.Itoa(n))
		return err
	})
	if err != nil {
		return 0, err
	}
	return partitionsOf(s.Reader().WithContext(ctx))
}

// partitionsOf reads the number of partitions; 0 if none is recorded.
func partitionsOf(db *gorm.DB) (int, error) {
	value, err := metaOf(db, "partitions")
	if err != nil || value == "" {
		return 0, err
	}
	n, err := strconv.Atoi(value)
	if err != nil {
		return 0, fmt.Errorf("read partitions: %w", err)
	}
	return n, nil
}

// Lineage identifies this database, its backups and its copies. Errors: database.ErrUnavailable.
func Lineage(ctx context.Context, s *Store) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	return lineageOf(s.Reader().WithContext(ctx))
}

func lineageOf(db *gorm.DB) (string, error) { return metaOf(db, "lineage") }

// The keys of the marks of a copied database in the table meta; see package transfer. No process
// writes into a database on Postgres that has one.
const (
	MarkUnfinished = "copy_unfinished"
	MarkMoved      = "moved_to"
)
