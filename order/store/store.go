// Package store opens the database and has the operations that several features need:
// connections, transactions, the commit of a batch, the transitions of an order, the outbox
// of events, the audit, and the high-water marks that detect lost commits. Statements that
// only one feature uses are in the package of that feature.
package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"gorm.io/gorm"

	"flashsale/order"
	"flashsale/order/timeouts"
)

// ErrDatabaseURL means that a database setting is invalid.
var ErrDatabaseURL = errors.New("order: database must be sqlite:PATH or postgres://USER@HOST/DATABASE")

// readers bounds the reading connections. SQLite in WAL mode lets them run beside the one
// writer.
const readers = 4

// loaders bounds the sales that are loaded concurrently. Loads have their own connections,
// because a load reads every order of its sale, and buyers must not wait for it.
const loaders = 4

// largeLoads bounds the concurrent loads that read many orders, so that small sales need
// not wait for large ones. largeLoad is the number of sold units from which a load is
// large.
const (
	largeLoads = 2
	largeLoad  = 20_000
)

// longReaders bounds the connections for other long reads: exports, reconciliation, checks
// of the file.
const longReaders = 3

// Store keeps items, orders and buyers in the database. SQLite allows one writer at a time,
// so the store has one writing connection: writers queue in the process instead of failing
// as busy in the database. On Postgres it has two, and a lock in the database keeps the
// order among all writers; see WriteLock.
type Store struct {
	file           string   // path of the database; "": it is on Postgres
	url            string   // of the database on Postgres; "": it is a file of SQLite
	writeDB        *gorm.DB // the writers' connections; migrations and tests use it, too
	readDB         *gorm.DB
	loadDB         *gorm.DB      // see loaders
	longReadDB     *gorm.DB      // see longReaders
	largeLoadSlots chan struct{} // has a slot for each large load
	lists          *listPool
	prepared       prepared
	// batchWriter commits batches of orders, and changeWriter makes all other changes. On SQLite they
	// are the same writer; on Postgres each has a connection, so that payments do not wait for batches.
	batchWriter, changeWriter *writer

	wal walGuard
	replication
	now             func() time.Time // see WithClock
	EventsCommitted chan struct{}    // receives a token when events were committed; see Announce

	highWater *HighWater // nil: revisions are not recorded; see NewHighWater
	// comparedLife is the txID.life of the server on which this process may write; nil: none.
	// See compareServer.
	comparedLife atomic.Pointer[string]

	itemNow func(item string) time.Time // nil: now; see WithClock

	onPayment func(order.PaymentOutcome) // see WithPayments
}

// Option sets an optional part of a Store.
type Option func(*Store)

// Clock is the time by which sales open and close.
type Clock interface {
	// Now is the time for everything that belongs to no single item.
	Now() time.Time
	// ItemNow is the time by which the item's sale opens and closes.
	ItemNow(item string) time.Time
}

// WithClock makes the store write and compare times by this clock instead of the host's, so
// that all processes agree on when an order expires and whether a payment is late.
func WithClock(c Clock) Option {
	return func(s *Store) { s.now, s.itemNow = c.Now, c.ItemNow }
}

// WithPayments makes the store call fn for every recorded payment, and every refund, once
// it is committed.
func WithPayments(fn func(order.PaymentOutcome)) Option {
	return func(s *Store) { s.onPayment = fn }
}

// SaleTime is the time by which an item's sale opens and closes.
func SaleTime(s *Store, item string) time.Time {
	if s.itemNow != nil {
		return s.itemNow(item)
	}
	return s.now()
}

