package store

import (
	"context"
	"errors"
	"net/url"
	"testing"
	"time"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/order"
	"flashsale/order/ordertest"
)

// TestPostgres_SilentConnection: a firewall drops an idle connection without an error. The change
// that meets it is refused after a time, and the next one uses another connection.
func TestPostgres_SilentConnection(t *testing.T) {
	t.Parallel()
	address, err := url.Parse(ordertest.NewPostgres(t))
	if err != nil {
		t.Fatal(err)
	}
	link := redistest.NewProxy(t, address.Host)
	address.Host = link.Addr()
	s := openStore(t, address.String())
	change := func() error {
		return s.Change(await.Context(t), "change", func(context.Context, Conn, int64) error { return nil })
	}
	if err := change(); err != nil {
		t.Fatal(err)
	}
	// A connection is checked before its use if it was idle for a second.
	idle := time.NewTimer(1100 * time.Millisecond)
	defer idle.Stop()
	<-idle.C
	link.DropReplies(true)
	if err := change(); !errors.Is(err, order.ErrDatabase) {
		t.Errorf("without answers: %v, want ErrDatabase", err)
	}
	link.DropReplies(false)
	await.True(t, "a change by another connection", func() bool { return change() == nil })
}

// TestChanging_BoundsItsSession: the server ends a write transaction whose process has stopped, so
// that it does not keep its locks from all other processes.
func TestChanging_BoundsItsSession(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	if !s.Postgres() {
		t.Skip("skipped: SQLite has no sessions")
	}
	var limit string
	err := s.batchWriter.batch(await.Context(t), false, nil, func(ctx context.Context, g *group) error {
		return g.QueryRowContext(ctx, "SELECT current_setting('idle_in_transaction_session_timeout')").Scan(&limit)
	})
	if err != nil || limit != "15s" {
		t.Errorf("a write transaction may be idle for %q, %v; want 15s", limit, err)
	}
}

// TestPostgres_StatementTimeout: the server does not cancel the statements of a write transaction. A
// batch that takes longer than allowed would begin again without end.
func TestPostgres_StatementTimeout(t *testing.T) {
	t.Parallel()
	s := openStore(t, ordertest.NewPostgres(t)+"&statement_timeout=60000")
	var session, batch, change string
	read := func(ctx context.Context, c Conn, limit *string) error {
		return c.QueryRowContext(ctx, "SELECT current_setting('statement_timeout')").Scan(limit)
	}
	db, err := s.writeDB.DB()
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(
		read(await.Context(t), db, &session),
		s.batchWriter.batch(await.Context(t), false, nil, func(ctx context.Context, g *group) error { return read(ctx, g, &batch) }),
		s.Change(await.Context(t), "change", func(ctx context.Context, c Conn, _ int64) error { return read(ctx, c, &change) }),
	)
	if err != nil || session != "1min" || batch != "0" || change != "0" {
		t.Errorf("statement_timeout is %q in a session, %q in a batch and %q in a change, %v; want 1min, 0 and 0", session, batch, change, err)
	}
}
