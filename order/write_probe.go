package order

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mattn/go-sqlite3"
)

// ErrBusy says that a write got no turn in time: another process holds the database's
// lock, or the disk is slow. That may be over at any moment.
var ErrBusy = errors.New("order: database is busy")

const (
	// probeEvery is the time between two looks while somebody asks or writes fail.
	probeEvery = time.Second
	// probeTimeout bounds one look. It is shorter than the time that readiness gives
	// each of its checks.
	probeTimeout = 800 * time.Millisecond
	// probeTrust is how old the last look may be for a commit since then to show that
	// the database takes writes now.
	probeTrust = 2 * probeEvery
)

// WriteProbe finds out whether the database takes writes at present, in the way that
// a commit would: by a write that is synced to its disk. It saves that write where
// another process is seen to commit, and it makes none while nobody asks.
type WriteProbe struct {
	store    *Store
	db       *sql.DB
	onChange func(err error)

	asked   atomic.Bool
	refusal atomic.Pointer[error] // what the last look found; nil: writes succeed

	mu      sync.Mutex
	looked  time.Time
	err     error
	conn    *sql.Conn // has its own view of what others commit; nil: to be opened
	version int64     // the conn's data version at the last look
}

// NewWriteProbe returns a probe of the store's database, with a connection of its own:
// the store's may be held by a batch that cannot be committed. onChange is called when
// writes begin to fail, with the cause, and with nil when they succeed again.
func NewWriteProbe(s *Store, onChange func(err error)) (*WriteProbe, error) {
	db, err := openSQLite(s.file, writeParams(), 1)
	if err != nil {
		return nil, err
	}
	pool, err := db.DB()
	if err != nil {
		return nil, err
	}
	return &WriteProbe{store: s, db: pool, onChange: onChange}, nil
}

// Failing returns what kept the last write from succeeding, and nil when it succeeded
// or none was tried yet. It costs next to nothing, and has Run look again soon.
func (p *WriteProbe) Failing() error {
	if !p.asked.Load() {
		p.asked.Store(true)
	}
	if err := p.refusal.Load(); err != nil {
		return *err
	}
	return nil
}

// Check looks, unless another caller did so just now, and returns what kept the write
// from succeeding. Errors: ErrDatabase, with ErrBusy or SQLite's own error.
func (p *WriteProbe) Check(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.looked) < probeEvery/4 {
		return p.err
	}
	return p.look(ctx)
}

// Run looks every second until ctx ends, while somebody asks or writes fail.
func (p *WriteProbe) Run(ctx context.Context) error {
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if !p.asked.Swap(false) && p.refusal.Load() == nil {
			continue
		}
		if err := p.Check(ctx); err != nil && ctx.Err() != nil {
			return nil // what a look finds otherwise, Failing returns
		}
	}
}

// Close closes the connection.
func (p *WriteProbe) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return errors.Join(p.drop(), p.db.Close())
}

// look tries and notes the outcome. The caller holds the mutex.
func (p *WriteProbe) look(ctx context.Context) error {
	brief, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	err := p.try(brief)
	if err != nil && ctx.Err() != nil {
		return err // the caller left; that says nothing of the database
	}
	was := p.err
	p.looked, p.err = time.Now(), err
	if err == nil {
		p.refusal.Store(nil)
	} else {
		p.refusal.Store(&err)
	}
	if (was == nil) != (err == nil) {
		p.onChange(err)
	}
	return err
}

// try returns nil when the database takes writes.
func (p *WriteProbe) try(ctx context.Context) error {
	recent := p.conn != nil && time.Since(p.looked) < probeTrust
	committed, err := p.committed(ctx)
	if err != nil || recent && committed {
		return err
	}
	err = p.write(ctx)
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
			return false, fmt.Errorf("%w: open it: %w", ErrDatabase, err)
		}
		p.conn = conn
	}
	before := p.version
	// Another process's lock does not hinder a read, so this is not what takes time.
	err := p.conn.QueryRowContext(context.WithoutCancel(ctx), "PRAGMA data_version").Scan(&p.version)
	if err != nil {
		return false, errors.Join(fmt.Errorf("%w: read its version: %w", ErrDatabase, err), p.drop())
	}
	return p.version != before, nil
}

// write makes one small change durable.
func (p *WriteProbe) write(ctx context.Context) error {
	err := p.change(ctx)
	if err == nil {
		return nil
	}
	var se sqlite3.Error
	if errors.As(err, &se) && se.Code == sqlite3.ErrBusy || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w: %w", ErrDatabase, ErrBusy, err)
	}
	// The pool decides whether the connection can be used again.
	return errors.Join(fmt.Errorf("%w: %w", ErrDatabase, err), p.drop())
}

func (p *WriteProbe) change(ctx context.Context) error {
	tx, err := p.conn.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO meta (key, value) VALUES ('write_probe', ?1)
	ON CONFLICT (key) DO UPDATE SET value = excluded.value`, strconv.FormatInt(p.store.now().UnixMilli(), 10))
	if err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// drop gives the connection back to the pool.
func (p *WriteProbe) drop() error {
	if p.conn == nil {
		return nil
	}
	err := p.conn.Close()
	p.conn = nil
	if errors.Is(err, sql.ErrConnDone) {
		return nil // it was closed with the error that is being handled
	}
	return err
}
