package recovery

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"flashsale/internal/bucket"
	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/schema"
	"flashsale/order/store"
	"flashsale/order/store/database"
)

const (
	selectRecovered = `SELECT initial, (SELECT COALESCE(SUM(quantity), 0) FROM stock_changes WHERE item_id = ?1),
		total, sold, per_user_limit, opens_at, closes_at, control, version FROM items WHERE id = ?1`
	recoveredRow = `UPDATE items SET total = MAX(?1, sold), per_user_limit = ?2, opens_at = ?3, closes_at = ?4, control = ?5,
		version = MAX(version, ?6) + 1, sequence = MAX(sequence, ?7), revision = MAX(revision, ?8) + 1, behind = 0, freed = 0, updated_at = ?9
		WHERE id = ?10 RETURNING total, revision, total - initial - (SELECT COALESCE(SUM(quantity), 0) FROM stock_changes WHERE item_id = ?10)`
	noteRecoveredStock = `INSERT INTO stock_changes (item_id, quantity, reason, actor, idempotency_key, total_after, at)
		VALUES (?1, ?2, 'recovered from Redis', ?3, ?4, ?5, ?6)`
)

// lookTries bounds the reads of a sale that keeps changing through releases.
const lookTries = 100

// redis reads the sale in Redis, and the units that are neither left there nor sold in the
// database: those of queued orders, and those of closed orders that are not released there yet.
// Releases do not take the item's lock, so it reads until none happened meanwhile.
func (x *saleRecovery) redis(ctx context.Context) (err error) {
	if x.from == RecoverFromDatabase {
		x.live, err = inventory.StoppedSale(ctx, x.Redis, x.Partitions, x.behind.ItemID)
		if err != nil && !errors.Is(err, inventory.ErrIncomplete) {
			return err
		}
		x.live.Whole = false // with this decision the data in Redis does not matter
		x.outstanding, err = x.uncommitted(ctx)
		return err
	}
	for range lookTries {
		if x.live, err = inventory.StoppedSale(ctx, x.Redis, x.Partitions, x.behind.ItemID); err != nil {
			return err
		}
		pending, err := x.unitsToRelease(ctx)
		if err != nil {
			return err
		}
		after, err := inventory.StoppedSale(ctx, x.Redis, x.Partitions, x.behind.ItemID)
		if err != nil {
			return err
		}
		if after == x.live {
			queued, err := x.uncommitted(ctx)
			x.outstanding = pending + queued
			return err
		}
	}
	return fmt.Errorf("units of %s keep being released: %w", x.behind.ItemID, inventory.ErrUnavailable)
}

// unitsToRelease counts the units of closed orders that are not released in Redis yet. The database
// no longer counts them as sold, and Redis does not count them as left yet.
func (x *saleRecovery) unitsToRelease(ctx context.Context) (units int64, err error) {
	db, err := x.Store.Reader().DB()
	if err != nil {
		return 0, err
	}
	list, err := store.ReadReleases(ctx, db, store.SelectReleasesOfItem, x.behind.ItemID)
	if err != nil {
		return 0, database.Wrap("read releases of "+x.behind.ItemID, err)
	}
	keys := make([]inventory.EntryKey, len(list))
	for i := range list {
		keys[i] = inventory.EntryKey{Buyer: list[i].UserID, IdempotencyKey: list[i].IdempotencyKey}
	}
	entries, err := inventory.Entries(ctx, x.Redis, x.Partitions, x.behind.ItemID, keys)
	if err != nil {
		return 0, err
	}
	for i := range entries {
		if entries[i].Known && !entries[i].Returned {
			units += list[i].Quantity
		}
	}
	return units, nil
}

// finish makes the item's rows valid: it raises their revisions above those in Redis.
func (x *itemRecovery) finish(ctx context.Context) error {
	revisions := make(map[string]int64, len(x.sales))
	err := x.step(ctx, "finish the recovery of "+bucket.Item(x.sales[0].behind.ItemID), func(ctx context.Context, c database.Conn, now int64) error {
		rows := make([]schema.Item, len(x.sales))
		stocks := make([]stock, len(x.sales))
		var total int64
		for i, s := range x.sales {
			var first int64
			var err error
			if first, stocks[i], err = s.read(ctx, c, &rows[i]); err != nil {
				return err
			}
			total += first
		}
		x.terms(rows)
		divide(total, stocks)
		for i, s := range x.sales {
			revision, err := s.finish(ctx, c, &rows[i], stocks[i].total, now)
			if err != nil {
				return err
			}
			revisions[s.behind.ItemID] = revision
		}
		return nil
	})
	if err != nil {
		return err
	}
	x.HighWater.Committed(revisions)
	x.HighWater.Note(ctx)
	return nil
}

