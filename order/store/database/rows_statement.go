package database

import (
	"context"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// chunkSizes are the numbers of rows for which a statement is prepared on SQLite. A batch of
// any size is split into these sizes, so that each statement is prepared once: preparing a
// new text for every batch length took a sixth of the worker's time.
var chunkSizes = [...]int{256, 64, 16, 4, 1}

// RowsStatement is a statement for several rows, mostly an INSERT. SQLite prepares it in several sizes; Postgres
// gets one array for each column, so that one text serves any number of rows.
type RowsStatement struct {
	columns  int
	text     [len(chunkSizes)]string
	postgres string
	integer  []bool // the columns that are integers; the others are texts
}

// NewRowsStatement returns a statement that begins with head and ends with tail. values are
// those of a row: the type of one that varies, text or bigint, or a literal.
func NewRowsStatement(head, values, tail string) *RowsStatement {
	s := &RowsStatement{}
	var selected, names, arrays []string
	for _, value := range strings.Fields(values) {
		if value != "text" && value != "bigint" {
			selected = append(selected, value)
			continue
		}
		s.columns++
		n := strconv.Itoa(s.columns)
		selected, names = append(selected, "c"+n), append(names, "c"+n)
		arrays = append(arrays, "$"+n+"::"+value+"[]")
		s.integer = append(s.integer, value == "bigint")
	}
	for i, n := range chunkSizes {
		s.text[i] = head + " VALUES " + s.rows(n, selected) + " " + tail
	}
	s.postgres = head + " SELECT " + strings.Join(selected, ", ") + " FROM unnest(" + strings.Join(arrays, ", ") + ") AS list (" +
		strings.Join(names, ", ") + ") " + tail
	return s
}

// rows returns the values of n rows, with a numbered placeholder for each that varies.
func (s *RowsStatement) rows(n int, selected []string) string {
	var b strings.Builder
	mark := 0
	for row := range n {
		for i, value := range selected {
			switch {
			case i > 0:
				b.WriteString(", ")
			case row > 0:
				b.WriteString(", (")
			default:
				b.WriteString("(")
			}
			if value[0] == 'c' {
				mark++
				value = "?" + strconv.Itoa(mark)
			}
			b.WriteString(value)
		}
		b.WriteString(")")
	}
	return b.String()
}

// Columns returns the number of values of a row.
func (s *RowsStatement) Columns() int { return s.columns }

// Texts returns the texts of the statement on SQLite, which a writer keeps prepared.
func (s *RowsStatement) Texts() []string { return s.text[:] }

// Queue adds the statement over args to a round trip on Postgres; see [Tx.Pipeline].
func (s *RowsStatement) Queue(b *pgx.Batch, args []any) *pgx.QueuedQuery {
	return b.Queue(s.postgres, s.arrays(args)...)
}

// Exec runs the statement over args, which hold the values of the rows, and returns the
// number of rows written.
func (s *RowsStatement) Exec(ctx context.Context, c Conn, args []any) (int64, error) {
	if tx, ok := c.(*Tx); ok && tx.Postgres() {
		if len(args) == 0 {
			return 0, nil
		}
		return Changed(c.ExecContext(ctx, s.postgres, s.arrays(args)...))
	}
	var written int64
	for i, n := range chunkSizes {
		for size := n * s.columns; len(args) >= size; args = args[size:] {
			k, err := Changed(c.ExecContext(ctx, s.text[i], args[:size]...))
			if err != nil {
				return written, err
			}
			written += k
		}
	}
	return written, nil
}

// arrays returns the columns of rows.
func (s *RowsStatement) arrays(args []any) []any {
	columns := make([]any, s.columns)
	rows := len(args) / s.columns
	for col := range columns {
		if s.integer[col] {
			values := make([]int64, rows)
			for row := range values {
				values[row] = args[row*s.columns+col].(int64)
			}
			columns[col] = values
			continue
		}
		values := make([]string, rows)
		for row := range values {
			values[row] = args[row*s.columns+col].(string)
		}
		columns[col] = values
	}
	return columns
}
