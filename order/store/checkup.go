package store

import (
	"context"
	"database/sql"

	"gorm.io/gorm"

	"flashsale/order/store/database"
)

// Checkup is the result of a check of the database.
type Checkup struct {
	// Damage are the faults that SQLite found in its file, at most ten; none on Postgres.
	Damage []string
	// JournalMode of SQLite should be "wal", in which readers and the writer do not block each
	// other.
	JournalMode string
	// Denied are the tables of Postgres whose rows this role may not read or change. If there is
	// one, nothing else was read.
	Denied []string
	// Partitions is the recorded number; 0 before the first start.
	Partitions int
	// Epoch is the number of the current build of the state in Redis.
	Epoch int64
	// Lineage identifies the database, its backups and its copies.
	Lineage string
}

// Check reads the whole file of SQLite for faults. That may take long: bound it with ctx. It
// writes nothing. Errors: database.ErrUnavailable, and the error for an empty database.
func Check(ctx context.Context, s *Store) (Checkup, error) {
	if s.Postgres() {
		return checkPostgres(ctx, s)
	}
	var c Checkup
	err := s.Snapshot(ctx, func(tx *gorm.DB) (err error) {
		if err := tx.Raw("PRAGMA quick_check(10)").Scan(&c.Damage).Error; err != nil {
			return database.Wrap("check database", err)
		}
		if len(c.Damage) == 1 && c.Damage[0] == "ok" {
			c.Damage = nil
		}
		var modes []string
		if err := tx.Raw("SELECT journal_mode FROM pragma_journal_mode").Scan(&modes).Error; err != nil {
			return database.Wrap("read journal mode", err)
		}
		if len(modes) == 1 {
			c.JournalMode = modes[0]
		}
		return c.readMeta(tx)
	})
	return c, err
}

// readMeta reads what the table meta records.
func (c *Checkup) readMeta(tx *gorm.DB) (err error) {
	if c.Partitions, err = partitionsOf(tx); err != nil {
		return err
	}
	if c.Lineage, err = lineageOf(tx); err != nil {
		return err
	}
	c.Epoch, err = epochOf(tx)
	return err
}

// checkPostgres does not search for damage: Postgres verifies its pages when it reads them, if
// the cluster has checksums.
func checkPostgres(ctx context.Context, s *Store) (c Checkup, err error) {
	// The rights first: without them, what follows fails.
	if err := s.Reader().WithContext(ctx).Raw(deniedTables).Scan(&c.Denied).Error; err != nil {
		return c, database.Wrap("check database", err)
	}
	if len(c.Denied) > 0 {
		return c, nil
	}
	err = s.Reader().WithContext(ctx).Transaction(func(tx *gorm.DB) (err error) {
		return c.readMeta(tx)
	}, &sql.TxOptions{ReadOnly: true})
	return c, err
}

// deniedTables are the tables whose rows this role may not read or change.
const deniedTables = `SELECT c.relname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = current_schema() AND c.relkind = 'r' AND c.relname IN ('items', 'orders', 'buyers', 'payments', 'releases',
	'stock_changes', 'audit', 'meta', 'webhook_endpoints', 'webhook_events', 'webhook_deliveries')
AND NOT (has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
	AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE'))
ORDER BY c.relname`
