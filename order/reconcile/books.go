package reconcile

import (
	"context"
	"fmt"

	"flashsale/internal/plural"
	"flashsale/order/schema"
	"flashsale/order/store"
	"flashsale/order/store/database"
	"flashsale/order/timeouts"
)

// booksPage is how many orders or buyers one statement sums up. A page takes some
// milliseconds, so that no read delays checkpoints of the database's log.
const booksPage = 5000

// books compares the counts of an item's row with its orders and with the rows of its
// buyers. It reads them in pages, each in its own transaction. Every transaction that
// touches the item increments its revision, so pages read at the same revision show the
// same state.
type books struct {
	row    schema.Item // the figures of the item
	change int64       // recorded changes of the total
	phase  int         // 0: orders, 1: buyers, 2: done
	after  string      // the last key of the previous page
	begun  bool

	held    int64 // units that orders hold
	due     int64 // those of them that await payment
	counted int64 // units that the rows of buyers add up to
	known   int64 // units that the orders of buyers with a row hold
	astray  int   // buyers whose row is wrong
	off     int64 // units by which these are wrong, added up
}

const (
	selectBooks = `SELECT initial, total, sold, awaiting, revision,
	(SELECT COALESCE(SUM(quantity), 0) FROM stock_changes WHERE item_id = ?1)`
	orderBooks = selectBooks + `, n, last, held, due FROM items,
	(SELECT COUNT(*) AS n, COALESCE(MAX(id), '') AS last, COALESCE(SUM(CASE WHEN holds THEN quantity ELSE 0 END), 0) AS held,
		COALESCE(SUM(CASE WHEN due THEN quantity ELSE 0 END), 0) AS due
	FROM (SELECT id, quantity, ` + store.OrdersHold + ` AS holds, status = 'confirmed' AND expires_at > 0 AS due
		FROM orders WHERE ` + store.OrdersAfter + ` LIMIT ?3) page) sums
	WHERE items.id = ?1`
	// LIMIT keeps SQLite from computing each buyer's sum again for each use of it.
	buyerBooks = selectBooks + `, n, last, counted, held, astray, off FROM items,
	(SELECT COUNT(*) AS n, COALESCE(MAX(user_id), '') AS last, COALESCE(SUM(counted), 0) AS counted, COALESCE(SUM(held), 0) AS held,
		COALESCE(SUM(CASE WHEN counted <> held THEN 1 ELSE 0 END), 0) AS astray, COALESCE(SUM(ABS(counted - held)), 0) AS off
	FROM (SELECT b.user_id AS user_id, b.quantity AS counted, (SELECT COALESCE(SUM(o.quantity), 0) FROM orders o
			WHERE o.user_id = b.user_id AND o.item_id = b.item_id AND ` + store.OrdersHold + `) AS held
		FROM buyers b WHERE b.item_id = ?1 AND b.user_id > ?2 ORDER BY b.user_id LIMIT ?3) page) sums
	WHERE items.id = ?1`
)

// done reports whether everything was compared.
func (b *books) done() bool { return b.phase == 2 }

// readBooks reads at most that many pages. It starts over, and reports moved, if the item
// has changed meanwhile.
func readBooks(ctx context.Context, s *store.Store, item string, b *books, pages int) (moved bool, err error) {
	for range pages {
		if b.done() {
			return false, nil
		}
		now, err := readBooksPage(ctx, s, item, b)
		if err != nil {
			return false, database.Wrap("add up item "+item, err)
		}
		if now != b.row {
			*b = books{}
			return true, nil
		}
	}
	return false, nil
}

// readBooksPage reads one page, and returns the item's counts at that time.
func readBooksPage(ctx context.Context, s *store.Store, item string, b *books) (now schema.Item, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	db, err := s.Reader().DB()
	if err != nil {
		return now, err
	}
	var change, held, due, counted, off int64
	var n, astray int
	to := []any{&now.Initial, &now.Total, &now.Sold, &now.Awaiting, &now.Revision, &change, &n, &b.after}
	query := orderBooks
	after := b.after
	if b.phase == 0 {
		to = append(to, &held, &due)
	} else {
		query = buyerBooks
		to = append(to, &counted, &held, &astray, &off)
	}
	if err := db.QueryRowContext(ctx, query, item, after, booksPage).Scan(to...); err != nil {
		return now, err
	}
	if !b.begun {
		b.begun, b.row, b.change = true, now, change
	}
	if b.phase == 0 {
		b.held, b.due = b.held+held, b.due+due
	} else {
		b.counted, b.known = b.counted+counted, b.known+held
		b.astray, b.off = b.astray+astray, b.off+off
	}
	if n < booksPage {
		b.phase, b.after = b.phase+1, ""
	}
	return now, nil
}

// inconsistent reports whether the item's counts differ from the sums of its orders.
func (b *books) inconsistent() bool { return b.row.Sold != b.held || b.row.Awaiting != b.due }

// drifts returns the differences within the database.
func (b *books) drifts() []Drift {
	var out []Drift
	if want := b.row.Initial + b.change; b.row.Total != want {
		out = append(out, Drift{
			Kind: DriftTotal, Expected: want, Found: b.row.Total, Units: distance(want, b.row.Total), Count: 1,
			Note: "the total and its record contradict each other; the correct one is unknown, so neither is changed",
		})
	}
	if b.inconsistent() {
		d := Drift{Kind: DriftSold, Expected: b.held, Found: b.row.Sold, Units: distance(b.held, b.row.Sold), Count: 1}
		if b.row.Awaiting != b.due {
			d.Note = fmt.Sprintf("%s awaiting payment, and the item counts %d", plural.Count(b.due, "unit"), b.row.Awaiting)
		}
		out = append(out, d)
	}
	astray, off := b.astray, b.off
	if missing := b.held - b.known; missing != 0 { // held by at least one buyer without a row
		astray, off = astray+1, off+distance(missing, 0)
	}
	if astray > 0 {
		out = append(out, Drift{Kind: DriftBuyers, Expected: b.held, Found: b.counted, Units: off, Count: astray})
	}
	return out
}
