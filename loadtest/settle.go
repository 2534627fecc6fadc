package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // to read the service's database
	_ "github.com/mattn/go-sqlite3"    // to read the service's database

	"flashsale/internal/postgresurl"
)

// settled is the state of the sale once it is quiet, or when waiting ended.
type settled struct {
	rows   []row
	ledger *ledger       // nil: could not be read
	drain  time.Duration // from the crowd's last answer until every acknowledged order had a row
	all    bool          // every acknowledged order is a row
	notes  []string      // what went wrong on the way
}

// ledgerPatience bounds the wait for the ledger to agree with rows that are complete.
const ledgerPatience = 5 * time.Second

// waitSettled polls until every acknowledged order has a row, and then until the ledger
// agrees with the rows: purchases whose answers were lost may still be under way. It waits
// for neither longer than the timeout; the verdict counts the orders that are missing then.
func waitSettled(ctx context.Context, o *observations, item string, src source, ledgers *api, timeout time.Duration, live *counters) (*settled, error) {
	want := make(map[string]bool)
	for i := range o.wishes {
		for _, id := range o.wishes[i].orders {
			want[id] = true
		}
	}
	s := new(settled)
	start := time.Now()
	every := 10 * time.Millisecond
	if _, slow := src.(apiSource); slow {
		every = 250 * time.Millisecond
	}
	err := poll(ctx, timeout, every, func() (bool, error) {
		n, err := src.count(ctx, item)
		if err != nil {
			return false, err
		}
		live.persisted.Store(max(n, 0))
		if n >= 0 && n < int64(len(want)) {
			return false, nil
		}
		if s.rows, err = src.rows(ctx, item); err != nil {
			return false, err
		}
		s.all = countPresent(s.rows, want) == len(want)
		return s.all, nil
	})
	s.drain = time.Since(start)
	if err != nil && !errors.Is(err, errPollTimeout) {
		return nil, err
	}
	err = poll(ctx, min(timeout, ledgerPatience), 50*time.Millisecond, func() (bool, error) {
		rows, err := src.rows(ctx, item)
		if err != nil {
			return false, err
		}
		s.rows = rows
		live.persisted.Store(int64(len(rows)))
		l, err := ledgers.ledger(ctx, item)
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				return false, cause
			}
			s.ledger, s.notes = nil, []string{err.Error()}
			return false, nil // the service may be busy; the timeout bounds this
		}
		s.ledger, s.notes = l, nil
		return l.agrees(o.stock, units(rows)), nil
	})
	if err != nil && !errors.Is(err, errPollTimeout) {
		return nil, err
	}
	return s, nil
}

func countPresent(rows []row, want map[string]bool) int {
	n := 0
	for i := range rows {
		if want[rows[i].ID] {
			n++
		}
	}
	return n
}

// units sums the units of the rows that are not rejected.
func units(rows []row) (n int64) {
	for i := range rows {
		if !rows[i].rejected() {
			n += rows[i].Quantity
		}
	}
	return n
}

// observe groups the crowd's answers by purchase.
func observe(p *plan, r *result) *observations {
	o := &observations{stock: p.stock, limit: p.limit, quantity: p.quantity, wishes: make([]wish, len(p.purchases)), answers: r.counts()}
	for i := range p.purchases {
		o.wishes[i] = wish{buyer: p.buyers[p.purchases[i].buyer], key: p.purchases[i].key}
	}
	for i := range p.shots {
		w, a := &o.wishes[p.shots[i].purchase], &r.outcomes[i].answer
		switch a.kind {
		case kindAccepted:
			if a.order != "" && (len(w.orders) == 0 || w.orders[0] != a.order) {
				w.orders = append(w.orders, a.order)
			}
		case kindRefused:
			w.refused = a.code
			if w.refused == "" {
				w.refused = "refused"
			}
		case kindUnknown:
			w.unanswered = answerCount{Status: a.status, Code: a.code}.Name()
		case kindBusy:
			// Given up: the outcome is unknown, so nothing can be checked.
		}
		if a.fault != "" {
			w.fault = a.fault
		}
	}
	return o
}

