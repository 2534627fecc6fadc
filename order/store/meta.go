package store

import (
	"context"
	"fmt"
	"strconv"

	"gorm.io/gorm"

	"flashsale/order/timeouts"
)

// Epoch is the number of the current build of the state in Redis.
func (s *Store) Epoch(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	return epochOf(s.read.WithContext(ctx))
}

func epochOf(db *gorm.DB) (int64, error) {
	var value string
	if err := db.Raw("SELECT value FROM meta WHERE key = 'epoch'").Scan(&value).Error; err != nil {
		return 0, Wrap("read epoch", err)
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
	have, err := partitionsOf(s.read.WithContext(ctx))
	if err != nil || have > 0 {
		return have, err
	}
	err = s.Transition(ctx, "record partitions", func(ctx context.Context, c Conn, _ int64) error {
		_, err := c.ExecContext(ctx, "INSERT INTO meta (key, value) VALUES ('partitions', ?1) ON CONFLICT DO NOTHING", strconv.Itoa(n))
		return err
	})
	if err != nil {
		return 0, err
	}
	return partitionsOf(s.read.WithContext(ctx))
}

// partitionsOf reads the number of partitions; 0 if none is recorded.
func partitionsOf(db *gorm.DB) (int, error) {
	var values []string
	if err := db.Raw("SELECT value FROM meta WHERE key = 'partitions'").Scan(&values).Error; err != nil {
		return 0, Wrap("read partitions", err)
	}
	if len(values) == 0 {
		return 0, nil
	}
	n, err := strconv.Atoi(values[0])
	if err != nil {
		return 0, fmt.Errorf("read partitions: %w", err)
	}
	return n, nil
}

// Lineage identifies this database, its backups and its copies. Errors: ErrDatabase.
func Lineage(ctx context.Context, s *Store) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	return lineageOf(s.read.WithContext(ctx))
}

func lineageOf(db *gorm.DB) (string, error) {
	var value string
	if err := db.Raw("SELECT value FROM meta WHERE key = 'lineage'").Scan(&value).Error; err != nil {
		return "", Wrap("read lineage", err)
	}
	return value, nil
}

// The keys of the marks of a copied database in the table meta; see package transfer. No process
// writes into a database on Postgres that has one.
const (
	MarkUnfinished = "copy_unfinished"
	MarkMoved      = "moved_to"
)
