// Package transfer copies a shop to another database, on SQLite or Postgres, and verifies the
// copy.
//
// The source is read as it is at one moment, and locked so that nothing writes to it meanwhile.
// The tables and columns come from the schema. Pages of rows are written and committed one
// after the other; a mark in the target says that it is unfinished until everything is
// verified. Then a mark in the source says that its shop has moved. A database with either mark
// is refused by every process of the service, so that two databases never sell the same stock.
package transfer

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"flashsale/internal/faultpoint"
	"flashsale/migrations"
)

// Config describes a copy.
type Config struct {
	// From and To are settings of databases: sqlite:PATH or the URL of a Postgres database.
	From, To string
	// Place is To as the source's mark shows it: without a password.
	Place string
	// Replace allows a target from which the same shop was moved before. All its rows are
	// deleted.
	Replace bool
	// Progress is called after each page; nil: it is not.
	Progress func(Progress)
}

// Progress is how far a copy is.
type Progress struct {
	Step  string // checking, copying or verifying
	Table string
	Rows  int64 // of the table so far
	Done  bool  // with the table
}

// Report is the result of a copy.
type Report struct {
	// Tables are the rows of each table on both sides.
	Tables []Compared
	// Ledger are the counts that must be equal in both databases.
	Ledger []Compared
	// Completed means that an earlier copy was complete and verified, and only its mark was
	// left. There is nothing else in the report then.
	Completed bool
}

// Compared is one part of the verification.
type Compared struct {
	Name             string
	Rows             int64  // in the source
	Sum              string // SHA-256 of the source's rows, in hexadecimal
	TargetRows       int64
	TargetSum        string
	FirstDifference  string // of the ledger; "": none
	differsInContent bool
}

// Equal reports whether source and target are the same.
func (c *Compared) Equal() bool { return !c.differsInContent }

// Equal reports whether everything is the same on both sides.
func (r *Report) Equal() bool {
	differs := func(c Compared) bool { return !c.Equal() }
	return !slices.ContainsFunc(r.Tables, differs) && !slices.ContainsFunc(r.Ledger, differs)
}

// ErrDiffers means that the copy is not equal to its source. The target keeps its mark.
var ErrDiffers = errors.New("order: the copy differs from its source")

// Fault is an error that one of the two databases causes.
type Fault struct {
	// Target means that the target causes it; otherwise it is the source.
	Target bool
	Cause  error
	Fix    string // the fix for the operator
}

// Error returns the cause and the fix, but not the database: the caller knows how the operator
// named it.
func (f *Fault) Error() string { return f.Cause.Error() + "; " + f.Fix }

// Unwrap returns the cause.
func (f *Fault) Unwrap() error { return f.Cause }

func sourceFault(cause error, fix string) error { return &Fault{Cause: cause, Fix: fix} }

func targetFault(cause error, fix string) error {
	return &Fault{Target: true, Cause: cause, Fix: fix}
}

// Copy copies a shop. The caller makes sure that no process starts to serve one of the
// databases meanwhile. After an interruption or a crash, the same call starts over, or
// finishes a copy that was verified. Errors: ErrDiffers, a *Fault, that of ctx.
func Copy(ctx context.Context, c Config) (_ Report, err error) {
	if c.Progress == nil {
		c.Progress = func(Progress) {}
	}
	source, err := openSource(ctx, c.From)
	if err != nil {
		return Report{}, err
	}
	defer func() { err = errors.Join(err, source.close()) }()
	target, err := openTarget(ctx, c.To)
	if err != nil {
		return Report{}, err
	}
	defer func() { err = errors.Join(err, target.close()) }()
	t := &transfer{Config: c, source: source, target: target}
	completed, err := t.admit(ctx)
	if err != nil {
		return Report{}, err
	}
	if completed {
		return Report{Completed: true}, t.unmark(ctx)
	}
	if err := t.check(ctx); err != nil {
		return Report{}, err
	}
	if err := t.prepare(ctx); err != nil {
		return Report{}, err
	}
	return t.run(ctx)
}

// transfer is one copy.
type transfer struct {
	Config
	source, target *database
	tables         []table
	id             string // of this copy, in both marks
	sums           map[string]sum
}

