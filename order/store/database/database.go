// Package database opens a database on SQLite or Postgres. Reads use pools of connections, and all
// writes of a process share transactions: see [DB.Do]. It knows no table. The package that does
// implements [Hooks], which begin and end each transaction.
package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"gorm.io/gorm"
)

// ErrURL means that the setting of a database is invalid.
var ErrURL = errors.New("order: database must be sqlite:PATH or postgres://USER@HOST/DATABASE")

// readers bounds the reading connections. SQLite in WAL mode lets them run beside the one
// writer.
const readers = 4

// loaders bounds the sales that are loaded concurrently. Loads have their own connections,
// because a load reads every order of its sale, and buyers must not wait for it.
const loaders = 4

// largeLoads bounds the concurrent loads that read many rows, so that small ones need not
// wait for large ones.
const largeLoads = 2

// longReaders bounds the connections for other long reads: exports, reconciliation, checks
// of the file.
const longReaders = 3

// DB is an open database. SQLite allows one writer at a time, so there is one writing connection:
// writers queue in the process instead of failing as busy in the database. On Postgres there are two,
// and a lock in the database keeps the order among all writers; see postgres.WriteLock.
type DB struct {
	cfg       Config
	file      string   // path of the database; "": it is on Postgres
	url       string   // of the database on Postgres; "": it is a file of SQLite
	write     *gorm.DB // the writers' connections; migrations and tests use it, too
	read      *gorm.DB
	load      *gorm.DB      // see loaders
	longRead  *gorm.DB      // see longReaders
	loadSlots chan struct{} // has a slot for each large load
	lists     *listPool
	prepared  prepared
	// batchWriter runs batches, and changeWriter all other writes. On SQLite they are the same writer; on
	// Postgres each has a connection, so that changes do not wait for batches.
	batchWriter, changeWriter *writer

	wal walGuard
	replication
}

// Config is what a database needs to know of the tables. All fields but Checkpointed are required.
type Config struct {
	// Prepared are the statements that the writer on SQLite keeps prepared.
	Prepared []string
	// Probe is a statement for Postgres that changes a row. Its value is the time in Unix milliseconds, as a text.
	Probe string
	// Hooks returns the hooks of a new transaction.
	Hooks func(tx *Tx) Hooks
	// Checkpointed is called after each checkpoint beside the commits, with its duration. After an error
	// the checkpoint is retried. Default: nothing.
	Checkpointed func(took time.Duration, err error)
}

// Open opens the database of a setting: "sqlite:shop.db", or the URL of a database on a
// Postgres server. It creates the file of SQLite if necessary, in a folder that exists; only its
// owner can read a file created here. A database on Postgres must exist. Open does not change the
// schema. Errors: ErrURL, sqlite.ErrNotWritable, postgres.ErrPooled, and those of the database.
func Open(ctx context.Context, setting string, cfg Config) (*DB, error) {
	if cfg.Checkpointed == nil {
		cfg.Checkpointed = func(time.Duration, error) {}
	}
	db := &DB{
		cfg: cfg, loadSlots: make(chan struct{}, largeLoads), lists: newListPool(), replication: replication{asking: make(chan struct{}, 1)},
		wal: walGuard{high: walHigh, step: walStep, patience: walPatience},
	}
	var err error
	path, isFile := strings.CutPrefix(setting, "sqlite:")
	switch {
	case isFile && path != "":
		err = openFile(ctx, db, path)
	case isPostgres(setting):
		err = openServer(ctx, db, setting)
	default:
		return nil, fmt.Errorf("%w, not %q", ErrURL, setting)
	}
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	db.batchWriter = newWriter(db)
	db.changeWriter = db.batchWriter
	if db.Postgres() {
		db.changeWriter = newWriter(db)
	}
	return db, nil
}

// isPostgres reports whether a setting is the URL of a database on Postgres.
func isPostgres(setting string) bool {
	return strings.HasPrefix(setting, "postgres://") || strings.HasPrefix(setting, "postgresql://")
}

func (db *DB) openReaders(open func(conns int) (*gorm.DB, error)) (err error) {
	for _, pool := range []struct {
		db    **gorm.DB
		conns int
	}{{&db.read, readers}, {&db.load, loaders}, {&db.longRead, longReaders}, {&db.lists.db, maxLists}} {
		if *pool.db, err = open(pool.conns); err != nil {
			return err
		}
	}
	return nil
}

// Close refuses the waiting writes, finishes those that have begun, and closes the
// connections.
func (db *DB) Close() error {
	if db.batchWriter != nil {
		db.batchWriter.close()
		db.changeWriter.close()
	}
	db.wal.running.Wait()
	err := db.prepared.close()
	for _, pool := range []*gorm.DB{db.write, db.read, db.load, db.longRead, db.lists.db, db.wal.copyDB} {
		if pool != nil {
			err = errors.Join(err, closePool(pool))
		}
	}
	return err
}

func closePool(db *gorm.DB) error {
	pool, err := db.DB()
	if err != nil {
		return err
	}
	return pool.Close()
}

// Load runs fn on one consistent view of the database, to load sales. A large load waits while
// the maximum number of large loads is running.
func (db *DB) Load(ctx context.Context, large bool, fn func(tx *gorm.DB) error) error {
	if large {
		select {
		case db.loadSlots <- struct{}{}:
			defer func() { <-db.loadSlots }()
		case <-ctx.Done():
			return fmt.Errorf("wait for other loads: %w", context.Cause(ctx))
		}
	}
	return db.load.WithContext(ctx).Transaction(fn, snapshot)
}

// Snapshot runs fn on one consistent view of the database. It is for long reads, and uses
// the connections for them. Errors: ErrUnavailable, those of fn.
func (db *DB) Snapshot(ctx context.Context, fn func(tx *gorm.DB) error) error {
	err := db.longRead.WithContext(ctx).Transaction(fn, snapshot)
	if err == nil || errors.Is(err, ErrUnavailable) || !Transient(err) {
		return err
	}
	return Wrap("read a snapshot of the database", err)
}

// snapshot gives a transaction one view of the database on Postgres; SQLite always does.
var snapshot = &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true}

// Writer returns the writing connections, for migrations. On SQLite a caller waits for the
// running transaction.
func (db *DB) Writer() *gorm.DB { return db.write }

// Reader returns the connections for short reads, which purchases share.
func (db *DB) Reader() *gorm.DB { return db.read }

// LongReader returns the connections for reads that may take long.
func (db *DB) LongReader() *gorm.DB { return db.longRead }

// Path returns the path of the database's file; "" on Postgres.
func (db *DB) Path() string { return db.file }

// URL returns the URL of the database on Postgres, with its password; "" on SQLite.
func (db *DB) URL() string { return db.url }

// Postgres reports whether the database is on Postgres.
func (db *DB) Postgres() bool { return db.url != "" }

// Dialect is the name of the database's migrations: "sqlite" or "postgres".
func (db *DB) Dialect() string {
	if db.Postgres() {
		return "postgres"
	}
	return "sqlite"
}
