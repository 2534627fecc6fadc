package order

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
)

// conn runs statements: a gorm transaction's connection, or a preparedTx.
type conn interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// prepared keeps the statements of the commit, prepared on the one writing
// connection. A statement first prepared inside a transaction belongs to that
// transaction and would be prepared again in each: that was a fifth of the
// worker's time.
type prepared struct {
	mu    sync.Mutex
	stmts map[string]*sql.Stmt
}

// prepare makes the statements that are missing. No transaction of this
// process may be open meanwhile on a pool of one connection, so the caller
// prepares before it begins.
func (p *prepared) prepare(ctx context.Context, db *sql.DB, texts []string) error {
	for _, text := range texts {
		if p.get(text) != nil {
			continue
		}
		// Not under the mutex: it waits for the connection, and a transaction on
		// the connection asks for statements.
		stmt, err := db.PrepareContext(ctx, text)
		if err != nil {
			return fmt.Errorf("prepare statement: %w", err)
		}
		if err := p.put(text, stmt); err != nil {
			return err
		}
	}
	return nil
}

// put keeps a statement, or closes it when another was quicker.
func (p *prepared) put(text string, stmt *sql.Stmt) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stmts[text] != nil {
		return stmt.Close()
	}
	p.stmts[text] = stmt
	return nil
}

func (p *prepared) get(text string) *sql.Stmt {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stmts[text]
}

// close closes the statements.
func (p *prepared) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, stmt := range p.stmts {
		errs = append(errs, stmt.Close())
	}
	clear(p.stmts)
	return errors.Join(errs...)
}

// preparedTx is a transaction that runs prepared statements by their text.
type preparedTx struct {
	tx *sql.Tx
	p  *prepared
}

// ExecContext runs the statement; one that was not prepared is run as text.
func (t preparedTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if stmt := t.p.get(query); stmt != nil {
		return t.tx.StmtContext(ctx, stmt).ExecContext(ctx, args...) //nolint:sqlclosecheck // the end of the transaction closes it
	}
	return t.tx.ExecContext(ctx, query, args...)
}

// QueryContext runs the query; one that was not prepared is run as text.
func (t preparedTx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if stmt := t.p.get(query); stmt != nil {
		return t.tx.StmtContext(ctx, stmt).QueryContext(ctx, args...) //nolint:sqlclosecheck // the end of the transaction closes it
	}
	return t.tx.QueryContext(ctx, query, args...)
}

// QueryRowContext runs the query; one that was not prepared is run as text.
func (t preparedTx) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	if stmt := t.p.get(query); stmt != nil {
		return t.tx.StmtContext(ctx, stmt).QueryRowContext(ctx, args...) //nolint:sqlclosecheck // the end of the transaction closes it
	}
	return t.tx.QueryRowContext(ctx, query, args...)
}

// transact runs fn in one transaction of prepared statements.
func (s *Store) transact(ctx context.Context, texts []string, fn func(c conn) error) (err error) {
	db, err := s.write.DB()
	if err != nil {
		return err
	}
	if err := s.hot.prepare(ctx, db, texts); err != nil {
		return err
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	if err := fn(preparedTx{tx, &s.hot}); err != nil {
		if rerr := tx.Rollback(); rerr != nil {
			err = errors.Join(err, fmt.Errorf("roll back: %w", rerr))
		}
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}
