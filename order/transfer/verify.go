package transfer

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
)

// ledger are queries whose results must be the same in both databases, by item.
var ledger = []struct{ name, query string }{
	{"stock of items", "SELECT id, initial, total, sold, awaiting FROM items ORDER BY id"},
	{"orders by status", "SELECT item_id, status, COUNT(*), CAST(SUM(quantity) AS BIGINT) FROM orders GROUP BY item_id, status ORDER BY item_id, status"},
	{"buyers' units", "SELECT item_id, COUNT(*), CAST(SUM(quantity) AS BIGINT) FROM buyers GROUP BY item_id ORDER BY item_id"},
	{"pending releases", "SELECT item_id, COUNT(*), CAST(SUM(quantity) AS BIGINT) FROM releases GROUP BY item_id ORDER BY item_id"},
	{"changes of stock", "SELECT item_id, COUNT(*), CAST(SUM(quantity) AS BIGINT) FROM stock_changes GROUP BY item_id ORDER BY item_id"},
	{"payments by outcome", "SELECT outcome, received_as, COUNT(*), CAST(SUM(amount_minor) AS BIGINT) FROM payments GROUP BY outcome, received_as ORDER BY outcome, received_as"},
}

// verify compares the target with the source. The source's rows were summed as they were read
// for the copy.
func (t *transfer) verify(ctx context.Context) (r Report, err error) {
	for i := range t.tables {
		one := &t.tables[i]
		s := newSumming(one)
		p := Progress{Step: "verifying", Table: one.name}
		err := eachPage(ctx, t.target.conn, one, func(page [][]any) error {
			p.Rows += int64(len(page))
			t.Progress(p)
			return s.add(page)
		})
		if err != nil {
			return r, err
		}
		p.Done = true
		t.Progress(p)
		from, to := t.sums[one.name], s.end()
		r.Tables = append(r.Tables, Compared{Name: one.name, Rows: from.rows, Sum: from.hash, TargetRows: to.rows, TargetSum: to.hash,
			differsInContent: from.rows != to.rows || from.hash != to.hash})
	}
	for _, l := range ledger {
		c, err := t.compare(ctx, l.query)
		if err != nil {
			return r, fmt.Errorf("compare the %s: %w", l.name, err)
		}
		c.Name = l.name
		r.Ledger = append(r.Ledger, c)
	}
	return r, nil
}

// compare runs a query on both databases, and compares the rows as they arrive.
func (t *transfer) compare(ctx context.Context, query string) (c Compared, err error) {
	var streams [2]*stream
	for i, db := range []*database{t.source, t.target} {
		rows, err := db.conn.QueryContext(ctx, query)
		if err != nil {
			return c, err
		}
		defer rows.Close() //nolint:errcheck,gocritic // its errors are Err's; there are two
		if streams[i], err = newStream(rows); err != nil {
			return c, err
		}
	}
	for {
		a, more, err := streams[0].next()
		b, others, oerr := streams[1].next()
		if err := errors.Join(err, oerr); err != nil {
			return c, err
		}
		if a != b && c.FirstDifference == "" {
			c.FirstDifference = fmt.Sprintf("%q in the source, %q in the target", a, b)
			c.differsInContent = true
		}
		if !more && !others {
			break
		}
	}
	c.Rows, c.Sum = streams[0].result()
	c.TargetRows, c.TargetSum = streams[1].result()
	return c, nil
}

// stream reads the rows of a query as texts.
type stream struct {
	rows   *sql.Rows
	values []any
	to     []any
	sum    [sha256.Size]byte
	n      int64
}

func newStream(rows *sql.Rows) (*stream, error) {
	columns, err := rows.Columns()
	if err != nil {
		return nil, err
	}
	s := &stream{rows: rows, values: make([]any, len(columns)), to: make([]any, len(columns))}
	for i := range s.to {
		s.to[i] = &s.values[i]
	}
	return s, nil
}

// next returns the next row; "" and false after the last one.
func (s *stream) next() (line string, more bool, err error) {
	if !s.rows.Next() {
		return "", false, s.rows.Err()
	}
	if err := s.rows.Scan(s.to...); err != nil {
		return "", false, err
	}
	line = fmt.Sprint(s.values)
	s.n++
	s.sum = sha256.Sum256(append(s.sum[:], line...))
	return line, true, nil
}

func (s *stream) result() (rows int64, sum string) { return s.n, hex.EncodeToString(s.sum[:]) }
