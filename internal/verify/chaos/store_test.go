//go:build chaos && unix

package chaos

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	_ "github.com/mattn/go-sqlite3" // the driver sqlite3

	"flashsale/internal/testing/postgrestest"
	"flashsale/internal/verify/history"
)

// store is the suite's read-only view of the database.
type store struct {
	url string // the service's setting
	db  *sql.DB
	// path is the file of an SQLite database, and server the server of a Postgres database.
	path   string
	server *postgrestest.Instance
	// direct is the URL of a Postgres database for the suite itself, which the fault does not
	// cut off. deadlocks and logged are the number of deadlocks and the length in bytes that the
	// server's log had at first.
	direct            string
	deadlocks, logged int
}

// databases create an empty database for a fault, by the name of -db.
var databases = map[string]func(t *testing.T, f *fault, folder string) *store{"sqlite": openSQLite, "postgres": openPostgres}

func openSQLite(t *testing.T, f *fault, folder string) *store {
	t.Helper()
	if f.Folder != nil {
		folder = f.Folder(t)
	}
	s := &store{path: filepath.Join(folder, "shop.db")}
	s.url = "sqlite:" + s.path
	s.reopen(t)
	t.Cleanup(func() { s.close(t) })
	return s
}

// reopen opens the database, after close.
func (s *store) reopen(t *testing.T) {
	t.Helper()
	if s.server != nil {
		s.reopenPostgres(t)
		return
	}
	db, err := sql.Open("sqlite3", "file:"+s.path+"?_busy_timeout=10000&_query_only=true")
	if err != nil {
		t.Fatal(err)
	}
	s.db = db
}

// close closes the suite's connections to the database.
func (s *store) close(t *testing.T) {
	t.Helper()
	if err := s.db.Close(); err != nil {
		t.Errorf("close database: %v", err)
	}
}

// sold reads how many units of each item the database counts as sold.
func (s *store) sold(ctx context.Context) (map[string]int64, error) {
	rows, err := s.db.QueryContext(ctx, "SELECT id, sold FROM items")
	if err != nil {
		return nil, fmt.Errorf("read items: %w", err)
	}
	defer rows.Close()
	sold := make(map[string]int64)
	for rows.Next() {
		var id string
		var n int64
		if err := rows.Scan(&id, &n); err != nil {
			return nil, fmt.Errorf("read items: %w", err)
		}
		sold[itemOf(id)] += n
	}
	return sold, rows.Err()
}

// orders reads all rows of the table orders.
func (s *store) orders(ctx context.Context) ([]history.Order, error) {
	rows, err := s.db.QueryContext(ctx, "SELECT id, user_id, item_id, quantity, idempotency_key, status, reason, restocked FROM orders ORDER BY id")
	if err != nil {
		return nil, fmt.Errorf("read orders: %w", err)
	}
	defer rows.Close()
	var all []history.Order
	for rows.Next() {
		var o history.Order
		if err := rows.Scan(&o.ID, &o.User, &o.Item, &o.Quantity, &o.Key, &o.Status, &o.Reason, &o.Restocked); err != nil {
			return nil, fmt.Errorf("read orders: %w", err)
		}
		o.Item = itemOf(o.Item)
		all = append(all, o)
	}
	return all, rows.Err()
}

// items reads the items in the database.
func (s *store) items(ctx context.Context) ([]history.Item, error) {
	rows, err := s.db.QueryContext(ctx, `SELECT i.id, i.initial, i.per_user_limit, COALESCE(SUM(c.quantity), 0)
		FROM items i LEFT JOIN stock_changes c ON c.item_id = i.id GROUP BY i.id, i.initial, i.per_user_limit ORDER BY i.id`)
	if err != nil {
		return nil, fmt.Errorf("read items: %w", err)
	}
	defer rows.Close()
	var all []history.Item
	for rows.Next() {
		var i history.Item
		if err := rows.Scan(&i.ID, &i.Initial, &i.Limit, &i.Restocked); err != nil {
			return nil, fmt.Errorf("read items: %w", err)
		}
		i.ID = itemOf(i.ID)
		if n := slices.IndexFunc(all, func(o history.Item) bool { return o.ID == i.ID }); n >= 0 {
			all[n].Initial += i.Initial
			all[n].Restocked += i.Restocked
			continue
		}
		all = append(all, i)
	}
	return all, rows.Err()
}
