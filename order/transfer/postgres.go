package transfer

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"flashsale/order/store/postgres"
)

// pg is the dialect of Postgres.
type pg struct{}

func openPostgres(ctx context.Context, url string) (*database, error) {
	db, err := postgres.Open(url, 1)
	if err != nil {
		return nil, err
	}
	pool, err := db.DB()
	if err != nil {
		return nil, err
	}
	d, err := newDatabase(ctx, pool, pg{})
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"statement_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout"} {
		if _, err := d.conn.ExecContext(ctx, "SET "+name+" = 0"); err != nil {
			return nil, errors.Join(err, d.close())
		}
	}
	return d, nil
}

// beginPostgres locks the tables before the first query, so that the transaction sees
// everything that was committed before. It also takes the lock of the service's writers, so
// that they wait at the place where they expect it.
func beginPostgres(ctx context.Context, c *sql.Conn, tables []table) error {
	names := make([]string, len(tables))
	for i := range tables {
		names[i] = tables[i].quoted()
	}
	for _, statement := range []string{
		"BEGIN ISOLATION LEVEL REPEATABLE READ", "SET LOCAL lock_timeout = '5s'",
		"LOCK TABLE " + strings.Join(names, ", ") + " IN SHARE MODE",
	} {
		if _, err := c.ExecContext(ctx, statement); err != nil {
			return postgresError(err)
		}
	}
	var held bool
	if err := c.QueryRowContext(ctx, "SELECT pg_try_advisory_xact_lock(?1)", postgres.WriteLock).Scan(&held); err != nil {
		return err
	}
	if !held {
		return errInUse
	}
	return nil
}

// postgresError marks a lock of another process.
func postgresError(err error) error {
	const lockNotAvailable = "55P03"
	var pe *pgconn.PgError
	if errors.As(err, &pe) && pe.Code == lockNotAvailable {
		return fmt.Errorf("%w: %w", errInUse, err)
	}
	return err
}

func (pg) schema() string { return postgresTables }

func (pg) truncate(ctx context.Context, c *sql.Conn, tables []table) error {
	names := make([]string, len(tables))
	for i := range tables {
		names[i] = tables[i].quoted()
	}
	_, err := c.ExecContext(ctx, "TRUNCATE "+strings.Join(names, ", ")+" RESTART IDENTITY")
	return err
}

// hurry leaves the sync of a commit to a later one. A crash of the server may lose rows, but
// not the mark that was written before.
func (pg) hurry() string { return "SET synchronous_commit = off" }

func (pg) insert(ctx context.Context, c *sql.Conn, t *table, page [][]any) error {
	return c.Raw(func(driver any) error {
		own, err := postgres.PGX(driver)
		if err != nil {
			return err
		}
		_, err = own.CopyFrom(ctx, pgx.Identifier{t.name}, t.names(), pgx.CopyFromRows(page))
		return detailed(err)
	})
}

// detailed adds what Postgres says of the row.
func detailed(err error) error {
	var pe *pgconn.PgError
	if errors.As(err, &pe) && pe.Detail != "" {
		return fmt.Errorf("%w (%s)", err, pe.Detail)
	}
	return err
}

func (pg) counter(ctx context.Context, c *sql.Conn, t *table) (n int64, err error) {
	err = c.QueryRowContext(ctx, "SELECT COALESCE(pg_sequence_last_value(CAST(pg_get_serial_sequence(?1, ?2) AS regclass)), 0)",
		t.name, t.columns[t.key[0]].name).Scan(&n)
	return n, err
}

func (pg) count(ctx context.Context, c *sql.Conn, t *table, n int64) error {
	_, err := c.ExecContext(ctx, "SELECT setval(CAST(pg_get_serial_sequence(?1, ?2) AS regclass), ?3)", t.name, t.columns[t.key[0]].name, n)
	return err
}

// settle gives the planner its statistics, and marks the pages that everyone sees.
func (pg) settle(ctx context.Context, c *sql.Conn, tables []table) error {
	for i := range tables {
		if _, err := c.ExecContext(ctx, "VACUUM (ANALYZE) "+tables[i].quoted()); err != nil {
			return err
		}
	}
	_, err := c.ExecContext(ctx, "RESET synchronous_commit")
	return err
}
