package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strconv"
	"sync"
	"testing"

	"github.com/mattn/go-sqlite3"
	gormsqlite "gorm.io/driver/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"flashsale/internal/testing/await"
	"flashsale/order/ordertest"
	"flashsale/order/store/database"
	"flashsale/order/store/sqlite"
)

// commitFaults makes COMMIT fail, with the transaction committed or not. The caller cannot
// find out which.
type commitFaults struct {
	dsn string

	mu    sync.Mutex
	plan  []CommitFault // of the next commits; none: they succeed
	stuck int           // how many occurred
}

type CommitFault struct {
	Committed bool
	Err       error
}

func (f *commitFaults) next() (CommitFault, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.plan) == 0 {
		return CommitFault{}, false
	}
	one := f.plan[0]
	f.plan = f.plan[1:]
	f.stuck++
	return one, true
}

// Strike makes the next commits fail.
func (f *commitFaults) Strike(plan ...CommitFault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.plan, f.stuck = plan, 0
}

func (f *commitFaults) Struck(t testing.TB, want int) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stuck != want || len(f.plan) != 0 {
		t.Errorf("%d commits failed and %d were to, want %d", f.stuck, len(f.plan), want)
	}
}

// Connect makes the faults a driver.Connector.
func (f *commitFaults) Connect(context.Context) (driver.Conn, error) {
	c, err := (&sqlite3.SQLiteDriver{}).Open(f.dsn)
	if err != nil {
		return nil, err
	}
	return faultyConn{c.(*sqlite3.SQLiteConn), f}, nil
}

func (f *commitFaults) Driver() driver.Driver { return &sqlite3.SQLiteDriver{} }

type faultyConn struct {
	*sqlite3.SQLiteConn
	faults *commitFaults
}

func (c faultyConn) BeginTx(ctx context.Context, o driver.TxOptions) (driver.Tx, error) {
	tx, err := c.SQLiteConn.BeginTx(ctx, o)
	if err != nil {
		return nil, err
	}
	return faultyTx{tx, c.faults}, nil
}

type faultyTx struct {
	driver.Tx
	faults *commitFaults
}

func (tx faultyTx) Commit() error {
	f, strikes := tx.faults.next()
	switch {
	case !strikes:
		return tx.Tx.Commit()
	case f.Committed:
		return errors.Join(f.Err, tx.Tx.Commit())
	}
	return errors.Join(f.Err, tx.Tx.Rollback())
}

// BreakCommits replaces a store's writing connection with one whose commits fail on
// request.
func BreakCommits(t *testing.T, s *Store) *commitFaults {
	t.Helper()
	ordertest.NeedSQLite(t)
	f := &commitFaults{dsn: sqlite.URI(s.Path(), "_txlock=immediate&_synchronous=FULL&_journal_mode=WAL&_busy_timeout="+strconv.Itoa(sqlite.LockWait))}
	pool := sql.OpenDB(f)
	pool.SetMaxOpenConns(1)
	db, err := gorm.Open(gormsqlite.New(gormsqlite.Config{Conn: pool}), &gorm.Config{
		PrepareStmt: true, SkipDefaultTransaction: true, TranslateError: true, Logger: logger.Discard,
	})
	if err != nil {
		t.Fatal(err)
	}
	// The statements that are prepared belong to the connection.
	again, err := database.Open(await.Context(t), ordertest.SettingOf(s), database.Config{Prepared: preparedTexts, Probe: writeProbe, Hooks: s.newTransaction})
	if err != nil {
		t.Fatal(err)
	}
	broken, err := again.Writer().DB()
	if err := errors.Join(err, broken.Close(), s.Close()); err != nil {
		t.Fatal(err)
	}
	s.DB = again
	*s.Writer() = *db
	return f
}