// admit decides whether this copy may begin. completed says that an earlier one only has to
// be unmarked.
func (t *transfer) admit(ctx context.Context) (completed bool, err error) {
	from, err := readMarks(ctx, t.source.conn)
	if err != nil {
		return false, err
	}
	to, err := readMarks(ctx, t.target.conn)
	if err != nil {
		return false, err
	}
	if from.copy != "" {
		return false, sourceFault(errUnfinished, "name the database that it is copied from, or finish that copy first")
	}
	if from.moved != "" {
		if to.complete && to.copy == from.moved {
			return true, nil
		}
		return false, sourceFault(fmt.Errorf("its shop was moved to %s", from.place), "name that database as the source")
	}
	empty, err := t.emptyTarget(ctx)
	if err != nil || empty {
		return false, err
	}
	if to.complete && to.lineage != from.lineage {
		return false, targetFault(errors.New("it is the complete copy of another shop, not yet in use"), "run the command that made it again, or name an empty database")
	}
	if to.copy != "" {
		return false, nil
	}
	if to.moved == "" {
		return false, targetFault(errors.New("it is not empty"), "name an empty database, or a new file")
	}
	if from.lineage != to.lineage {
		return false, targetFault(errors.New("it has the rows of another shop"), "name an empty database, or a new file")
	}
	if !t.Replace {
		return false, targetFault(fmt.Errorf("it still has the rows of this shop from before the move to %s", to.place),
			"add --replace to delete them, or name an empty database")
	}
	return false, nil
}

// emptyTarget compares both schemas, and reports whether the target has no rows of a shop.
func (t *transfer) emptyTarget(ctx context.Context) (empty bool, err error) {
	if t.tables, err = t.source.tables(ctx); err != nil {
		return false, err
	}
	other, err := t.target.tables(ctx)
	if err != nil {
		return false, err
	}
	if err := sameTables(t.tables, other); err != nil {
		return false, err
	}
	for i := range t.tables {
		t.tables[i].narrow(&other[i])
	}
	for _, one := range t.tables {
		if one.name == metaTable {
			continue
		}
		var some bool
		if err := t.target.conn.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM "+one.quoted()+")").Scan(&some); err != nil || some {
			return false, err
		}
	}
	return true, nil
}

// prepare marks the target as unfinished, and deletes its rows.
func (t *transfer) prepare(ctx context.Context) error {
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	t.id = hex.EncodeToString(id[:])
	if err := writeMark(ctx, t.target.conn, keyUnfinished, t.id+" "+stateCopying); err != nil {
		return targetFault(fmt.Errorf("mark the copy as unfinished: %w", err), "grant this role the rights of the tables' owner")
	}
	if err := t.target.empty(ctx, t.tables); err != nil {
		return targetFault(fmt.Errorf("delete its rows: %w", err), "grant this role the rights of the tables' owner")
	}
	return nil
}

// run copies and verifies every table, and sets the marks.
func (t *transfer) run(ctx context.Context) (Report, error) {
	if err := t.target.hurry(ctx); err != nil {
		return Report{}, err
	}
	t.sums = make(map[string]sum, len(t.tables))
	for i := range t.tables {
		if err := t.copyTable(ctx, &t.tables[i]); err != nil {
			return Report{}, err
		}
	}
	if err := t.target.settle(ctx, t.tables); err != nil {
		return Report{}, targetFault(err, "check the database's disk and log, and run the command again")
	}
	faultpoint.Reach("transfer.copied")
	report, err := t.verify(ctx)
	if err != nil {
		return Report{}, err
	}
	if !report.Equal() {
		return report, ErrDiffers
	}
	// From here on both databases have a mark, until the copy is complete on disk.
	if err := writeMark(ctx, t.target.conn, keyUnfinished, t.id+" "+stateComplete); err != nil {
		return report, err
	}
	faultpoint.Reach("transfer.verified")
	if err := t.source.markMoved(ctx, t.id+" "+t.Place); err != nil {
		return report, err
	}
	faultpoint.Reach("transfer.left")
	return report, t.unmark(context.WithoutCancel(ctx))
}

// unmark makes the target usable.
func (t *transfer) unmark(ctx context.Context) error {
	if _, err := t.target.conn.ExecContext(ctx, "DELETE FROM meta WHERE key = '"+keyUnfinished+"'"); err != nil {
		return fmt.Errorf("finish the copy: %w", err)
	}
	return nil
}

// latest refuses a schema that is not the newest one of this program.
func latest(version int64, dialect string) error {
	want, err := migrations.Latest(dialect)
	if err != nil {
		return err
	}
	if version != want {
		return fmt.Errorf("its schema is %d, and this program needs %d", version, want)
	}
	return nil
}
