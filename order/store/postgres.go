package store

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm"

	"flashsale/order/store/postgres"
	"flashsale/order/timeouts"
)

const (
	// writeConns is the number of connections for writes: one for each writer of a store.
	writeConns = 2
	// beginTimeout bounds the time to get a connection, and postgresTransaction the
	// transaction on it with its wait for locks, because a server that has vanished from the
	// network gives no error.
	beginTimeout        = 6 * time.Second
	postgresTransaction = 15 * time.Second
	// lockTimeout bounds the wait for a lock in the database, in milliseconds.
	lockTimeout = 5000
)

// openServer opens the pools of a store on Postgres.
func openServer(ctx context.Context, s *Store, url string) (err error) {
	s.url = url
	ctx, cancel := context.WithTimeout(ctx, timeouts.Write)
	defer cancel()
	// Before the pools, whose new connections set parameters of their sessions.
	if err := postgres.Check(ctx, url); err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	if s.writeDB, err = postgres.Open(url, writeConns); err != nil {
		return err
	}
	pool, err := s.writeDB.DB()
	if err == nil {
		err = pool.PingContext(ctx)
	}
	if err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	return s.openReaders(func(conns int) (*gorm.DB, error) { return postgres.OpenReader(url, conns, s.noteServer) })
}

// WriteLock is the key of the advisory lock that every write transaction on Postgres takes: batches of
// orders and payments that are recorded together share it, all other changes exclude everything else. So a
// change sees what it sees on SQLite, which has one writer, and a process that holds the lock exclusively
// keeps all others from changing the database. The number only has to differ from those of other programs
// in the same database.
const WriteLock int64 = 0x666c617368
