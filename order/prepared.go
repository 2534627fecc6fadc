package order

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// conn runs statements: a transaction of the writer, or the reading connections.
type conn interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// prepared keeps the statements of the writer, prepared on the one writing
// connection. A statement first prepared inside a transaction belongs to that
// transaction and would be prepared again in each: that was a fifth of the
// worker's time. It belongs to the writer's goroutine.
type prepared map[string]*sql.Stmt

// prepare makes the statements that are missing. No transaction of this
// process may be open meanwhile on a pool of one connection, so the writer
// prepares before it begins.
func (p prepared) prepare(ctx context.Context, db *sql.DB) error {
	if len(p) == len(hotTexts) {
		return nil
	}
	for _, text := range hotTexts {
		if p[text] != nil {
			continue
		}
		stmt, err := db.PrepareContext(ctx, text) //nolint:sqlclosecheck // close closes it
		if err != nil {
			return fmt.Errorf("prepare statement: %w", err)
		}
		p[text] = stmt
	}
	return nil
}

// close closes the statements.
func (p prepared) close() error {
	var errs []error
	for _, stmt := range p {
		errs = append(errs, stmt.Close())
	}
	clear(p)
	return errors.Join(errs...)
}

// in is a transaction that runs the prepared statements by their text.
func (p prepared) in(tx *sql.Tx) preparedTx {
	return preparedTx{tx, p, make(map[string]*sql.Stmt, 16)}
}

type preparedTx struct {
	tx    *sql.Tx
	p     prepared
	bound map[string]*sql.Stmt // those of p that the transaction has used
}

// stmt is the statement of a text in the transaction; nil: none is prepared.
func (t preparedTx) stmt(ctx context.Context, text string) *sql.Stmt {
	if stmt := t.bound[text]; stmt != nil {
		return stmt
	}
	hot := t.p[text]
	if hot == nil {
		return nil
	}
	stmt := t.tx.StmtContext(context.WithoutCancel(ctx), hot)
	t.bound[text] = stmt
	return stmt
}

// ExecContext runs the statement; one that was not prepared is run as text.
func (t preparedTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if stmt := t.stmt(ctx, query); stmt != nil { //nolint:sqlclosecheck // the end of the transaction closes it
		return stmt.ExecContext(ctx, args...)
	}
	return t.tx.ExecContext(ctx, query, args...)
}

// QueryContext runs the query; one that was not prepared is run as text.
func (t preparedTx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if stmt := t.stmt(ctx, query); stmt != nil { //nolint:sqlclosecheck // the end of the transaction closes it
		return stmt.QueryContext(ctx, args...)
	}
	return t.tx.QueryContext(ctx, query, args...)
}

// QueryRowContext runs the query; one that was not prepared is run as text.
func (t preparedTx) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	if stmt := t.stmt(ctx, query); stmt != nil { //nolint:sqlclosecheck // the end of the transaction closes it
		return stmt.QueryRowContext(ctx, args...)
	}
	return t.tx.QueryRowContext(ctx, query, args...)
}
