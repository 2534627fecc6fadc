// Package store opens the database and has the operations that several features need:
// connections, transactions, the commit of a batch, the transitions of an order, the outbox
// of events, the audit, and the high-water marks that detect lost commits. Statements that
// only one feature uses are in the package of that feature.
package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/mattn/go-sqlite3"
	"gorm.io/driver/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"flashsale/order"
	"flashsale/order/schema"
	"flashsale/order/timeouts"
)

// ErrDatabaseURL says that a database setting is invalid.
var ErrDatabaseURL = errors.New("order: database must be sqlite:PATH or postgres://USER@HOST/DATABASE")

// ErrNotWritable says that the database's file or folder refuses writes: its
// permissions deny them, or its file system is read-only.
var ErrNotWritable = errors.New("order: database is not writable")

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

// lockWait is how long a connection waits for another process's lock, in milliseconds.
const lockWait = 5000

// openWait is how long opening a database waits for another process's lock.
const openWait = 100 * time.Millisecond

// Store keeps items, orders and buyers in the database. SQLite allows one writer at a time,
// so the store has one writing connection: writers queue in the process instead of failing
// as busy in the database. On Postgres it is the same, and a lock in the database keeps the
// order among processes; see writeLock.
type Store struct {
	file   string   // path of the database; "": it is on Postgres
	url    string   // of the database on Postgres; "": it is a file of SQLite
	write  *gorm.DB // the writer's connection; migrations and tests use it, too
	read   *gorm.DB
	loads  *gorm.DB      // see loaders
	long   *gorm.DB      // see longReaders
	large  chan struct{} // has a slot for each large load
	lists  *listPool
	hot    prepared
	writer *writer
	log    logGuard
	replication
	now  func() time.Time // see WithClock
	Told chan struct{}    // receives a token when events were committed; see announce

	highWater *HighWater // nil: revisions are not recorded; see NewHighWater
	// comparedLife is the mark.life of the server on which this process may write; nil: none.
	// See compareServer.
	comparedLife atomic.Pointer[string]

	itemNow func(item string) time.Time // nil: now; see WithClock

	onPayment func(order.PaymentOutcome) // see WithPayments
}

// Option sets an optional part of a Store.
type Option func(*Store)

// Open opens the database of a setting: "sqlite:shop.db", or the URL of a database on a
// Postgres server. It creates the file of SQLite if necessary, in a folder that exists; only its
// owner can read a file created here. A database on Postgres must exist. Open does not change the
// schema. Errors: ErrDatabaseURL, ErrNotWritable, and those of the database.
func Open(ctx context.Context, setting string, options ...Option) (*Store, error) {
	s := &Store{
		large: make(chan struct{}, largeLoads), lists: newListPool(), replication: replication{asking: make(chan struct{}, 1)},
		log: logGuard{every: logEvery, high: logHigh, step: logStep, patience: logPatience, observe: func(time.Duration, error) {}},
		now: time.Now, Told: make(chan struct{}, 1), onPayment: func(order.PaymentOutcome) {},
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
	s.writer = newWriter(s)
	return s, nil
}

// isPostgres reports whether a setting is the URL of a database on Postgres.
func isPostgres(setting string) bool {
	return strings.HasPrefix(setting, "postgres://") || strings.HasPrefix(setting, "postgresql://")
}

func openFile(ctx context.Context, s *Store, path string) (err error) {
	if err := createFile(ctx, path); err != nil {
		return err
	}
	s.file, s.hot = path, make(prepared, len(hotTexts))
	if s.write, err = OpenSQLite(path, WriteParams(), 1); err != nil {
		return err
	}
	if err := tryWrite(ctx, s.write); err != nil {
		return fmt.Errorf("database %s: %w", path, err)
	}
	if err := s.log.measure(ctx, s.write); err != nil {
		return fmt.Errorf("database %s: %w", path, err)
	}
	if s.log.copy, err = openReader(path, 1); err != nil {
		return err
	}
	return s.openReaders(func(conns int) (*gorm.DB, error) { return openReader(path, conns) })
}

func openReader(path string, conns int) (*gorm.DB, error) {
	return OpenSQLite(path, url.Values{"_query_only": {"true"}}, conns)
}

func (s *Store) openReaders(open func(conns int) (*gorm.DB, error)) (err error) {
	for _, pool := range []struct {
		db    **gorm.DB
		conns int
	}{{&s.read, readers}, {&s.loads, loaders}, {&s.long, longReaders}, {&s.lists.db, maxLists}} {
		if *pool.db, err = open(pool.conns); err != nil {
			return err
		}
	}
	return nil
}

// createFile makes sure that the file exists and can be opened for writing. SQLite opens a
// file that refuses writes read-only, without an error. SQLite creates the files beside the
// database with the mode of the database.
func createFile(ctx context.Context, path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("open database: %w", notWritable(err))
	}
	info, err := f.Stat()
	if err = errors.Join(err, f.Close()); err != nil || info.Size() > 0 {
		return err
	}
	return format(ctx, path)
}

