// Package migrations contains the database's schema as numbered SQL, one folder per dialect,
// and applies it. Nothing else changes the schema, and only `flashsale migrate` and the
// all-in-one `flashsale serve` apply it.
package migrations

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"

	"github.com/pressly/goose/v3"
)

//go:embed sqlite/*.sql
var files embed.FS

// ErrPending means that the database's schema is older than this program.
var ErrPending = errors.New("migrations: the database is not migrated")

// Step is one migration and whether the database has it.
type Step struct {
	Version int64
	Name    string
	Applied bool
}

// Migrator applies the migrations of one dialect to one database.
type Migrator struct {
	db *sql.DB
	p  *goose.Provider
}

// New returns a Migrator. The only dialect is "sqlite".
func New(db *sql.DB, dialect string) (*Migrator, error) {
	if dialect != "sqlite" {
		return nil, fmt.Errorf("migrations: unknown dialect %q", dialect)
	}
	sub, err := fs.Sub(files, dialect)
	if err != nil {
		return nil, fmt.Errorf("migrations: %w", err)
	}
	p, err := goose.NewProvider(goose.DialectSQLite3, db, sub)
	if err != nil {
		return nil, fmt.Errorf("migrations: %w", err)
	}
	return &Migrator{db: db, p: p}, nil
}

// Up applies every pending migration and returns how many it applied.
func (m *Migrator) Up(ctx context.Context) (int, error) {
	var done []*goose.MigrationResult
	err := onDisk(ctx, m.db, func() (err error) {
		done, err = m.p.Up(ctx)
		return err
	})
	if err != nil {
		return len(done), fmt.Errorf("migrate up: %w", err)
	}
	return len(done), nil
}

// Down undoes the newest migration. It reports false when there was none.
func (m *Migrator) Down(ctx context.Context) (bool, error) {
	err := onDisk(ctx, m.db, func() error {
		_, err := m.p.Down(ctx)
		return err
	})
	if errors.Is(err, goose.ErrNoNextVersion) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("migrate down: %w", err)
	}
	return true, nil
}

// onDisk runs fn with the connection's temporary storage on disk. SQLite keeps the original
// pages of a statement that it may have to roll back; for a statement that rewrites a table,
// they are as large as the table. A pool of more than one connection keeps SQLite's default,
// which is the disk.
func onDisk(ctx context.Context, db *sql.DB, fn func() error) (err error) {
	const disk = 1
	var before int
	if err := db.QueryRowContext(ctx, "PRAGMA temp_store").Scan(&before); err != nil {
		return err
	}
	set := func(ctx context.Context, value int) error {
		_, err := db.ExecContext(ctx, fmt.Sprintf("PRAGMA temp_store = %d", value))
		return err
	}
	if err := set(ctx, disk); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, set(context.WithoutCancel(ctx), before)) }()
	return fn()
}

// Check returns ErrPending unless every migration is applied. It does not write.
func (m *Migrator) Check(ctx context.Context) error {
	begun, err := begun(ctx, m.db)
	if err != nil {
		return err
	}
	if !begun {
		return ErrPending
	}
	pending, err := m.p.HasPending(ctx)
	if err != nil {
		return fmt.Errorf("migrate status: %w", err)
	}
	if pending {
		return ErrPending
	}
	return nil
}

// Querier is a database or a connection to one.
type Querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Version is the number of the newest migration applied to a database, by this program or by a
// newer one; 0: none. It does not write.
func Version(ctx context.Context, db Querier) (int64, error) {
	begun, err := begun(ctx, db)
	if err != nil || !begun {
		return 0, err
	}
	var version int64
	err = db.QueryRowContext(ctx, "SELECT COALESCE(MAX(version_id), 0) FROM "+goose.DefaultTablename+" WHERE is_applied").Scan(&version)
	if err != nil {
		return 0, fmt.Errorf("migrate status: %w", err)
	}
	return version, nil
}

// Latest is the number of this program's newest migration for a dialect.
func Latest(dialect string) (int64, error) {
	names, err := fs.Glob(files, dialect+"/*.sql")
	if err != nil {
		return 0, fmt.Errorf("migrations: %w", err)
	}
	var latest int64
	for _, name := range names {
		n, err := goose.NumericComponent(name)
		if err != nil {
			return 0, fmt.Errorf("migrations: %w", err)
		}
		latest = max(latest, n)
	}
	return latest, nil
}

// begun reports whether goose's version table exists. Asking goose for the state would create
// it.
func begun(ctx context.Context, db Querier) (bool, error) {
	var tables int
	err := db.QueryRowContext(ctx, "SELECT COUNT(*) FROM sqlite_master WHERE type = 'table' AND name = ?", goose.DefaultTablename).Scan(&tables)
	if err != nil {
		return false, fmt.Errorf("migrate status: %w", err)
	}
	return tables > 0, nil
}

// Status lists every migration of this program, oldest first. It does not write.
func (m *Migrator) Status(ctx context.Context) ([]Step, error) {
	begun, err := begun(ctx, m.db)
	if err != nil {
		return nil, err
	}
	if !begun {
		sources := m.p.ListSources()
		steps := make([]Step, 0, len(sources))
		for _, s := range sources {
			steps = append(steps, Step{Version: s.Version, Name: s.Path})
		}
		return steps, nil
	}
	list, err := m.p.Status(ctx)
	if err != nil {
		return nil, fmt.Errorf("migrate status: %w", err)
	}
	steps := make([]Step, 0, len(list))
	for _, s := range list {
		steps = append(steps, Step{Version: s.Source.Version, Name: s.Source.Path, Applied: s.State == goose.StateApplied})
	}
	return steps, nil
}
