// Package postgres opens databases on a Postgres server for the store: connections that take the
// statements of SQLite, know when the outcome of a commit is in doubt, and notice a connection pooler.
package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	gormpostgres "gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

const (
	// idleConnection is after how long an unused connection is closed. A server has a
	// limited number of them.
	idleConnection = 5 * time.Minute
	// connectTimeout bounds the connection to one address, unless the URL has its own.
	connectTimeout = 5 * time.Second
	// silentHosts replaces connectTimeout if the URL has several hosts: it is the time for those
	// that accept a connection and do not answer, or drop it. It is shorter than the shortest bound
	// of a caller, the 800 ms of the write probe, so that the host that works is reached in time.
	silentHosts = 500 * time.Millisecond
	// pingTimeout bounds the check of a connection that was idle. One that a firewall has
	// dropped gives no answer.
	pingTimeout = time.Second
)

// planning sets the parameters of connections that cache plans. A plan that is made when a new
// shop is almost empty is kept until the server has analyzed the table, and would read all
// orders of the first minute's sale, over and over. Every statement that matters has an
// index. Behind a pooler no plan is cached.
const planning = "SET enable_seqscan = off; SET jit = off; "

// reading sets the parameters of connections that only read. They are set after the connection
// is made, because target_session_attrs=read-write refuses a session that only reads.
const reading = planning + "SET default_transaction_read_only = on; "

// Open opens a pool of at most conns connections.
func Open(url string, conns int) (*gorm.DB, error) {
	return open(url, conns, planning, func(string) {})
}

// OpenReader opens a pool of at most conns connections that only read. met gets the [ServerLife]
// of each connection's server before the connection is used.
func OpenReader(url string, conns int, met func(life string)) (*gorm.DB, error) {
	return open(url, conns, reading, met)
}

// open opens a pool whose new connections run a text first. It is omitted behind a
// pooler that gives each transaction another session.
func open(url string, conns int, first string, met func(life string)) (*gorm.DB, error) {
	cfg, err := Config(url)
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	if cfg.DefaultQueryExecMode == pgx.QueryExecModeSimpleProtocol {
		first = ""
	}
	pool := sql.OpenDB(connector{stdlib.GetConnector(*cfg, stdlib.OptionBeforeConnect(watchCommit)), first, met})
	pool.SetMaxOpenConns(conns)
	pool.SetMaxIdleConns(conns)
	pool.SetConnMaxIdleTime(idleConnection)
	// pgx caches statements itself, or prepares none behind a connection pooler.
	db, err := gorm.Open(gormpostgres.New(gormpostgres.Config{Conn: pool}), &gorm.Config{
		QueryFields:            true, // a migration may add columns meanwhile, and SELECT * would fail once
		SkipDefaultTransaction: true,
		TranslateError:         true,
		DisableAutomaticPing:   true,
		Logger:                 logger.Discard,
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open database: %w", err), pool.Close())
	}
	return db, nil
}

// Config reads the URL of a database. It bounds the attempt to connect to each host unless
// the URL does.
func Config(url string) (*pgx.ConnConfig, error) {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = connectTimeout
		if n := hosts(cfg); n > 1 {
			cfg.ConnectTimeout = silentHosts / time.Duration(n-1)
		}
	}
	return cfg, nil
}

// hosts is the number of hosts in a URL. A host has a second fallback if it is also tried without
// TLS.
func hosts(cfg *pgx.ConnConfig) int {
	type host struct {
		name string
		port uint16
	}
	known := map[host]bool{{cfg.Host, cfg.Port}: true}
	for _, f := range cfg.Fallbacks {
		known[host{f.Host, f.Port}] = true
	}
	return len(known)
}

// Check connects once to check that the server answers and is not behind a pooler that the
// pools cannot use. Errors: ErrPooled.
func Check(ctx context.Context, url string) error {
	cfg, err := Config(url)
	if err != nil {
		return err
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return err
	}
	return errors.Join(CheckPooler(ctx, conn), conn.Close(ctx))
}