// notWritable wraps an error of the operating system or of SQLite with ErrNotWritable if it
// has that cause.
func notWritable(err error) error {
	var se sqlite3.Error
	sqlite := errors.As(err, &se) && (se.Code == sqlite3.ErrReadonly || se.Code == sqlite3.ErrCantOpen)
	if sqlite || errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		return fmt.Errorf("%w: %w", ErrNotWritable, err)
	}
	return err
}

// WriteParams are the parameters of connections that write. BEGIN IMMEDIATE takes the write
// lock first, so that a transaction never fails midway because it read before it wrote.
// SQLite zeroes deleted and overwritten data, so that no erased data of a buyer stays in
// the file. A sale only adds rows, so it has almost nothing to zero.
func WriteParams() url.Values {
	return url.Values{"_txlock": {"immediate"}, "_synchronous": {"FULL"}, "_secure_delete": {"on"}}
}

// tryWrite begins a transaction and rolls it back, which fails if the folder or a file
// beside the database refuses writes. It is not an error if another process holds the lock.
func tryWrite(ctx context.Context, db *gorm.DB) error {
	ctx, cancel := context.WithTimeout(ctx, openWait)
	defer cancel()
	pool, err := db.DB()
	if err != nil {
		return err
	}
	tx, err := pool.BeginTx(ctx, nil)
	if err == nil {
		if err = tx.Rollback(); errors.Is(err, sql.ErrTxDone) {
			err = nil // ctx ended in between, and database/sql has rolled it back
		}
		return err
	}
	if err = notWritable(err); Transient(err) && !errors.Is(err, ErrNotWritable) {
		return nil // the database is busy or full, which is temporary
	}
	return err
}

// OpenSQLite opens a pool of at most conns connections with further parameters.
func OpenSQLite(path string, params url.Values, conns int) (*gorm.DB, error) {
	params.Set("_journal_mode", "WAL")
	params.Set("_busy_timeout", strconv.Itoa(lockWait))
	// database/sql gives a connection to one goroutine at a time, so SQLite need not take
	// its own mutex for every bound value.
	params.Set("_mutex", "no")
	dsn := (&url.URL{Scheme: "file", Opaque: escapePath(path), RawQuery: params.Encode()}).String()
	registerDriver()
	db, err := gorm.Open(sqlite.New(sqlite.Config{DriverName: driverName, DSN: dsn}), &gorm.Config{
		PrepareStmt:            true,
		SkipDefaultTransaction: true,
		TranslateError:         true,
		Logger:                 logger.Discard,
	})
	if err != nil {
		return nil, fmt.Errorf("open database %s: %w", path, notWritable(err))
	}
	pool, err := db.DB()
	if err != nil {
		return nil, fmt.Errorf("open database %s: %w", path, err)
	}
	pool.SetMaxOpenConns(conns)
	pool.SetMaxIdleConns(conns)
	return db, nil
}

// escapePath prevents '?', '#' and '%' in a path from being parsed as parts of a URI.
func escapePath(path string) string {
	return strings.NewReplacer("%", "%25", "?", "%3f", "#", "%23").Replace(path)
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
	if s.writer != nil {
		s.writer.close()
	}
	s.log.running.Wait()
	err := s.hot.close()
	for _, db := range []*gorm.DB{s.write, s.read, s.loads, s.long, s.lists.db, s.log.copy} {
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
		case s.large <- struct{}{}:
			defer func() { <-s.large }()
		case <-ctx.Done():
			return fmt.Errorf("wait for other loads: %w", context.Cause(ctx))
		}
	}
	return s.loads.WithContext(ctx).Transaction(fn, snapshot)
}

// soldOf returns the total number of sold units of some items.
func soldOf(ctx context.Context, s *Store, items []string) (sold int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	err = s.read.WithContext(ctx).Raw("SELECT COALESCE(SUM(sold), 0) FROM items WHERE id IN (SELECT value FROM json_each(?))",
		JSONList(items...)).Scan(&sold).Error
	if err != nil {
		return 0, Wrap("read units sold", err)
	}
	return sold, nil
}

// Writer returns the one writing connection, for migrations. A caller waits for the
// running transaction.
func (s *Store) Writer() *gorm.DB { return s.write }

// Reader returns the connections for short reads, which purchases share.
func (s *Store) Reader() *gorm.DB { return s.read }

// LongReader returns the connections for reads that may take long.
func (s *Store) LongReader() *gorm.DB { return s.long }

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

// Epoch is the number of the current build of the state in Redis.
func (s *Store) Epoch(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	return epochOf(s.read.WithContext(ctx))
}

func epochOf(db *gorm.DB) (int64, error) {
	var value string
	if err := db.Raw("SELECT value FROM meta WHERE key = 'epoch'").Scan(&value).Error; err != nil {
		return 0, Wrap("read epoch", err)
	}
	epoch, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read epoch: %w", err)
	}
	return epoch, nil
}

