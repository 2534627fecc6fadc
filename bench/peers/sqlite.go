package main

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
)

// sqliteContender does everything in one transaction on SQLite: it checks the key and the
// buyer's limit, decrements with UPDATE ... WHERE stock >= n, inserts the order and answers 201.
//
// It lacks: more than one writer, because each purchase waits for the transactions of all others
// and for a sync of its own.
func sqliteContender() contender {
	return contender{
		name: "sqlite", approach: "UPDATE ... WHERE stock >= n and INSERT in one SQLite transaction", answer: http.StatusCreated,
		patience: defaultPatience, prepare: prepareSQLite,
		open: func(_ context.Context, s settings) (seller, error) {
			db, err := openSQLite(s.db)
			return sqliteSeller{db}, err
		},
	}
}

type sqliteSeller struct{ db *sql.DB }

func (s sqliteSeller) sell(ctx context.Context, o order) (id string, err error) {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return "", err
	}
	if id, err = sellInTx(ctx, tx, o); err != nil {
		return "", errors.Join(err, tx.Rollback())
	}
	return id, tx.Commit()
}

func (s sqliteSeller) close(context.Context) error { return s.db.Close() }

func sellInTx(ctx context.Context, tx *sql.Tx, o order) (string, error) {
	held, earlier, err := buyersOrders(ctx, tx, o)
	switch {
	case err != nil || earlier != "":
		return earlier, err
	case held+o.Quantity > perBuyer:
		return "", errLimit
	}
	changed, err := tx.ExecContext(ctx, "UPDATE items SET stock = stock - $1 WHERE id = $2 AND stock >= $3", o.Quantity, o.Item, o.Quantity)
	if err != nil {
		return "", err
	}
	switch n, err := changed.RowsAffected(); {
	case err != nil:
		return "", err
	case n == 0:
		return "", errSoldOut
	}
	_, err = tx.ExecContext(ctx, insertOrder, orderValues(o)...)
	return o.ID, err
}

// buyersOrders counts the units of the item that the buyer holds, and finds the order with the
// same key. A buyer has perBuyer orders at most.
func buyersOrders(ctx context.Context, tx *sql.Tx, o order) (held int64, earlier string, err error) {
	found, err := tx.QueryContext(ctx, "SELECT id, idempotency_key, quantity FROM orders WHERE item_id = $1 AND user_id = $2", o.Item, o.Buyer)
	if err != nil {
		return 0, "", err
	}
	defer func() { err = errors.Join(err, found.Close()) }()
	for found.Next() {
		var id, key string
		var quantity int64
		if err := found.Scan(&id, &key, &quantity); err != nil {
			return 0, "", err
		}
		held += quantity
		if key == o.Key {
			earlier = id
		}
	}
	return held, earlier, found.Err()
}
