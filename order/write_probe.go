package order

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/mattn/go-sqlite3"
)

// ErrBusy says that a write could not get the database's lock in time, or that the
// disk is slow. That may be over at any moment.
var ErrBusy = errors.New("order: database is busy")

const (
	// probeEvery is the time between two checks while callers ask or writes fail.
	probeEvery = time.Second
	// probeWait is how long a check waits for another process's lock, in milliseconds.
	probeWait = 600
	// probeTrust is how old the last check may be for a commit since then to show that
	// the database takes writes now.
	probeTrust = 2 * probeEvery
	// busyGrace is for how long no check may succeed before a busy database counts as
	// one that takes no writes: a single commit may take longer than a check waits.
	busyGrace = 3 * probeEvery
)

// WriteProbe finds out whether the database takes writes, in the way that a commit
// would: by a write that is synced to its disk. It makes no write of its own while
// another connection is seen to commit, or while no caller asks.
type WriteProbe struct {
	store    *Store
	db       *sql.DB
	onChange func(err error)

	asked   atomic.Bool
	failing atomic.Pointer[error] // what Failing returns; nil: nothing

	turn      chan struct{} // holds a token; who takes it may use what follows
	checked   time.Time     // when the last check ended
	busySince time.Time     // since when each check found the database busy; zero: the last did not
	conn      *sql.Conn     // has its own view of what others commit; nil: to be opened
	version   int64         // the conn's data version at the last check
	closed    bool
}

// NewWriteProbe returns a probe of the store's database, with a connection of its own:
// the store's may be held by a batch that cannot be committed. onChange is called with
// the cause when writes begin to fail, when the cause changes from or to ErrBusy, and
// with nil when they succeed again.
func NewWriteProbe(s *Store, onChange func(err error)) (*WriteProbe, error) {
	db, err := openSQLite(s.Path(), writeParams(), 1)
	if err != nil {
		return nil, err
	}
	pool, err := db.DB()
	if err != nil {
		return nil, err
	}
	p := &WriteProbe{store: s, db: pool, onChange: onChange, turn: make(chan struct{}, 1)}
	p.turn <- struct{}{}
	return p, nil
}

// Failing returns what keeps writes from succeeding, and nil when they succeed or none
// was tried yet. It costs next to nothing, and makes Run check again soon.
func (p *WriteProbe) Failing() error {
	if !p.asked.Load() {
		p.asked.Store(true)
	}
	if err := p.failing.Load(); err != nil {
		return *err
	}
	return nil
}

// Check checks, unless another caller did so just now, and returns what Failing does
// then. A check that takes longer than ctx is a failure too. Errors: ErrDatabase, with
// ErrBusy or SQLite's own error.
func (p *WriteProbe) Check(ctx context.Context) error {
	select {
	case <-p.turn:
		defer func() { p.turn <- struct{}{} }()
	case <-ctx.Done():
		return fmt.Errorf("%w: %w: %w", ErrDatabase, ErrBusy, context.Cause(ctx))
	}
	if time.Since(p.checked) >= probeEvery/4 {
		p.check(ctx)
	}
	if err := p.failing.Load(); err != nil {
		return *err
	}
	return nil
}

// Run checks every second until ctx ends, while callers ask or writes fail.
func (p *WriteProbe) Run(ctx context.Context) error {
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if !p.asked.Swap(false) && p.failing.Load() == nil {
			continue
		}
		select {
		case <-p.turn:
			p.check(ctx)
			p.turn <- struct{}{}
		case <-ctx.Done():
			return nil
		}
	}
}

// Close closes the connection. No check follows.
func (p *WriteProbe) Close() error {
	<-p.turn
	defer func() { p.turn <- struct{}{} }()
	p.closed = true
	p.release()
	return p.db.Close()
}

// check tries to write and notes the outcome. The caller has the turn.
func (p *WriteProbe) check(ctx context.Context) {
	if p.closed {
		return
	}
	began := time.Now()
	err := p.try(ctx)
	if err != nil && ctx.Err() != nil {
		return // the caller left; that says nothing of the database
	}
	last := p.checked
	p.checked = time.Now()
	switch {
	case !errors.Is(err, ErrBusy):
		p.busySince = time.Time{}
	case p.busySince.IsZero() || began.Sub(last) > probeTrust: // the time between is unknown
		p.busySince = began
	}
	if errors.Is(err, ErrBusy) && p.checked.Sub(p.busySince) < busyGrace && p.failing.Load() == nil {
		p.asked.Store(true) // Run checks again
		return
	}
	p.note(err)
}

// note makes an outcome known.
func (p *WriteProbe) note(err error) {
	was := p.failing.Load()
	if err == nil {
		p.failing.Store(nil)
	} else {
		p.failing.Store(&err)
	}
	if (was == nil) != (err == nil) || was != nil && errors.Is(*was, ErrBusy) != errors.Is(err, ErrBusy) {
		p.onChange(err)
	}
}

// try returns nil when the database takes writes.
func (p *WriteProbe) try(ctx context.Context) error {
	recent := p.conn != nil && time.Since(p.checked) < probeTrust
	committed, err := p.committed(ctx)
	if err != nil {
		return p.failed(err)
	}
	if recent && committed {
		return nil
	}
	// It waits for the lock for probeWait. What follows is not cut off: the outcome of a
	// write that was cut off would be unknown.
	_, err = p.conn.ExecContext(context.WithoutCancel(ctx), `INSERT INTO meta (key, value) VALUES ('write_probe', ?1)
	ON CONFLICT (key) DO UPDATE SET value = excluded.value`, strconv.FormatInt(p.store.Now().UnixMilli(), 10))
	if err == nil {
		return nil
	}
	err = p.failed(err)
	if !errors.Is(err, ErrBusy) {
		return err
	}
	// There may have been no turn for this write because others are committing.
	if committed, cerr := p.committed(ctx); cerr == nil && committed {
		return nil
	}
	return err
}

// committed reports whether another connection has committed since the last call.
func (p *WriteProbe) committed(ctx context.Context) (bool, error) {
	if p.conn == nil {
		conn, err := p.db.Conn(ctx)
		if err != nil {
			return false, err
		}
		p.conn = conn
		if _, err := conn.ExecContext(ctx, fmt.Sprintf("PRAGMA busy_timeout = %d", probeWait)); err != nil {
			return false, err
		}
	}
	before := p.version
	err := p.conn.QueryRowContext(context.WithoutCancel(ctx), "PRAGMA data_version").Scan(&p.version)
	return p.version != before, err
}

// failed classifies an error. After one that says more than that the database is busy,
// the next check uses another connection: one that was opened while the file refused
// writes stays read-only.
func (p *WriteProbe) failed(err error) error {
	var se sqlite3.Error
	if errors.As(err, &se) && (se.Code == sqlite3.ErrBusy || se.Code == sqlite3.ErrLocked) {
		return fmt.Errorf("%w: %w: %w", ErrDatabase, ErrBusy, err)
	}
	p.release()
	return fmt.Errorf("%w: %w", ErrDatabase, err)
}

// release closes the connection.
func (p *WriteProbe) release() {
	if p.conn == nil {
		return
	}
	// The pool discards a connection that is reported as bad. Its own error says no more.
	_ = p.conn.Raw(func(any) error { return driver.ErrBadConn }) //nolint:errcheck // see above
	_ = p.conn.Close()                                           //nolint:errcheck // it has been closed by then
	p.conn = nil
}
