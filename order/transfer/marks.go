package transfer

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"flashsale/order/store"
)

// metaTable has the marks. They are not copied.
const metaTable = "meta"

// The keys of the marks in the table meta. Both values begin with the copy's id. The state of
// an unfinished copy follows, or the place to which the shop was moved.
const (
	keyUnfinished = store.MarkUnfinished
	keyMoved      = store.MarkMoved

	stateCopying  = "copying"
	stateComplete = "complete"
)

// noMarks is a condition on rows of meta.
const noMarks = "key NOT IN ('" + keyUnfinished + "', '" + keyMoved + "')"

var errUnfinished = errors.New("it is an unfinished copy of another database")

// querier is a connection or a pool.
type querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// marks are those of one database.
type marks struct {
	copy     string // id of the copy that is unfinished; "": none is
	complete bool   // that copy is verified
	moved    string // id of the copy to which the shop was moved; "": it was not
	place    string // of that copy
	lineage  string
}

func readMarks(ctx context.Context, db querier) (m marks, err error) {
	rows, err := db.QueryContext(ctx, "SELECT key, value FROM meta WHERE key IN ('"+keyUnfinished+"', '"+keyMoved+"', 'lineage')")
	if err != nil {
		return m, fmt.Errorf("read the marks of copies: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var key, value string
		if err := rows.Scan(&key, &value); err != nil {
			return m, fmt.Errorf("read the marks of copies: %w", err)
		}
		id, rest, _ := strings.Cut(value, " ")
		switch key {
		case keyUnfinished:
			m.copy, m.complete = id, rest == stateComplete
		case keyMoved:
			m.moved, m.place = id, rest
		default:
			m.lineage = value
		}
	}
	return m, rows.Err()
}

func writeMark(ctx context.Context, db querier, key, value string) error {
	_, err := db.ExecContext(ctx, "INSERT INTO meta (key, value) VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = excluded.value", key, value)
	return err
}

// Unusable means that no process may use a database, because it has the mark of a copy.
type Unusable struct {
	Cause string
	Fix   string // the fix for the operator
}

// Error returns the cause and the fix.
func (u *Unusable) Error() string { return u.Cause + "; " + u.Fix }

// CheckUsable returns an *Unusable error if the database is an unfinished copy, or if its shop
// was moved to another database. It needs the table meta.
func CheckUsable(ctx context.Context, db *sql.DB) error {
	m, err := readMarks(ctx, db)
	switch {
	case err != nil:
		return err
	case m.copy != "":
		return &Unusable{Cause: errUnfinished.Error(), Fix: "run the same flashsale migrate copy again, which starts over, or use the database it was copied from"}
	case m.moved != "":
		return &Unusable{Cause: "its shop was moved to " + m.place,
			Fix: "use that database; to move back, run flashsale migrate copy from it to this one with --replace"}
	}
	return nil
}