// Open opens the database of a setting: "sqlite:shop.db", or the URL of a database on a
// Postgres server. It creates the file of SQLite if necessary, in a folder that exists; only its
// owner can read a file created here. A database on Postgres must exist. Open does not change the
// schema. Errors: ErrDatabaseURL, sqlite.ErrNotWritable, postgres.ErrPooled, and those of the database.
func Open(ctx context.Context, setting string, options ...Option) (*Store, error) {
	s := &Store{
		largeLoadSlots: make(chan struct{}, largeLoads), lists: newListPool(), replication: replication{asking: make(chan struct{}, 1)},
		wal: walGuard{high: walHigh, step: walStep, patience: walPatience, observe: func(time.Duration, error) {}},
		now: time.Now, EventsCommitted: make(chan struct{}, 1), onPayment: func(order.PaymentOutcome) {},
	}
	for _, set := range options {
		set(s)
	}
	var err error
	path, isFile := strings.CutPrefix(setting, "sqlite:")
	switch {
	case isFile && path != "":
		err = openFile(ctx, s, path)
	case isPostgres(setting):
		err = openServer(ctx, s, setting)
	default:
		return nil, fmt.Errorf("%w, not %q", ErrDatabaseURL, setting)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.batchWriter = newWriter(s)
	s.changeWriter = s.batchWriter
	if s.Postgres() {
		s.changeWriter = newWriter(s)
	}
	return s, nil
}

// isPostgres reports whether a setting is the URL of a database on Postgres.
func isPostgres(setting string) bool {
	return strings.HasPrefix(setting, "postgres://") || strings.HasPrefix(setting, "postgresql://")
}

func (s *Store) openReaders(open func(conns int) (*gorm.DB, error)) (err error) {
	for _, pool := range []struct {
		db    **gorm.DB
		conns int
	}{{&s.readDB, readers}, {&s.loadDB, loaders}, {&s.longReadDB, longReaders}, {&s.lists.db, maxLists}} {
		if *pool.db, err = open(pool.conns); err != nil {
			return err
		}
	}
	return nil
}

func closeDB(db *gorm.DB) error {
	pool, err := db.DB()
	if err != nil {
		return err
	}
	return pool.Close()
}

// Close refuses the waiting writes, finishes those that have begun, and closes the
// connections.
func (s *Store) Close() error {
	if s.batchWriter != nil {
		s.batchWriter.close()
		s.changeWriter.close()
	}
	s.wal.running.Wait()
	err := s.prepared.close()
	for _, db := range []*gorm.DB{s.writeDB, s.readDB, s.loadDB, s.longReadDB, s.lists.db, s.wal.copyDB} {
		if db != nil {
			err = errors.Join(err, closeDB(db))
		}
	}
	return err
}

// Loading runs fn on one consistent view of the database, to load the sales of these items.
func (s *Store) Loading(ctx context.Context, items []string, fn func(tx *gorm.DB) error) error {
	sold, err := soldOf(ctx, s, items)
	if err != nil {
		return err
	}
	if sold >= largeLoad {
		select {
		case s.largeLoadSlots <- struct{}{}:
			defer func() { <-s.largeLoadSlots }()
		case <-ctx.Done():
			return fmt.Errorf("wait for other loads: %w", context.Cause(ctx))
		}
	}
	return s.loadDB.WithContext(ctx).Transaction(fn, snapshot)
}

// soldOf returns the total number of sold units of some items.
func soldOf(ctx context.Context, s *Store, items []string) (sold int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	err = s.readDB.WithContext(ctx).Raw("SELECT COALESCE(SUM(sold), 0) FROM items WHERE id IN (SELECT value FROM json_each(?))",
		JSONList(items...)).Scan(&sold).Error
	if err != nil {
		return 0, Wrap("read units sold", err)
	}
	return sold, nil
}

// Snapshot runs fn on one consistent view of the database. It is for long reads, and uses
// the connections for them.
func Snapshot(ctx context.Context, s *Store, fn func(tx *gorm.DB) error) error {
	return s.longReadDB.WithContext(ctx).Transaction(fn, snapshot)
}

// snapshot gives a transaction one view of the database on Postgres; SQLite always does.
var snapshot = &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true}

// Writer returns the writing connections, for migrations. On SQLite a caller waits for the
// running transaction.
func (s *Store) Writer() *gorm.DB { return s.writeDB }

// Reader returns the connections for short reads, which purchases share.
func (s *Store) Reader() *gorm.DB { return s.readDB }

// LongReader returns the connections for reads that may take long.
func (s *Store) LongReader() *gorm.DB { return s.longReadDB }

// Now returns the time by the store's clock.
func (s *Store) Now() time.Time { return s.now() }

// HighWater returns what detects a database that has lost commits; nil: nothing does.
func (s *Store) HighWater() *HighWater { return s.highWater }

// Path returns the path of the database's file; "" on Postgres.
func (s *Store) Path() string { return s.file }

// URL returns the URL of the database on Postgres, with its password; "" on SQLite.
func (s *Store) URL() string { return s.url }

// Postgres reports whether the database is on Postgres.
func (s *Store) Postgres() bool { return s.url != "" }

// Dialect is the name of the database's migrations: "sqlite" or "postgres".
func (s *Store) Dialect() string {
	if s.Postgres() {
		return "postgres"
	}
	return "sqlite"
}

// ReportPayment reports an outcome to the observer of [WithPayments].
func (s *Store) ReportPayment(o order.PaymentOutcome) { s.onPayment(o) }
