package database

import (
	"context"
	"database/sql"
	"strings"
	"time"

	"flashsale/order/store/sqlite"
)

// Description is what the database shows of itself.
type Description struct {
	Engine  string // "sqlite" or "postgres"
	Version string
	// Settings determine what survives a crash, in a fixed order.
	Settings []Setting
	// Server describes the server of Postgres; nil on SQLite.
	Server *Server
}

// Setting is a setting of the database.
type Setting struct{ Name, Value string }

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

// Setting returns the value of a setting; "" if the database shows none of that name.
func (d *Description) Setting(name string) string {
	for _, s := range d.Settings {
		if s.Name == name {
			return s.Value
		}
	}
	return ""
}

// Describe reads the description, which does not depend on the size of the database. Errors:
// ErrUnavailable.
func (db *DB) Describe(ctx context.Context) (Description, error) {
	if db.Postgres() {
		return describePostgres(ctx, db)
	}
	var d struct{ Version, JournalMode string }
	const read = "SELECT sqlite_version() AS version, (SELECT journal_mode FROM pragma_journal_mode) AS journal_mode"
	if err := db.read.WithContext(ctx).Raw(read).Scan(&d).Error; err != nil {
		return Description{}, Wrap("describe database", err)
	}
	// In the journal mode "wal", readers and the writer do not block each other.
	return Description{Engine: "sqlite", Version: d.Version, Settings: []Setting{
		{"journal_mode", d.JournalMode}, {"synchronous", sqlite.Synchronous},
	}}, nil
}

func describePostgres(ctx context.Context, db *DB) (d Description, err error) {
	pool, err := db.read.DB()
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

// describeServer reads a Server. A role without rights of its own may read all of it. Sessions that only read set
// default_transaction_read_only, so its value without that SET counts.
const describeServer = `SELECT current_setting('server_version'), CAST(current_setting('server_version_num') AS BIGINT),
	pg_is_in_recovery(),
	EXISTS (SELECT 1 FROM pg_settings WHERE name = 'default_transaction_read_only' AND reset_val = 'on'),
	(SELECT pg_encoding_to_char(encoding) FROM pg_database WHERE datname = current_database()),
	CAST(current_setting('max_connections') AS BIGINT) - CAST(current_setting('superuser_reserved_connections') AS BIGINT)
		- CAST(COALESCE(current_setting('reserved_connections', true), '0') AS BIGINT),
	(SELECT COUNT(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
	CAST(EXTRACT(epoch FROM clock_timestamp()) * 1000 AS BIGINT)`

// serverSettings are the settings of Postgres that determine what survives a crash.
const serverSettings = `SELECT name, CAST(setting AS TEXT) FROM pg_settings
WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit', 'synchronous_standby_names') ORDER BY name`
