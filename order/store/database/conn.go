package database

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
)

// Conn runs statements: a transaction of the writer, or the reading connections.
type Conn interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Each calls scan for every row of a query.
func Each(ctx context.Context, c Conn, query string, args []any, scan func(rows *sql.Rows) error) (err error) {
	rows, err := c.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// One calls scan for the first row of a query. Unlike QueryRowContext of a connection from gorm, which panics when its row
// is scanned, it returns the error if the statement cannot be prepared, for example because the caller has left. Errors:
// sql.ErrNoRows.
func One(ctx context.Context, c Conn, query string, args []any, scan func(rows *sql.Rows) error) error {
	found := false
	err := Each(ctx, c, query, args, func(rows *sql.Rows) error {
		if found {
			return nil
		}
		found = true
		return scan(rows)
	})
	if err == nil && !found {
		return sql.ErrNoRows
	}
	return err
}

// Changed returns the number of rows that a statement changed.
func Changed(res sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// JSONList passes any number of ids to a statement as one value.
func JSONList(ids ...string) string { return JSON(ids) }

// JSON passes a list of strings and numbers, or of such lists, to a statement as one value.
func JSON(list any) string {
	b, err := json.Marshal(list)
	if err != nil {
		panic(fmt.Sprintf("order: a list of strings and numbers has no JSON: %v", err)) // it always has one
	}
	return string(b)
}
