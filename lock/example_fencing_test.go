package lock_test

import (
	"context"
	"database/sql"
	"fmt"

	_ "github.com/mattn/go-sqlite3" // the example's database

	"flashsale/lock"
)

// A data store outside Redis keeps the greatest fencing token it has seen. It rejects a holder
// that lost the lock without noticing, for example because its machine was suspended.
func ExampleLock_Fence() {
	ctx := context.Background()
	rdb, stop := connect()
	defer stop()
	locks, err := lock.New(rdb, lock.Config{})
	check(err)
	defer func() { check(locks.Close(ctx)) }()
	db, err := sql.Open("sqlite3", ":memory:")
	check(err)
	defer db.Close()
	db.SetMaxOpenConns(1) // the in-memory database exists only in its connection
	_, err = db.ExecContext(ctx, `CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL, fence INTEGER NOT NULL);
		INSERT INTO accounts VALUES (7, 0, 0)`)
	check(err)
	pay := func(l *lock.Lock, amount int) (rows int64) {
		result, err := db.ExecContext(ctx,
			`UPDATE accounts SET balance = balance + $1, fence = $2 WHERE id = 7 AND fence <= $2`, amount, l.Fence())
		check(err)
		rows, err = result.RowsAffected()
		check(err)
		return rows
	}

	first, err := locks.Acquire(ctx, "account-7")
	check(err)
	fmt.Println("first:", pay(first, 10))
	// The first holder stalls, and its lock expires.
	lockKey, _ := locks.GuardKeys("account-7")
	check(rdb.Del(ctx, lockKey).Err())
	second, err := locks.Acquire(ctx, "account-7")
	check(err)
	fmt.Println("second:", pay(second, 10))
	fmt.Println("first, late:", pay(first, 10)) // 0 rows: a later holder has written
	check(second.Release(ctx))
	// Output:
	// first: 1
	// second: 1
	// first, late: 0
}
