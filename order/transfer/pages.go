package transfer

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"flashsale/internal/faultpoint"
)

// pageRows is the number of rows that are read, and committed, together.
const pageRows = 5000

// eachPage reads a table in the order of its key, a page after the other.
func eachPage(ctx context.Context, db querier, t *table, fn func(page [][]any) error) error {
	var last []any
	for {
		page, err := readPage(ctx, db, t, last)
		if err != nil {
			return fmt.Errorf("read %s: %w", t.name, err)
		}
		if len(page) == 0 {
			return nil
		}
		last = last[:0:0]
		for _, n := range t.key {
			last = append(last, page[len(page)-1][n])
		}
		if err := fn(page); err != nil {
			return err
		}
		if len(page) < pageRows {
			return nil
		}
	}
}

// readPage reads the rows after a key.
func readPage(ctx context.Context, db querier, t *table, after []any) (page [][]any, err error) {
	var where []string
	if t.name == metaTable {
		where = append(where, noMarks)
	}
	if len(after) > 0 {
		places := make([]string, len(after))
		for i := range after {
			places[i] = "?" + strconv.Itoa(i+1)
		}
		where = append(where, "("+list(t.keyNames())+") > ("+strings.Join(places, ", ")+")")
	}
	query := "SELECT " + list(t.names()) + " FROM " + t.quoted()
	if len(where) > 0 {
		query += " WHERE " + strings.Join(where, " AND ")
	}
	rows, err := db.QueryContext(ctx, query+" ORDER BY "+list(t.keyNames())+" LIMIT "+strconv.Itoa(pageRows), after...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	to := make([]any, len(t.columns))
	for rows.Next() {
		row := make([]any, len(t.columns))
		for i := range row {
			to[i] = &row[i]
		}
		if err := rows.Scan(to...); err != nil {
			return nil, err
		}
		page = append(page, row)
	}
	return page, rows.Err()
}

// sum describes the rows of a table in the order of its key.
type sum struct {
	rows int64
	hash string
	high int64 // of a counted table: its highest number
}

// summing computes a sum.
type summing struct {
	table *table
	hash  hash.Hash
	buf   []byte
	sum
}

func newSumming(t *table) *summing { return &summing{table: t, hash: sha256.New()} }

// add adds the rows of a page. Every value begins with its type, and texts with their length,
// so that different rows have different bytes.
func (s *summing) add(page [][]any) error {
	s.buf = s.buf[:0]
	for _, row := range page {
		for i, v := range row {
			switch v := v.(type) {
			case int64:
				s.buf = binary.BigEndian.AppendUint64(append(s.buf, 'i'), uint64(v))
			case string:
				s.buf = binary.BigEndian.AppendUint64(append(s.buf, 's'), uint64(len(v)))
				s.buf = append(s.buf, v...)
			default:
				return fmt.Errorf("%s.%s of the row with %s has the unexpected type %T", s.table.name, s.table.columns[i].name, s.table.describeRow(row), v)
			}
		}
		if s.table.counted {
			number, _ := row[s.table.key[0]].(int64)
			s.high = max(s.high, number)
		}
	}
	s.rows += int64(len(page))
	_, err := s.hash.Write(s.buf)
	return err
}

func (s *summing) end() sum {
	s.sum.hash = hex.EncodeToString(s.hash.Sum(nil))
	return s.sum
}

// copyTable copies a table. The next page is read while one is written.
func (t *transfer) copyTable(ctx context.Context, one *table) error {
	if one.name == metaTable {
		// The migration has written rows of its own.
		if _, err := t.target.conn.ExecContext(ctx, "DELETE FROM meta WHERE key <> '"+keyUnfinished+"'"); err != nil {
			return err
		}
	}
	read := newSumming(one)
	pages := make(chan [][]any, 1)
	group, both := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer close(pages)
		return eachPage(both, t.source.conn, one, func(page [][]any) error {
			if err := read.add(page); err != nil {
				return sourceFault(err, "correct that row")
			}
			select {
			case pages <- page:
				return nil
			case <-both.Done():
				return both.Err()
			}
		})
	})
	group.Go(func() error { return t.write(both, one, pages) })
	if err := group.Wait(); err != nil {
		return err
	}
	t.sums[one.name] = read.end()
	return t.continueCounter(ctx, one)
}

// write writes the pages of a table.
func (t *transfer) write(ctx context.Context, one *table, pages <-chan [][]any) error {
	p := Progress{Step: "copying", Table: one.name}
	for page := range pages {
		if err := t.target.dialect.insert(ctx, t.target.conn, one, page); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return targetFault(fmt.Errorf("write %s: %w", one.name, err), "correct the cause, and run the command again, which starts over")
		}
		p.Rows += int64(len(page))
		t.Progress(p)
		faultpoint.Reach("transfer.copying")
	}
	if ctx.Err() == nil {
		p.Done = true
		t.Progress(p)
	}
	return nil
}

// continueCounter makes the target assign numbers above those that the source has assigned,
// also to rows that are deleted.
func (t *transfer) continueCounter(ctx context.Context, one *table) error {
	if !one.counted {
		return nil
	}
	n, err := t.source.dialect.counter(ctx, t.source.conn, one)
	if err == nil {
		if n = max(n, t.sums[one.name].high); n > 0 {
			err = t.target.dialect.count(ctx, t.target.conn, one, n)
		}
	}
	if err != nil {
		return fmt.Errorf("copy the last number of %s: %w", one.name, err)
	}
	return nil
}

var _ querier = (*sql.Conn)(nil)