// source reads the orders of a finished run.
type source interface {
	// count is the number of rows of the item, or more cheaply a lower bound of 0.
	count(ctx context.Context, item string) (int64, error)
	rows(ctx context.Context, item string) ([]row, error)
	// name describes the source, for people.
	name() string
	close() error
}

// sqlSource reads the database without the service.
type sqlSource struct {
	setting string // as for --db
	db      *sql.DB
}

// openSQLite opens the file read-only, so that the check cannot change the database.
func openSQLite(ctx context.Context, path string) (*sqlSource, error) {
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	dsn := url.URL{Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath(), RawQuery: "mode=ro&_busy_timeout=5000&_query_only=true"}
	return openSQL(ctx, "sqlite3", dsn.String(), "sqlite:"+path)
}

// openSQL opens a database. Its name in reports and errors has no password.
func openSQL(ctx context.Context, driver, dsn, setting string) (*sqlSource, error) {
	s := &sqlSource{setting: postgresurl.Redact(setting)}
	var err error
	if s.db, err = sql.Open(driver, dsn); err != nil {
		return nil, fmt.Errorf("open database %s: %w", s.setting, err)
	}
	if err := s.db.PingContext(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open database %s: %w", s.setting, err), s.db.Close())
	}
	return s, nil
}

func (s *sqlSource) name() string { return "the database, " + s.setting }

func (s *sqlSource) close() error { return s.db.Close() }

// ofItem selects the orders of an item, and of its buckets: their ids are the item's, a point and a
// number, so they are before the item's with a slash, the next character.
const ofItem = `item_id = $1 OR item_id > $1 || '.' AND item_id < $1 || '/'`

func (s *sqlSource) count(ctx context.Context, item string) (n int64, err error) {
	if err := s.db.QueryRowContext(ctx, `SELECT count(*) FROM orders WHERE `+ofItem, item).Scan(&n); err != nil {
		return 0, fmt.Errorf("count orders: %w", err)
	}
	return n, nil
}

func (s *sqlSource) rows(ctx context.Context, item string) (out []row, err error) {
	found, err := s.db.QueryContext(ctx, `SELECT id, user_id, quantity, unit_price_minor, status, idempotency_key FROM orders WHERE `+ofItem, item)
	if err != nil {
		return nil, fmt.Errorf("read orders: %w", err)
	}
	defer func() { err = errors.Join(err, found.Close()) }()
	for found.Next() {
		var r row
		if err := found.Scan(&r.ID, &r.UserID, &r.Quantity, &r.Price, &r.Status, &r.Key); err != nil {
			return nil, fmt.Errorf("read orders: %w", err)
		}
		out = append(out, r)
	}
	if err := found.Err(); err != nil {
		return nil, fmt.Errorf("read orders: %w", err)
	}
	return out, nil
}

// apiSource reads through the service's own API, if its database cannot be reached. It
// relies on the service to report its rows correctly.
type apiSource struct{ a *api }

func (s apiSource) name() string { return "the API's order list and ledger" }

func (s apiSource) close() error { s.a.close(); return nil }

// count has no cheap form in the API; the caller then reads the rows.
func (s apiSource) count(context.Context, string) (int64, error) { return -1, nil }

func (s apiSource) rows(ctx context.Context, item string) ([]row, error) {
	return s.a.orders(ctx, item)
}

// openSource opens the database if it is one that can be read from here, and
// the API otherwise.
func openSource(ctx context.Context, db string, target *api) (source, error) {
	if path, ok := strings.CutPrefix(db, "sqlite:"); ok {
		return openSQLite(ctx, path)
	}
	if postgresurl.Is(db) {
		return openSQL(ctx, "pgx", db, db)
	}
	return apiSource{target}, nil
}
