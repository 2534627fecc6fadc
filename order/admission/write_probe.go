package admission

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"flashsale/order/store"
	"flashsale/order/store/database"
)

// ErrBusy means that a write could not get a lock of the database in time, or that the
// database is slow. This is usually temporary.
var ErrBusy = errors.New("order: database is busy")

const (
	// probeEvery is the time between two checks while Failing is called or writes fail.
	probeEvery = time.Second
	// probeWait is how long a check waits for a lock of another connection, in milliseconds.
	probeWait = 600
	// probeTrust is the age of the last check up to which a commit since then proves that
	// the database accepts writes now.
	probeTrust = 2 * probeEvery
	// busyGrace is how long all checks must fail before a busy database counts as one that
	// does not accept writes: a single commit may take longer than a check waits.
	busyGrace = 3 * probeEvery
)

// WriteProbe checks whether the database accepts writes: like a commit, it makes a write that
// is synced to the disk. It makes no write while Failing is not called, and on SQLite
// none while another connection commits.
type WriteProbe struct {
	store    *store.Store
	target   target
	onChange func(err error)

	asked   atomic.Bool
	failing atomic.Pointer[error] // the result of Failing; nil: no error

	turn      chan struct{} // holds a token; its holder may use the fields below, and target
	checked   time.Time     // when the last check ended
	busySince time.Time     // since when every check found the database busy; zero: the last one did not
	closed    bool
}

// target is a database as a probe uses it, with its own connection.
type target interface {
	// committed reports whether another connection is known to have committed since the last
	// call, on the connection of that call.
	committed(ctx context.Context) (bool, error)
	// write makes a small write that is synced to the disk. It waits for locks for probeWait.
	write(ctx context.Context, value string) error
	// busy reports whether an error says that the database is only busy.
	busy(err error) bool
	// release closes the connection; the next call opens another one.
	release()
	// close closes all connections, for the last time.
	close() error
}

// NewWriteProbe returns a probe of the store's database with its own connection, because
// the store's may be occupied by a batch that cannot be committed. onChange is called with
// the cause when writes start to fail, when the cause changes from or to ErrBusy, and with
// nil when they succeed again.
func NewWriteProbe(s *store.Store, onChange func(err error)) (*WriteProbe, error) {
	open := newSQLiteTarget
	if s.Postgres() {
		open = newPostgresTarget
	}
	t, err := open(s)
	if err != nil {
		return nil, err
	}
	p := &WriteProbe{store: s, target: t, onChange: onChange, turn: make(chan struct{}, 1)}
	p.turn <- struct{}{}
	return p, nil
}

// Failing returns why writes fail, and nil if they succeed or none was tried yet. It is
// cheap, and makes Run check again soon.
func (p *WriteProbe) Failing() error {
	if !p.asked.Load() {
		p.asked.Store(true)
	}
	if err := p.failing.Load(); err != nil {
		return *err
	}
	return nil
}

// Check checks, unless another caller has just done so, and returns the new result of
// Failing. A check that takes longer than ctx is a failure, too. Errors: database.ErrUnavailable, with
// ErrBusy or the database's own error.
func (p *WriteProbe) Check(ctx context.Context) error {
	select {
	case <-p.turn:
		defer func() { p.turn <- struct{}{} }()
	case <-ctx.Done():
		return fmt.Errorf("%w: %w: %w", database.ErrUnavailable, ErrBusy, context.Cause(ctx))
	}
	if time.Since(p.checked) >= probeEvery/4 {
		p.check(ctx)
	}
	if err := p.failing.Load(); err != nil {
		return *err
	}
	return nil
}

// Run checks every second until ctx ends, while Failing is called or writes fail.
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

// Close closes the connection. There are no checks after it.
func (p *WriteProbe) Close() error {
	<-p.turn
	defer func() { p.turn <- struct{}{} }()
	p.closed = true
	return p.target.close()
}

// check tries to write and records the result. The caller has the turn.
func (p *WriteProbe) check(ctx context.Context) {
	if p.closed {
		return
	}
	began := time.Now()
	err := p.try(ctx)
	if err != nil && ctx.Err() != nil {
		return // the caller cancelled it, which proves nothing about the database
	}
	last := p.checked
	p.checked = time.Now()
	switch {
	case !errors.Is(err, ErrBusy):
		p.busySince = time.Time{}
	case p.busySince.IsZero() || began.Sub(last) > probeTrust: // the time between them is unknown
		p.busySince = began
	}
	if errors.Is(err, ErrBusy) && p.checked.Sub(p.busySince) < busyGrace && p.failing.Load() == nil {
		p.asked.Store(true) // Run checks again
		return
	}
	p.note(err)
}

// note publishes a result.
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

// try returns nil if the database accepts writes.
func (p *WriteProbe) try(ctx context.Context) error {
	recent := time.Since(p.checked) < probeTrust
	committed, err := p.target.committed(ctx)
	if err != nil {
		return p.failed(err)
	}
	if recent && committed {
		return nil
	}
	err = p.target.write(ctx, strconv.FormatInt(p.store.Now().UnixMilli(), 10))
	if err == nil {
		return nil
	}
	err = p.failed(err)
	if !errors.Is(err, ErrBusy) {
		return err
	}
	// Other connections' commits may have kept this write from its turn.
	if committed, cerr := p.target.committed(ctx); cerr == nil && committed {
		return nil
	}
	return err
}

// failed classifies an error. After any error except a busy database, the next check uses
// another connection: one that was opened while the database refused writes may stay
// read-only.
func (p *WriteProbe) failed(err error) error {
	if p.target.busy(err) {
		return fmt.Errorf("%w: %w: %w", database.ErrUnavailable, ErrBusy, err)
	}
	p.target.release()
	return fmt.Errorf("%w: %w", database.ErrUnavailable, err)
}
