package transfer

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"flashsale/migrations"
	"flashsale/order/store"
)

// database is one side of a copy: one connection.
type database struct {
	conn    *sql.Conn
	pool    *sql.DB
	dialect dialect
}

// dialect is what differs between SQLite and Postgres.
type dialect interface {
	// schema is the query of readTables.
	schema() string
	// truncate deletes all rows of tables, in a transaction or a statement.
	truncate(ctx context.Context, c *sql.Conn, tables []table) error
	// hurry makes commits that follow survive only together with a later one.
	hurry() string
	// insert adds the rows of a page, and commits them.
	insert(ctx context.Context, c *sql.Conn, t *table, page [][]any) error
	// counter is the highest number that the database has assigned in a counted table; 0 if
	// it knows none.
	counter(ctx context.Context, c *sql.Conn, t *table) (int64, error)
	// count makes the database assign numbers above n.
	count(ctx context.Context, c *sql.Conn, t *table, n int64) error
	// settle makes everything durable, and prepares the tables for use.
	settle(ctx context.Context, c *sql.Conn, tables []table) error
}

// errInUse says that another process has the database open.
var errInUse = errors.New("another process uses it")

const inUseFix = "stop every flashsale api, worker, serve and backup of it, then run this command again"

// closing bounds what happens to a connection after the copy.
const closing = 10 * time.Second

// openSource opens a database, locks it against writes, and begins a transaction that sees it
// as it is at this moment.
func openSource(ctx context.Context, setting string) (*database, error) {
	d, err := open(ctx, setting, func(version int64, dialect string, _ func() error) error {
		if version == 0 {
			return sourceFault(errors.New("it has no shop"), "correct its name")
		}
		if err := latest(version, dialect); err != nil {
			return sourceFault(err, "run flashsale migrate up on it with this release first")
		}
		return nil
	})
	if err != nil {
		return nil, blame(err, sourceFault, "correct its name, and see docs/postgres.md for a Postgres database")
	}
	if err := d.begin(ctx); err != nil {
		return nil, blame(errors.Join(err, d.close()), sourceFault, inUseFix)
	}
	return d, nil
}

// openTarget opens a database that no other process uses, and creates its schema if it has
// none.
func openTarget(ctx context.Context, setting string) (*database, error) {
	d, err := open(ctx, setting, func(version int64, dialect string, up func() error) error {
		if version == 0 {
			return up()
		}
		if err := latest(version, dialect); err != nil {
			return targetFault(err, "name an empty database, or a new file")
		}
		return nil
	})
	if err != nil {
		return nil, blame(err, targetFault, "correct its name; a Postgres database must exist (createdb)")
	}
	return d, nil
}

// blame makes an error a fault of a database, unless it is one already.
func blame(err error, fault func(cause error, fix string) error, fix string) error {
	var f *Fault
	switch {
	case errors.As(err, &f):
		return err
	case errors.Is(err, errInUse):
		return fault(errInUse, inUseFix)
	default:
		return fault(err, fix)
	}
}

// open opens a database. admit decides by the version of its schema, and may call up, which
// creates the schema.
func open(ctx context.Context, setting string, admit func(version int64, dialect string, up func() error) error) (*database, error) {
	s, err := store.Open(ctx, setting)
	if err != nil {
		return nil, err
	}
	path, name := s.Path(), s.Dialect()
	err = errors.Join(checkVersion(ctx, s, admit), s.Close())
	if err != nil {
		return nil, err
	}
	if name == "postgres" {
		return openPostgres(ctx, setting)
	}
	return openSQLite(ctx, path)
}

func checkVersion(ctx context.Context, s *store.Store, admit func(version int64, dialect string, up func() error) error) error {
	pool, err := s.Writer().DB()
	if err != nil {
		return err
	}
	version, err := migrations.Version(ctx, pool, s.Dialect())
	if err != nil {
		return err
	}
	return admit(version, s.Dialect(), func() error {
		m, err := migrations.New(pool, s.Dialect())
		if err != nil {
			return err
		}
		_, err = m.Up(ctx)
		return err
	})
}

// newDatabase takes the only connection of a pool.
func newDatabase(ctx context.Context, pool *sql.DB, d dialect) (*database, error) {
	pool.SetMaxOpenConns(1)
	c, err := pool.Conn(ctx)
	if err != nil {
		return nil, errors.Join(err, pool.Close())
	}
	return &database{conn: c, pool: pool, dialect: d}, nil
}

// begin begins the transaction of a source.
func (d *database) begin(ctx context.Context) error {
	if lite, ok := d.dialect.(sqlite); ok {
		return lite.begin(ctx, d.conn)
	}
	tables, err := d.tables(ctx)
	if err != nil {
		return err
	}
	return beginPostgres(ctx, d.conn, tables)
}

// markMoved marks a source as moved, and ends its transaction.
func (d *database) markMoved(ctx context.Context, mark string) error {
	if err := writeMark(ctx, d.conn, keyMoved, mark); err != nil {
		return sourceFault(fmt.Errorf("mark the shop as moved: %w", err), "check that it can be written, and run the command again")
	}
	if _, err := d.conn.ExecContext(ctx, "COMMIT"); err != nil {
		return sourceFault(fmt.Errorf("mark the shop as moved: %w", err), "check that it can be written, and run the command again")
	}
	return nil
}

func (d *database) tables(ctx context.Context) ([]table, error) {
	return readTables(ctx, d.conn, d.dialect.schema())
}

// empty deletes all rows except those of meta.
func (d *database) empty(ctx context.Context, tables []table) error {
	var rest []table
	for _, t := range tables {
		if t.name != metaTable {
			rest = append(rest, t)
		}
	}
	return d.dialect.truncate(ctx, d.conn, rest)
}

func (d *database) hurry(ctx context.Context) error {
	_, err := d.conn.ExecContext(ctx, d.dialect.hurry())
	return err
}

func (d *database) settle(ctx context.Context, tables []table) error {
	return d.dialect.settle(ctx, d.conn, tables)
}

// close closes the connection. An open transaction is rolled back.
func (d *database) close() error {
	// The caller's context may have ended.
	ctx, cancel := context.WithTimeout(context.Background(), closing) //nolint:forbidigo // see above
	defer cancel()
	_, _ = d.conn.ExecContext(ctx, "ROLLBACK") //nolint:errcheck // it fails if there is no transaction, or an interrupt has closed the connection
	return errors.Join(d.conn.Close(), d.pool.Close())
}