// read reads the row of a sale, and returns the units that it has in the ledger of the database, and its
// stock.
func (x *saleRecovery) read(ctx context.Context, c database.Conn, r *schema.Item) (ledger int64, _ stock, err error) {
	err = c.QueryRowContext(ctx, selectRecovered, x.behind.ItemID).
		Scan(&r.Initial, &ledger, &r.Total, &r.Sold, &r.PerUserLimit, &r.OpensAt, &r.ClosesAt, &r.Control, &r.Version)
	if err != nil {
		return 0, stock{}, err
	}
	ledger += r.Initial
	// In an interrupted move one bucket may have got units that the other one still has.
	s := stock{total: r.Total, sold: r.Sold, outstanding: x.outstanding, known: x.current(r) && (!x.live.Interrupted || len(x.sales) == 1)}
	switch {
	case x.current(r) && x.live.Version > r.Version:
		// A restock, a move between buckets or another change of the item was lost.
		s.total = x.live.Left + r.Sold + x.outstanding
	case !s.known:
		s.total = ledger // the row's total was raised for recreated orders
	}
	return ledger, s, nil
}

// current reports whether the sale in Redis has everything that its row has.
func (x *saleRecovery) current(r *schema.Item) bool {
	return x.live.Whole && x.live.Version >= r.Version
}

// terms sets the limit, the window and the state in the rows of the sales. A bucket whose data in
// Redis is lost gets those of the first bucket, or, if that one is lost, of one that was changed
// since the backup.
func (x *itemRecovery) terms(rows []schema.Item) {
	var lost []*schema.Item
	var of *schema.Item
	for i, s := range x.sales {
		r := &rows[i]
		if !s.current(r) {
			lost = append(lost, r)
			continue
		}
		was := *r
		if s.live.Version > r.Version {
			r.PerUserLimit, r.OpensAt, r.ClosesAt = s.live.PerUserLimit, order.ToMillis(s.live.OpensAt), order.ToMillis(s.live.ClosesAt)
			if s.live.Control != "" {
				r.Control = s.live.Control
			}
		}
		if of == nil && (i == 0 || *r != was) {
			of = r
		}
	}
	if of == nil {
		return
	}
	for _, r := range lost {
		r.PerUserLimit, r.OpensAt, r.ClosesAt, r.Control = of.PerUserLimit, of.OpensAt, of.ClosesAt, of.Control
	}
}

// stock is the stock of one sale.
type stock struct {
	total, sold int64
	outstanding int64 // units of queued orders, which are not sold in the database
	known       bool  // total has all units that were moved to and from other buckets
}

// divide sets the totals of the sales of an item whose stock in Redis is lost, for example with
// one master of a cluster. They get what the item's total leaves to them: units that they have
// given to other buckets since the backup are not sold there again. Units of a restock that only
// Redis knew of are not sold then. Queued orders get units first.
func divide(total int64, sales []stock) {
	first := -1
	for i := range sales {
		s := &sales[i]
		if s.known {
			total -= s.total
			continue
		}
		total -= s.sold
		if first < 0 {
			first = i
		}
	}
	if first < 0 {
		return
	}
	units := make([]int64, len(sales))
	give := func(i int, n int64) {
		n = max(min(n, total), 0)
		units[i] += n
		total -= n
	}
	for i := range sales {
		if s := &sales[i]; !s.known {
			give(i, s.outstanding)
		}
	}
	for i := range sales {
		if s := &sales[i]; !s.known {
			give(i, s.total-s.sold-units[i])
		}
	}
	give(first, total)
	for i := range sales {
		if s := &sales[i]; !s.known {
			s.total = s.sold + units[i]
		}
	}
}

// finish makes one row valid, and returns its revision.
func (x *saleRecovery) finish(ctx context.Context, c database.Conn, row *schema.Item, total, now int64) (revision int64, err error) {
	item := x.behind.ItemID
	var unexplained int64
	err = c.QueryRowContext(ctx, recoveredRow, total, row.PerUserLimit, row.OpensAt, row.ClosesAt, row.Control,
		x.live.Version, x.live.Sequence, x.behind.Redis, now, item).Scan(&x.report.TotalAfter, &revision, &unexplained)
	if err != nil {
		return 0, err
	}
	if unexplained != 0 {
		key := fmt.Sprintf("recover-%d", revision)
		if _, err := c.ExecContext(ctx, noteRecoveredStock, item, unexplained, x.By.Actor, key, x.report.TotalAfter, now); err != nil {
			return 0, err
		}
	}
	return revision, x.note(ctx, c, &x.report, now)
}

// note records a decision in the audit log.
func (x *itemRecovery) note(ctx context.Context, c database.Conn, r *RecoveredItem, now int64) error {
	return store.WriteAudit(ctx, c, &store.AuditRow{At: now, Actor: x.By.Actor, Action: order.ActionItemRecover, ItemID: r.ItemID, RequestID: x.By.RequestID,
		After: store.FactsJSON(map[string]any{
			"from": string(x.from), "recreated": r.Recreated, "cancelled": r.Cancelled,
			"discarded": r.Discarded, "reopened": r.Reopened, "stock_total": r.TotalAfter,
		})})
}

// uncommitted sums the units of queued orders that have no row. They stay queued, because
// the tasks of a stopped sale wait.
func (x *saleRecovery) uncommitted(ctx context.Context) (units int64, err error) {
	for ids := range slices.Chunk(slices.Collect(maps.Keys(x.queued)), recoverPage) {
		rows, err := store.Holding(ctx, x.Store, ids)
		if err != nil {
			return 0, err
		}
		for _, id := range ids {
			if _, committed := rows[id]; !committed {
				units += x.queued[id]
			}
		}
	}
	return units, nil
}
