package store

import (
	"context"
	"database/sql"
	"strings"
	"time"

	"gorm.io/gorm"
)

// Server describes a Postgres server, and this program's view of it.
type Server struct {
	// Number is the version as a number, for example 150004 for 15.4.
	Number int
	// Standby is whether the server follows another one, and refuses writes.
	Standby bool
	// ReadOnly is whether transactions of this role or database are read-only by default.
	ReadOnly bool
	// Encoding of the database, for example UTF8.
	Encoding string
	// Connections bounds the connections of all programs together.
	Connections int
	// Used is how many are open.
	Used int
	// Clock is the server's time.
	Clock time.Time
}

// serverSettings are the settings of Postgres that determine what survives a crash.
const serverSettings = `SELECT name, CAST(setting AS TEXT) FROM pg_settings
WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit', 'synchronous_standby_names') ORDER BY name`

// describeServer reads a Server. A role without rights of its own may read all of it.
const describeServer = `SELECT current_setting('server_version'), CAST(current_setting('server_version_num') AS BIGINT),
	pg_is_in_recovery(),
	EXISTS (SELECT 1 FROM pg_settings WHERE name = 'default_transaction_read_only' AND setting = 'on' AND source <> 'session'),
	(SELECT pg_encoding_to_char(encoding) FROM pg_database WHERE datname = current_database()),
	CAST(current_setting('max_connections') AS BIGINT) - CAST(current_setting('superuser_reserved_connections') AS BIGINT)
		- CAST(COALESCE(current_setting('reserved_connections', true), '0') AS BIGINT),
	(SELECT COUNT(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
	CAST(EXTRACT(epoch FROM clock_timestamp()) * 1000 AS BIGINT)`

func describePostgres(ctx context.Context, s *Store) (d Description, err error) {
	pool, err := s.read.DB()
	if err != nil {
		return d, err
	}
	var server Server
	var clock int64
	err = pool.QueryRowContext(ctx, describeServer).Scan(&d.Version, &server.Number, &server.Standby, &server.ReadOnly,
		&server.Encoding, &server.Connections, &server.Used, &clock)
	if err != nil {
		return d, Wrap("describe database", err)
	}
	d.Version, _, _ = strings.Cut(d.Version, " ") // the rest names the package
	server.Clock = time.UnixMilli(clock)
	d.Engine, d.Server = "postgres", &server
	err = Each(ctx, pool, serverSettings, nil, func(rows *sql.Rows) error {
		var one Setting
		err := rows.Scan(&one.Name, &one.Value)
		if one.Value != "" { // no standby is synchronous
			d.Settings = append(d.Settings, one)
		}
		return err
	})
	if err != nil {
		return d, Wrap("describe database", err)
	}
	return d, nil
}

// deniedTables are the tables whose rows this role may not read or change.
const deniedTables = `SELECT c.relname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = current_schema() AND c.relkind = 'r' AND c.relname IN ('items', 'orders', 'buyers', 'payments', 'releases',
	'stock_changes', 'audit', 'meta', 'webhook_endpoints', 'webhook_events', 'webhook_deliveries')
AND NOT (has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
	AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE'))
ORDER BY c.relname`

// checkPostgres does not search for damage: Postgres verifies its pages when it reads them, if
// the cluster has checksums.
func checkPostgres(ctx context.Context, s *Store) (c Checkup, err error) {
	// The rights first: without them, what follows fails.
	if err := s.read.WithContext(ctx).Raw(deniedTables).Scan(&c.Denied).Error; err != nil {
		return c, Wrap("check database", err)
	}
	if len(c.Denied) > 0 {
		return c, nil
	}
	err = s.read.WithContext(ctx).Transaction(func(tx *gorm.DB) (err error) {
		if c.Partitions, err = partitionsOf(tx); err != nil {
			return err
		}
		if c.Lineage, err = lineageOf(tx); err != nil {
			return err
		}
		c.Epoch, err = epochOf(tx)
		return err
	}, &sql.TxOptions{ReadOnly: true})
	return c, err
}
