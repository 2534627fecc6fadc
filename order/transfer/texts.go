package transfer

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"
)

// maxFindings bounds the values that one error names.
const maxFindings = 10

// check finds values that the target cannot store, before anything is written. SQLite stores
// any value in any column, and any bytes in a text; Postgres does not.
func (t *transfer) check(ctx context.Context) error {
	_, fromSQLite := t.source.dialect.(sqlite)
	_, toPostgres := t.target.dialect.(pg)
	if !fromSQLite || !toPostgres {
		return nil
	}
	var found []string
	for i := range t.tables {
		one := &t.tables[i]
		p := Progress{Step: "checking", Table: one.name}
		err := eachPage(ctx, t.source.conn, one, func(page [][]any) error {
			for _, row := range page {
				if found = one.refused(found, row); len(found) > maxFindings {
					return errTooMany
				}
			}
			p.Rows += int64(len(page))
			t.Progress(p)
			return nil
		})
		if err != nil && !errors.Is(err, errTooMany) {
			return err
		}
		p.Done = true
		t.Progress(p)
	}
	if len(found) == 0 {
		return nil
	}
	more := ""
	if len(found) > maxFindings {
		found, more = found[:maxFindings], "; and more"
	}
	return sourceFault(fmt.Errorf("values that Postgres cannot store: %s%s", strings.Join(found, "; "), more),
		"correct them in the source, and run the command again")
}

var errTooMany = errors.New("transfer: enough values found")

// refused adds the values of a row that Postgres cannot store.
func (t *table) refused(found []string, row []any) []string {
	for i, v := range row {
		if what := t.columns[i].refused(v); what != "" {
			found = append(found, fmt.Sprintf("%s.%s of the row with %s %s", t.name, t.columns[i].name, t.describeRow(row), what))
		}
	}
	return found
}

// refused says why Postgres cannot store a value in a column; "": it can.
func (c column) refused(v any) string {
	switch v := v.(type) {
	case string:
		switch {
		case c.kind != text:
			return "is a text and not an integer"
		case strings.IndexByte(v, 0) >= 0:
			return "contains a NUL byte"
		case !utf8.ValidString(v):
			return "is not valid UTF-8"
		}
	case int64:
		switch {
		case c.kind == text:
			return "is an integer and not a text"
		case c.kind == small && (v < math.MinInt16 || v > math.MaxInt16):
			return fmt.Sprintf("is %d, which is not a flag", v)
		}
	default:
		return fmt.Sprintf("has the type %T", v)
	}
	return ""
}
