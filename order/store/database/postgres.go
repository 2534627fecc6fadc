package database

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm"

	"flashsale/order/store/postgres"
	"flashsale/order/timeouts"
)

const (
	// writeConns is the number of connections for writes: one for each writer of a DB.
	writeConns = 2
	// beginTimeout bounds the time to get a connection, and postgresTransaction the
	// transaction on it with its wait for locks, because a server that has vanished from the
	// network gives no error.
	beginTimeout        = 6 * time.Second
	postgresTransaction = 15 * time.Second
	// lockTimeout bounds the wait for a lock in the database, in milliseconds.
	lockTimeout = 5000
)

// openServer opens the pools of a database on Postgres.
func openServer(ctx context.Context, db *DB, url string) (err error) {
	db.url = url
	ctx, cancel := context.WithTimeout(ctx, timeouts.Write)
	defer cancel()
	// Before the pools, whose new connections set parameters of their sessions.
	if err := postgres.Check(ctx, url); err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	if db.write, err = postgres.Open(url, writeConns); err != nil {
		return err
	}
	pool, err := db.write.DB()
	if err == nil {
		err = pool.PingContext(ctx)
	}
	if err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	return db.openReaders(func(conns int) (*gorm.DB, error) { return postgres.OpenReader(url, conns, db.noteServer) })
}
