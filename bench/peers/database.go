package main

import (
	"context"
	"database/sql"
	"errors"
	"time"

	_ "github.com/mattn/go-sqlite3" // the driver "sqlite3"
)

// The price of everything that the contenders sell.
const (
	unitPrice = 4900
	currency  = "EUR"
)

// schema is that of SQLite and of Postgres. Only the contenders that sell in SQL use items.
const schema = `
CREATE TABLE items (
	id    TEXT   NOT NULL PRIMARY KEY,
	stock BIGINT NOT NULL CHECK (stock >= 0)
);
CREATE TABLE orders (
	id               TEXT   NOT NULL PRIMARY KEY,
	item_id          TEXT   NOT NULL,
	user_id          TEXT   NOT NULL,
	idempotency_key  TEXT   NOT NULL,
	quantity         BIGINT NOT NULL CHECK (quantity > 0),
	unit_price_minor BIGINT NOT NULL,
	currency         TEXT   NOT NULL,
	status           TEXT   NOT NULL,
	created_at       BIGINT NOT NULL,
	UNIQUE (item_id, user_id, idempotency_key)
);`

const insertOrder = `INSERT INTO orders
	(id, item_id, user_id, idempotency_key, quantity, unit_price_minor, currency, status, created_at)
	VALUES ($1, $2, $3, $4, $5, $6, $7, 'confirmed', $8) ON CONFLICT DO NOTHING`

// orderValues are the values of insertOrder.
func orderValues(o order) []any {
	return []any{o.ID, o.Item, o.Buyer, o.Key, o.Quantity, unitPrice, currency, o.Created.UnixMilli()}
}

// openSQLite opens a file with the settings that the service uses: WAL, every commit synced,
// one writer connection.
func openSQLite(path string) (*sql.DB, error) {
	db, err := sql.Open("sqlite3", "file:"+path+"?_journal_mode=WAL&_synchronous=FULL&_busy_timeout=10000&_txlock=immediate")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	return db, nil
}

// sqliteOrders inserts orders whose units were taken elsewhere. A repeat changes nothing.
type sqliteOrders struct {
	db   *sql.DB
	stmt *sql.Stmt
}

func openSQLiteOrders(ctx context.Context, path string) (*sqliteOrders, error) {
	db, err := openSQLite(path)
	if err != nil {
		return nil, err
	}
	stmt, err := db.PrepareContext(ctx, insertOrder)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &sqliteOrders{db: db, stmt: stmt}, nil
}

// insert inserts orders in one transaction.
func (s *sqliteOrders) insert(ctx context.Context, orders ...order) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	stmt := tx.StmtContext(ctx, s.stmt) //nolint:sqlclosecheck // the end of the transaction closes it
	for _, o := range orders {
		if _, err := stmt.ExecContext(ctx, orderValues(o)...); err != nil {
			return errors.Join(err, tx.Rollback())
		}
	}
	return tx.Commit()
}

func (s *sqliteOrders) close() error { return errors.Join(s.stmt.Close(), s.db.Close()) }

// sqlStock is the stock in the table items.
type sqlStock struct{ db *sql.DB }

func (s sqlStock) put(ctx context.Context, item string, total int64) error {
	_, err := s.db.ExecContext(ctx, "INSERT INTO items (id, stock) VALUES ($1, $2)", item, total)
	return err
}

func (s sqlStock) left(ctx context.Context, item string) (left int64, err error) {
	err = s.db.QueryRowContext(ctx, "SELECT stock FROM items WHERE id = $1", item).Scan(&left)
	return left, err
}

// readRows reads the orders of an item that hold units, from any contender's database.
func readRows(ctx context.Context, db *sql.DB, item string) (rows []row, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	found, err := db.QueryContext(ctx,
		"SELECT id, user_id, idempotency_key, quantity FROM orders WHERE item_id = $1 AND status = 'confirmed'", item)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, found.Close()) }()
	for found.Next() {
		var r row
		if err := found.Scan(&r.id, &r.buyer, &r.key, &r.quantity); err != nil {
			return nil, err
		}
		rows = append(rows, r)
	}
	return rows, found.Err()
}
