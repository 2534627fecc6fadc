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
	"github.com/pressly/goose/v3/database"
)

//go:embed sqlite/*.sql postgres/*.sql
var files embed.FS

// Errors of a database that this program cannot use.
var (
	// ErrPending means that the schema is older than this program.
	ErrPending = errors.New("migrations: the database is not migrated")
	// ErrNewer means that a newer version of the program has migrated the database.
	ErrNewer = errors.New("migrations: the schema is newer than this program")
	// ErrForeign means that the database has tables of another application and no shop.
	ErrForeign = errors.New("migrations: the database belongs to another application")
	// ErrDivided means that the step before buckets cannot be restored.
	ErrDivided = errors.New("migrations: an item is divided into buckets, which the schema before them cannot hold")
	// ErrInUse means that transactions of other sessions, such as pg_dump, have used a table all
	// the time in which a change of the schema tried to lock it.
	ErrInUse = errors.New("migrations: another session keeps a table in use")
)

// bucketsVersion is the step that divides items.
const bucketsVersion = 13

// Step is one migration and whether the database has it.
type Step struct {
	Version int64
	Name    string
	Applied bool
}

// Migrator applies the migrations of one dialect to one database.
type Migrator struct {
	// Waiting, if not nil, is called each time another session's transaction keeps a table in
	// use that a migration changes; the migration is then tried again. It must be set before Up
	// and Down.
	Waiting func()

	patience patience
	db       *sql.DB
	dialect  dialect
	versions versions
	p        *goose.Provider
}

// New returns a Migrator. The dialects are "sqlite" and "postgres".
func New(db *sql.DB, dialect string) (*Migrator, error) {
	d, err := dialectOf(dialect)
	if err != nil {
		return nil, err
	}
	sub, err := fs.Sub(files, dialect)
	if err != nil {
		return nil, fmt.Errorf("migrations: %w", err)
	}
	table, err := database.NewStore(d.goose, goose.DefaultTablename)
	if err != nil {
		return nil, fmt.Errorf("migrations: %w", err)
	}
	m := &Migrator{patience: standard, db: db, dialect: d, versions: versions{table, d}}
	options, err := d.options(&m.patience)
	if err != nil {
		return nil, fmt.Errorf("migrations: %w", err)
	}
	if m.p, err = goose.NewProvider(goose.DialectCustom, db, sub, append(options, goose.WithStore(m.versions))...); err != nil {
		return nil, fmt.Errorf("migrations: %w", err)
	}
	return m, nil
}

// Up applies every pending migration and returns how many it applied. If none is pending, it
// neither writes nor waits for a process that migrates the database.
//
// In Postgres the waiting needs a session: while a migration is pending, the database's URL must
// not lead to a pooler that gives each transaction another one.
//
// There, it does not stop processes that serve the shop: while another session uses a table that a
// migration changes, it tries again every ten seconds.
//
// Errors: ErrForeign and ErrNewer, before anything is written; ErrInUse after ten minutes.
func (m *Migrator) Up(ctx context.Context) (int, error) {
	if err := m.known(ctx); err != nil {
		return 0, err
	}
	applied := 0
	err := m.dialect.around(ctx, m, func() error {
		done, err := m.p.Up(ctx)
		if stopped, ok := errors.AsType[*goose.PartialError](err); ok {
			done = stopped.Applied
		}
		applied += len(done)
		return err
	})
	if err != nil {
		return applied, fmt.Errorf("migrate up: %w", err)
	}
	return applied, nil
}

// Down undoes the newest migration. It reports false when there was none.
// Errors: ErrForeign, ErrNewer, ErrDivided, ErrInUse.
func (m *Migrator) Down(ctx context.Context) (bool, error) {
	if err := m.known(ctx); err != nil {
		return false, err
	}
	err := m.dialect.around(ctx, m, func() error {
		_, err := m.p.Down(ctx)
		return err
	})
	if errors.Is(err, goose.ErrNoNextVersion) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("migrate down: %w", m.explain(ctx, err))
	}
	return true, nil
}

// explain names the cause of an undo that failed, where the SQL can only break a condition.
func (m *Migrator) explain(ctx context.Context, err error) error {
	var stopped *goose.PartialError
	if !errors.As(err, &stopped) || stopped.Failed == nil || stopped.Failed.Source.Version != bucketsVersion {
		return err
	}
	var divided bool
	if m.db.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM items WHERE buckets > 1)").Scan(&divided) == nil && divided {
		return ErrDivided
	}
	return err
}

// known refuses a database of another application or of a newer version of this program.
func (m *Migrator) known(ctx context.Context) error {
	have, err := version(ctx, m.db, m.dialect)
	if err != nil {
		return err
	}
	sources := m.p.ListSources()
	if have > sources[len(sources)-1].Version {
		return ErrNewer
	}
	return nil
}

// Check returns nil if all migrations are applied, and no others. It does not write.
// Errors: ErrPending, ErrNewer, ErrForeign.
func (m *Migrator) Check(ctx context.Context) error {
	if err := m.known(ctx); err != nil {
		return err
	}
	begun, err := m.dialect.begun(ctx, m.db)
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
// newer one; 0: none. It does not write. Errors: ErrForeign.
func Version(ctx context.Context, db Querier, dialect string) (int64, error) {
	d, err := dialectOf(dialect)
	if err != nil {
		return 0, err
	}
	return version(ctx, db, d)
}

func version(ctx context.Context, db Querier, d dialect) (int64, error) {
	begun, err := d.begun(ctx, db)
	if err != nil || !begun {
		return 0, err
	}
	var newest int64
	err = db.QueryRowContext(ctx, "SELECT COALESCE(MAX(version_id), 0) FROM "+goose.DefaultTablename+" WHERE is_applied").Scan(&newest)
	if err != nil {
		return 0, fmt.Errorf("migrate status: %w", err)
	}
	return newest, nil
}

// Latest is the number of this program's newest migration for a dialect.
func Latest(dialect string) (int64, error) {
	if _, err := dialectOf(dialect); err != nil {
		return 0, err
	}
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

// Status lists every migration of this program, oldest first. It does not write, and does not
// wait for a process that migrates the database.
func (m *Migrator) Status(ctx context.Context) ([]Step, error) {
	begun, err := m.dialect.begun(ctx, m.db)
	if err != nil {
		return nil, err
	}
	applied := make(map[int64]bool)
	if begun {
		list, err := m.versions.ListMigrations(ctx, m.db)
		if err != nil {
			return nil, fmt.Errorf("migrate status: %w", err)
		}
		for _, row := range list {
			applied[row.Version] = row.IsApplied
		}
	}
	sources := m.p.ListSources()
	steps := make([]Step, 0, len(sources))
	for _, s := range sources {
		steps = append(steps, Step{Version: s.Version, Name: s.Path, Applied: applied[s.Version]})
	}
	return steps, nil
}
