package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
)

// prepared keeps the writer's statements, prepared on the only writing connection. A
// statement that is first prepared inside a transaction belongs to that transaction and
// would be prepared again in each, which took a fifth of the worker's time. It belongs to
// the writer's goroutine.
type prepared struct {
	texts []string
	stmts map[string]*sql.Stmt // of those texts that are prepared
}

// newPrepared returns the statements with these texts and those of the writer.
func newPrepared(texts []string) prepared {
	return prepared{slices.Concat([]string{setSavepoint, undoSavepoint, releaseSavepoint}, texts), make(map[string]*sql.Stmt, len(texts)+3)}
}

// prepare prepares the missing statements. The pool has one connection, so no transaction
// of this process may be open meanwhile, and the writer prepares before it begins one.
//
// On Postgres there are none: pgx caches the statements of a connection.
func (p *prepared) prepare(ctx context.Context, db *sql.DB) error {
	if len(p.stmts) == len(p.texts) {
		return nil
	}
	for _, text := range p.texts {
		if p.stmts[text] != nil {
			continue
		}
		stmt, err := db.PrepareContext(ctx, text) //nolint:sqlclosecheck // close closes it
		if err != nil {
			return fmt.Errorf("prepare statement: %w", err)
		}
		p.stmts[text] = stmt
	}
	return nil
}

// close closes the statements.
func (p *prepared) close() error {
	var errs []error
	for _, stmt := range p.stmts {
		errs = append(errs, stmt.Close())
	}
	clear(p.stmts)
	return errors.Join(errs...)
}

// in returns a transaction that runs the prepared statements by their text.
func (p *prepared) in(tx *sql.Tx) preparedTx {
	return preparedTx{tx, p.stmts, make(map[string]*sql.Stmt, 16)}
}

type preparedTx struct {
	begun *sql.Tx
	stmts map[string]*sql.Stmt
	bound map[string]*sql.Stmt // those of stmts that the transaction has used
}

// stmt returns the prepared statement of a text for the transaction, or nil if there is
// none.
func (t preparedTx) stmt(ctx context.Context, text string) *sql.Stmt {
	if stmt := t.bound[text]; stmt != nil {
		return stmt
	}
	hot := t.stmts[text]
	if hot == nil {
		return nil
	}
	stmt := t.begun.StmtContext(context.WithoutCancel(ctx), hot)
	t.bound[text] = stmt
	return stmt
}

// ExecContext runs the statement; if it is not prepared, it is run as text.
func (t preparedTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if stmt := t.stmt(ctx, query); stmt != nil { //nolint:sqlclosecheck // the end of the transaction closes it
		return stmt.ExecContext(ctx, args...)
	}
	return t.begun.ExecContext(ctx, query, args...)
}

// QueryContext runs the query; if it is not prepared, it is run as text.
func (t preparedTx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if stmt := t.stmt(ctx, query); stmt != nil { //nolint:sqlclosecheck // the end of the transaction closes it
		return stmt.QueryContext(ctx, args...)
	}
	return t.begun.QueryContext(ctx, query, args...)
}

// QueryRowContext runs the query; if it is not prepared, it is run as text.
func (t preparedTx) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	if stmt := t.stmt(ctx, query); stmt != nil { //nolint:sqlclosecheck // the end of the transaction closes it
		return stmt.QueryRowContext(ctx, args...)
	}
	return t.begun.QueryRowContext(ctx, query, args...)
}
