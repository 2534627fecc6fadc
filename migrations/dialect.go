package migrations

import (
	"context"
	"errors"
	"fmt"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"
)

// dialect is what differs between the databases.
type dialect struct {
	goose database.Dialect
	// tables selects the names of all tables, except those of the database itself and of its extensions.
	tables string
	// options are those of goose.
	options func(*patience) ([]goose.ProviderOption, error)
	// around runs a change of the schema. It calls fn again if that may succeed later.
	around func(ctx context.Context, m *Migrator, fn func() error) error
}

var dialects = map[string]dialect{
	"sqlite": {
		goose:   database.DialectSQLite3,
		tables:  `SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\_%' ESCAPE '\'`,
		options: func(*patience) ([]goose.ProviderOption, error) { return nil, nil },
		around:  onDisk,
	},
	"postgres": {
		goose: database.DialectPostgres,
		tables: `SELECT c.relname AS name FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
			WHERE n.nspname = current_schema() AND c.relkind IN ('r', 'p')
			AND NOT EXISTS (SELECT 1 FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e')`,
		options: oneProcess,
		around:  whenFree,
	},
}

func dialectOf(name string) (dialect, error) {
	d, ok := dialects[name]
	if !ok {
		return dialect{}, fmt.Errorf("migrations: unknown dialect %q", name)
	}
	return d, nil
}

// begun reports whether goose's version table exists. Asking goose for the state would create
// it. Errors: ErrForeign.
func (d dialect) begun(ctx context.Context, db Querier) (bool, error) {
	var begun, shop, all int
	// One statement, because another process may be migrating.
	err := db.QueryRowContext(ctx, "SELECT COUNT(CASE WHEN name = '"+goose.DefaultTablename+"' THEN 1 END), "+
		"COUNT(CASE WHEN name IN ('meta', 'items', 'orders') THEN 1 END), COUNT(*) FROM ("+d.tables+") AS tables").Scan(&begun, &shop, &all)
	if err != nil {
		return false, fmt.Errorf("migrate status: %w", err)
	}
	if all > begun && (begun == 0 || shop < 3) {
		return false, ErrForeign
	}
	return begun > 0, nil
}

// versions is goose's version table.
type versions struct {
	database.Store
	dialect dialect
}

// TableExists spares goose a query that fails if the table does not exist.
func (v versions) TableExists(ctx context.Context, db database.DBTxConn) (bool, error) {
	return v.dialect.begun(ctx, db)
}

// Insert records that a step is applied. It has no parameters, because the driver with which
// the service opens Postgres sends a boolean as a number.
func (v versions) Insert(ctx context.Context, db database.DBTxConn, req database.InsertRequest) error {
	_, err := db.ExecContext(ctx, fmt.Sprintf("INSERT INTO %s (version_id, is_applied) VALUES (%d, true)", v.Tablename(), req.Version))
	return err
}

// onDisk runs fn with the connection's temporary storage on disk. SQLite keeps the original
// pages of a statement that it may have to roll back; for a statement that rewrites a table,
// they are as large as the table. A pool of more than one connection keeps SQLite's default,
// which is the disk.
func onDisk(ctx context.Context, m *Migrator, fn func() error) (err error) {
	const disk = 1
	var before int
	if err := m.db.QueryRowContext(ctx, "PRAGMA temp_store").Scan(&before); err != nil {
		return err
	}
	set := func(ctx context.Context, value int) error {
		_, err := m.db.ExecContext(ctx, fmt.Sprintf("PRAGMA temp_store = %d", value))
		return err
	}
	if err := set(ctx, disk); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, set(context.WithoutCancel(ctx), before)) }()
	return fn()
}
