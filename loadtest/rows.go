package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"

	// The sqlite3 driver of database/sql, to read the service's database.
	_ "github.com/mattn/go-sqlite3"
)

// source is where the orders of a finished run are read.
type source interface {
	// count is the number of rows of the item, or more cheaply a lower bound of 0.
	count(ctx context.Context, item string) (int64, error)
	rows(ctx context.Context, item string) ([]row, error)
	// name says where, for people.
	name() string
	close() error
}

// sqliteSource reads the database's file, past the service.
type sqliteSource struct {
	path string
	db   *sql.DB
}

// openSQLite opens the file for reading only: the check must not be able to
// change what it checks.
func openSQLite(ctx context.Context, path string) (*sqliteSource, error) {
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	dsn := url.URL{Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath(), RawQuery: "mode=ro&_busy_timeout=5000&_query_only=true"}
	db, err := sql.Open("sqlite3", dsn.String())
	if err != nil {
		return nil, fmt.Errorf("open database %s: %w", path, err)
	}
	if err := db.PingContext(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open database %s: %w", path, err), db.Close())
	}
	return &sqliteSource{path, db}, nil
}

func (s *sqliteSource) name() string { return "the database, sqlite:" + s.path }
func (s *sqliteSource) close() error { return s.db.Close() }

func (s *sqliteSource) count(ctx context.Context, item string) (n int64, err error) {
	if err := s.db.QueryRowContext(ctx, `SELECT count(*) FROM orders WHERE item_id = ?`, item).Scan(&n); err != nil {
		return 0, fmt.Errorf("count orders: %w", err)
	}
	return n, nil
}

func (s *sqliteSource) rows(ctx context.Context, item string) (out []row, err error) {
	found, err := s.db.QueryContext(ctx, `SELECT id, user_id, quantity, status, idempotency_key FROM orders WHERE item_id = ?`, item)
	if err != nil {
		return nil, fmt.Errorf("read orders: %w", err)
	}
	defer func() { err = errors.Join(err, found.Close()) }()
	for found.Next() {
		var r row
		if err := found.Scan(&r.ID, &r.UserID, &r.Quantity, &r.Status, &r.Key); err != nil {
			return nil, fmt.Errorf("read orders: %w", err)
		}
		out = append(out, r)
	}
	if err := found.Err(); err != nil {
		return nil, fmt.Errorf("read orders: %w", err)
	}
	return out, nil
}

// apiSource reads through the service's own API, where its database is out of
// reach. It trusts the service to tell the truth about its rows.
type apiSource struct{ a *api }

func (s apiSource) name() string { return "the API's order list and ledger" }
func (s apiSource) close() error { s.a.close(); return nil }

// count has no cheap form in the API; the caller then reads the rows.
func (s apiSource) count(context.Context, string) (int64, error) { return -1, nil }
func (s apiSource) rows(ctx context.Context, item string) ([]row, error) {
	return s.a.orders(ctx, item)
}

// openSource opens the database if it is one that can be read from here, and
// the API otherwise.
func openSource(ctx context.Context, db string, target *api) (source, error) {
	if path, ok := strings.CutPrefix(db, "sqlite:"); ok {
		return openSQLite(ctx, path)
	}
	return apiSource{target}, nil
}