// CheckPartitions records the number of partitions at the first start and returns the
// recorded number. Redis records it too, and may lose it.
func CheckPartitions(ctx context.Context, s *Store, n int) (int, error) {
	// Read first: a process must be able to start while another one holds the write lock.
	have, err := partitionsOf(s.read.WithContext(ctx))
	if err != nil || have > 0 {
		return have, err
	}
	err = s.Transition(ctx, "record partitions", func(ctx context.Context, c Conn, _ int64) error {
		_, err := c.ExecContext(ctx, "INSERT INTO meta (key, value) VALUES ('partitions', ?1) ON CONFLICT DO NOTHING", strconv.Itoa(n))
		return err
	})
	if err != nil {
		return 0, err
	}
	return partitionsOf(s.read.WithContext(ctx))
}

// partitionsOf reads the number of partitions; 0 if none is recorded.
func partitionsOf(db *gorm.DB) (int, error) {
	var values []string
	if err := db.Raw("SELECT value FROM meta WHERE key = 'partitions'").Scan(&values).Error; err != nil {
		return 0, Wrap("read partitions", err)
	}
	if len(values) == 0 {
		return 0, nil
	}
	n, err := strconv.Atoi(values[0])
	if err != nil {
		return 0, fmt.Errorf("read partitions: %w", err)
	}
	return n, nil
}

// Order reads one order. It returns ErrNotFound if there is no such row.
func (s *Store) Order(ctx context.Context, id string) (order.Order, error) {
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	var rows []schema.Order
	if err := s.read.WithContext(ctx).Where("id = ?", id).Limit(1).Find(&rows).Error; err != nil {
		return order.Order{}, Wrap("read order "+id, err)
	}
	if len(rows) == 0 {
		return order.Order{}, order.ErrNotFound
	}
	return rows[0].Order(), s.Replicated(ctx)
}

// OrderByKey reads the order of an idempotency key. Errors: ErrNotFound.
func OrderByKey(ctx context.Context, s *Store, user, item, key string) (order.Order, error) {
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	var rows []schema.Order
	err := s.read.WithContext(ctx).
		Where("user_id = ? AND item_id = ? AND idempotency_key = ?", user, item, key).Limit(1).Find(&rows).Error
	if err != nil {
		return order.Order{}, Wrap("read order by key", err)
	}
	if len(rows) == 0 {
		return order.Order{}, order.ErrNotFound
	}
	return rows[0].Order(), s.Replicated(ctx)
}

// Transient reports whether an error comes from the database's present state (busy, full,
// unreachable) and not from the rows sent. Such a batch must be retried whole, and not
// split.
func Transient(err error) bool {
	if errors.Is(err, ErrServerChanged) {
		return true // whatever Redis or the server answered
	}
	if transient, known := transientPostgres(err); known {
		return transient
	}
	var se sqlite3.Error
	if !errors.As(err, &se) {
		var network net.Error
		return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errQueueFull) ||
			errors.Is(err, sql.ErrConnDone) || errors.Is(err, sql.ErrTxDone) || errors.Is(err, driver.ErrBadConn) ||
			errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &network) || pgconn.SafeToRetry(err)
	}
	switch se.Code {
	case sqlite3.ErrBusy, sqlite3.ErrLocked, sqlite3.ErrFull, sqlite3.ErrIoErr, sqlite3.ErrReadonly,
		sqlite3.ErrCantOpen, sqlite3.ErrNomem, sqlite3.ErrProtocol, sqlite3.ErrInterrupt,
		sqlite3.ErrCorrupt, sqlite3.ErrNotADB:
		return true
	}
	return false
}

// Settled reads the results of those orders that are committed.
func (s *Store) Settled(ctx context.Context, ids []string) ([]order.Notice, error) {
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	var rows []schema.Order
	if err := s.read.WithContext(ctx).Where("id IN ?", ids).Find(&rows).Error; err != nil {
		return nil, Wrap("read orders", err)
	}
	out := make([]order.Notice, len(rows))
	for i := range rows {
		r := &rows[i]
		out[i] = order.Notice{ID: r.ID, Outcome: order.Outcome{Status: order.Status(r.Status), Reason: r.Reason, ConfirmedAt: r.ConfirmedAt, ExpiresAt: r.ExpiresAt, ClosedAt: r.ClosedAt}}
	}
	return out, s.Replicated(ctx)
}

// Wrap adds the operation that failed, and wraps ErrDatabase if the cause is the database's
// present state.
func Wrap(operation string, err error) error {
	if Transient(err) && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("%s: %w: %w", operation, order.ErrDatabase, err)
	}
	return fmt.Errorf("%s: %w", operation, err)
}

// WithPayments makes the store call fn for every recorded payment, and every refund, once
// it is committed.
func WithPayments(fn func(order.PaymentOutcome)) Option {
	return func(s *Store) { s.onPayment = fn }
}
