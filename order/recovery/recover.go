package recovery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"flashsale/internal/bucket"
	"flashsale/inventory"
	"flashsale/inventory/accepted"
	"flashsale/order"
	"flashsale/order/schema"
	"flashsale/order/store"
	"flashsale/order/store/database"
)

// RecoverFrom is an operator's decision which side is right about a stopped sale.
type RecoverFrom string

const (
	// RecoverFromRedis recreates in the database the orders that only Redis has.
	RecoverFromRedis RecoverFrom = "redis"
	// RecoverFromDatabase discards them.
	RecoverFromDatabase RecoverFrom = "database"
)

// The actions of a recovery on an order.
const (
	recoverRecreated = "recreated" // only Redis had it; it is confirmed again
	recoverCancelled = "cancelled" // Redis has released its units; the database had not
	recoverDiscarded = "discarded" // only Redis had it; it is removed
	recoverReopened  = "reopened"  // Redis had released its units; it holds them again
	recoverUnread    = "unreadable"
)

// RecoveredOrder is an order about which the database and Redis differed. Its JSON is one
// line of the list that a recovery writes.
type RecoveredOrder struct {
	ItemID         string    `json:"item_id"`
	OrderID        string    `json:"order_id"`
	UserID         string    `json:"user_id"`
	IdempotencyKey string    `json:"idempotency_key"`
	Quantity       int64     `json:"quantity"`
	CreatedAt      time.Time `json:"created_at"` // from the order's id
	Action         string    `json:"action"`     // recreated, cancelled, discarded, reopened or unreadable
}

// RecoveredItem is the result of the recovery of one item.
type RecoveredItem struct {
	ItemID    string
	Recreated int // orders confirmed again; none with RecoverFromDatabase
	Cancelled int // orders closed, because Redis has released their units
	Discarded int // orders that only Redis had
	Reopened  int // orders whose units Redis had released
	Unread    int // records that cannot be parsed
	// TotalBefore and TotalAfter are the item's total stock, which changes if the database
	// has lost a restock.
	TotalBefore, TotalAfter int64
}

// RecovererConfig configures a Recoverer. All fields are required.
type RecovererConfig struct {
	Store      *store.Store
	Redis      redis.UniversalClient
	Partitions int
	Tasks      []order.Queued // one per partition
	HighWater  *store.HighWater
	// List receives a line of JSON for every order about which the two differed. With
	// RecoverFromDatabase it is the last record of the discarded orders.
	List io.Writer
	// Sync makes the lines written to List durable. It is called before a decision takes
	// effect.
	Sync func() error
	By   order.By
}

var (
	// ErrDecided means that another recovery has decided about the item in the meantime.
	ErrDecided = errors.New("order: another recovery has decided about the item")
	// ErrItemLost means that an item must be created again before it can be recovered from Redis.
	ErrItemLost = errors.New("order: the database does not have the item, which was created after the backup")
)

// Recoverer carries out the decision about stopped sales; see [HighWater]. It can run
// beside the service: a stopped sale sells nothing, no process loads it, and its queued
// orders wait. Each step can be repeated. The last one ends the stop, after which every
// step fails.
type Recoverer struct{ RecovererConfig }

// NewRecoverer returns a Recoverer.
func NewRecoverer(cfg RecovererConfig) *Recoverer { return &Recoverer{cfg} }

// recoverPage bounds the orders of one transaction.
const recoverPage = 500

// Recover carries out a decision about these items, and calls done for each. With
// RecoverFromDatabase it first raises the epoch, so that no process uses its earlier data
// of a sale; all sales are loaded again then. If an item cannot be recovered, the others
// still are.
//
// An item that the database does not have can only be discarded.
//
// Errors: database.ErrUnavailable, ErrDecided, inventory.ErrUnavailable, inventory.ErrIncomplete and ErrItemLost with
// RecoverFromRedis, and those of List and Sync. A repeat continues where an error stopped
// it.
func (r *Recoverer) Recover(ctx context.Context, from RecoverFrom, items []store.Behind, done func(RecoveredItem)) error {
	// The mark shows each step that the item is still undecided.
	if err := store.MarkBehind(ctx, r.Store, items); err != nil {
		return err
	}
	if from == RecoverFromDatabase && len(items) > 0 {
		epoch, err := r.Store.Epoch(ctx)
		if err != nil {
			return err
		}
		if _, err := raiseEpochTo(ctx, r.Store, epoch, 0); err != nil {
			return err
		}
	}
	queued, err := r.queued(ctx, items)
	if err != nil {
		return err
	}
	var errs []error
	for _, whole := range byItem(items) {
		x := &itemRecovery{Recoverer: r, from: from}
		for _, b := range whole {
			x.sales = append(x.sales, &saleRecovery{itemRecovery: x, behind: b, queued: queued[b.ItemID], report: RecoveredItem{ItemID: b.ItemID}})
		}
		if err := x.run(ctx); err != nil {
			errs = append(errs, fmt.Errorf("recover item %s: %w", bucket.Item(whole[0].ItemID), err))
			if ctx.Err() != nil {
				break
			}
			continue
		}
		for _, s := range x.sales {
			done(s.report)
		}
	}
	return errors.Join(errs...)
}

// byItem groups sales by item, ordered by id. The buckets of an item are in one group.
func byItem(sales []store.Behind) [][]store.Behind {
	groups := make(map[string][]store.Behind)
	for _, b := range sales {
		item := bucket.Item(b.ItemID)
		groups[item] = append(groups[item], b)
	}
	list := make([][]store.Behind, 0, len(groups))
	for _, item := range slices.Sorted(maps.Keys(groups)) {
		list = append(list, slices.SortedFunc(slices.Values(groups[item]), func(a, b store.Behind) int { return strings.Compare(a.ItemID, b.ItemID) }))
	}
	return list
}

// queued reads the quantities of the tasks of these items by order, in one scan of each
// partition's queue. Workers commit these orders.
func (r *Recoverer) queued(ctx context.Context, items []store.Behind) (map[string]map[string]int64, error) {
	queued := make(map[string]map[string]int64, len(items))
	partitions := make(map[int]bool)
	for _, b := range items {
		queued[b.ItemID] = make(map[string]int64)
		partitions[inventory.PartitionOf(b.ItemID, r.Partitions)] = true
	}
	for p := range partitions {
		err := r.Tasks[p].Scan(ctx, func(a accepted.Order) error {
			if strings.HasPrefix(a.OrderID, order.ExpiryPrefix) {
				return nil
			}
			t, err := order.ParseAccepted(a)
			if of := queued[t.ItemID]; err == nil && of != nil {
				of[t.ID] = t.Quantity
			}
			return nil // an unreadable task is not an order of these items
		})
		if err != nil {
			return nil, fmt.Errorf("read queued orders: %w: %w", inventory.ErrUnavailable, err)
		}
	}
	return queued, nil
}

// itemRecovery is the recovery of one item.
type itemRecovery struct {
	*Recoverer
	from  RecoverFrom
	sales []*saleRecovery // of its buckets; one if it is not divided
}

// saleRecovery is the recovery of one sale: of an item, or of one of its buckets.
type saleRecovery struct {
	*itemRecovery
	behind store.Behind
	queued map[string]int64 // quantities by order id
	report RecoveredItem

	live        inventory.Stopped // in Redis
	outstanding int64             // units that are neither left in Redis nor sold in the database
}

func (x *itemRecovery) run(ctx context.Context) error {
	if slices.ContainsFunc(x.sales, func(s *saleRecovery) bool { return s.behind.Lost }) {
		return x.discard(ctx)
	}
	// Check first: an incomplete record must not be mistaken for a complete one.
	for _, s := range x.sales {
		if _, err := inventory.StoppedSale(ctx, x.Redis, x.Partitions, s.behind.ItemID); err != nil && x.from == RecoverFromRedis {
			return err
		}
	}
	for _, s := range x.sales {
		if err := s.orders(ctx); err != nil {
			return err
		}
	}
	for _, s := range x.sales {
		if err := s.redis(ctx); err != nil {
			return err
		}
	}
	if err := x.finish(ctx); err != nil {
		return err
	}
	for _, s := range x.sales {
		if err := inventory.Resume(ctx, x.Redis, x.Partitions, s.behind.ItemID); err != nil {
			return err
		}
	}
	return nil
}

// discard lists the orders of an item that the database does not have, and ends its stop. Orders that
// are still queued are rejected afterwards.
func (x *itemRecovery) discard(ctx context.Context) error {
	if x.from == RecoverFromRedis {
		return ErrItemLost
	}
	for _, s := range x.sales {
		err := inventory.EachEntry(ctx, x.Redis, x.Partitions, s.behind.ItemID, func(page []inventory.Entry) error {
			return s.page(ctx, nil, page)
		})
		if err != nil {
			return err
		}
	}
	if err := x.Sync(); err != nil {
		return fmt.Errorf("write the list of orders: %w", err)
	}
	err := x.Store.Change(ctx, "discard orders of a lost item", func(ctx context.Context, c database.Conn, now int64) error {
		for _, s := range x.sales {
			if err := x.note(ctx, c, &s.report, now); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, s := range x.sales {
		item := s.behind.ItemID
		if err := inventory.ForgetRevision(ctx, x.Redis, x.Partitions, x.HighWater.Lineage, item); err != nil {
			return err
		}
		if err := inventory.Resume(ctx, x.Redis, x.Partitions, item); err != nil {
			return err
		}
	}
	return nil
}

// orders resolves the differences between the orders in Redis and in the database.
func (x *saleRecovery) orders(ctx context.Context) error {
	row, err := store.Item(ctx, x.Store, x.behind.ItemID)
	if err != nil {
		return err
	}
	x.report.TotalBefore = row.Total
	if err := inventory.EachEntry(ctx, x.Redis, x.Partitions, row.ID, func(page []inventory.Entry) error {
		return x.page(ctx, &row, page)
	}); err != nil {
		return err
	}
	if err := x.Sync(); err != nil {
		return fmt.Errorf("write the list of orders: %w", err)
	}
	return x.extend(ctx, &row)
}

// contradiction is an entry of Redis that the database contradicts.
type contradiction struct {
	entry inventory.Entry
	row   bool // the order has a row
}

// page compares a page of the entries in Redis with the rows, and resolves the differences. row is only
// used with RecoverFromRedis.
func (x *saleRecovery) page(ctx context.Context, row *schema.Item, entries []inventory.Entry) error {
	ids := make([]string, 0, len(entries))
	for i := range entries {
		if entries[i].OrderID == "" {
			if err := x.list(&x.report.Unread, recoverUnread, &entries[i]); err != nil {
				return err
			}
			continue
		}
		ids = append(ids, entries[i].OrderID)
	}
	holds, err := store.Holding(ctx, x.Store, ids)
	if err != nil {
		return err
	}
	var differ []contradiction
	for i := range entries {
		e := &entries[i]
		held, known := holds[e.OrderID]
		if e.Returned {
			// A dead letter of a rejected order: its units were released.
			delete(x.queued, e.OrderID)
		}
		_, queued := x.queued[e.OrderID]
		switch {
		case e.OrderID == "" || queued && !known:
		case !known, e.Returned && held:
			differ = append(differ, contradiction{*e, known})
		}
	}
	for i := range differ {
		if err := x.record(&differ[i]); err != nil {
			return err
		}
	}
	if x.from == RecoverFromDatabase || len(differ) == 0 {
		return nil
	}
	// The list is durable before the changes are made, so a repeat lists the rest.
	if err := x.Sync(); err != nil {
		return fmt.Errorf("write the list of orders: %w", err)
	}
	return x.step(ctx, "recover orders of "+row.ID, func(ctx context.Context, c database.Conn, now int64) error {
		for i := range differ {
			if err := recoverOrder(ctx, c, row, &differ[i], now); err != nil {
				return err
			}
		}
		return nil
	})
}

// step runs a transaction of the recovery. Errors: ErrDecided.
func (x *itemRecovery) step(ctx context.Context, operation string, fn func(ctx context.Context, c database.Conn, now int64) error) error {
	return x.Store.Change(ctx, operation, func(ctx context.Context, c database.Conn, now int64) error {
		// One transaction ends the stop of all buckets. Until then at least one of them is marked.
		ids := make([]string, len(x.sales))
		for i, s := range x.sales {
			ids[i] = s.behind.ItemID
		}
		var behind int64
		if err := c.QueryRowContext(ctx, maxBehind, database.JSONList(ids...)).Scan(&behind); err != nil {
			return err
		}
		if behind == 0 {
			return ErrDecided
		}
		return fn(ctx, c, now)
	})
}

const maxBehind = `SELECT MAX(behind) FROM items WHERE id IN (SELECT value FROM json_each(?1))`

// record lists a difference with the action on it.
func (x *saleRecovery) record(d *contradiction) error {
	e := &d.entry
	switch {
	case x.from == RecoverFromRedis && e.Returned:
		return x.list(&x.report.Cancelled, recoverCancelled, e)
	case x.from == RecoverFromRedis:
		return x.list(&x.report.Recreated, recoverRecreated, e)
	case !d.row && e.Returned:
		return nil // it held no units, so it is not listed
	case !d.row:
		return x.list(&x.report.Discarded, recoverDiscarded, e)
	default:
		return x.list(&x.report.Reopened, recoverReopened, e)
	}
}

// list writes one line, and counts it.
func (x *saleRecovery) list(count *int, action string, e *inventory.Entry) error {
	*count++
	line, err := json.Marshal(RecoveredOrder{
		ItemID: x.behind.ItemID, OrderID: e.OrderID, UserID: e.Buyer, IdempotencyKey: e.IdempotencyKey, Quantity: e.Quantity,
		CreatedAt: createdAt(e.OrderID), Action: action,
	})
	if err != nil {
		return err
	}
	if _, err := x.List.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("write the list of orders: %w", err)
	}
	return nil
}

// createdAt is the time in an order's id, or the zero time.
func createdAt(id string) time.Time {
	u, err := uuid.Parse(id)
	if err != nil || u.Version() != 7 {
		return time.Time{}
	}
	seconds, nanos := u.Time().UnixTime()
	return time.Unix(seconds, nanos).UTC().Truncate(time.Millisecond)
}

// recoverOrder makes the database agree with an entry of Redis. A repeat changes nothing,
// and neither does an order that a worker has committed meanwhile.
func recoverOrder(ctx context.Context, c database.Conn, row *schema.Item, d *contradiction, now int64) error {
	e := &d.entry
	status, closedAt, reason, expiresAt := order.StatusConfirmed, int64(0), "", int64(0)
	switch {
	case e.Returned:
		status, closedAt, reason = order.StatusCancelled, now, order.ReasonRecovered
	case row.PaymentWindowSeconds > 0:
		expiresAt = now + row.PaymentWindowSeconds*1000
	}
	created := order.ToMillis(createdAt(e.OrderID))
	if created == 0 {
		created = now
	}
	n, err := database.Changed(c.ExecContext(ctx, recreateOrder, e.OrderID, row.ID, e.Buyer, e.Quantity, row.PriceMinor, row.Currency,
		string(status), reason, e.IdempotencyKey, created, now, expiresAt, closedAt))
	if err != nil {
		return fmt.Errorf("recreate order %s: %w", e.OrderID, err)
	}
	units := e.Quantity
	switch {
	case n == 1 && !e.Returned:
	case n == 0 && e.Returned:
		if n, err = database.Changed(c.ExecContext(ctx, closeRecovered, now, e.OrderID)); err != nil {
			return fmt.Errorf("close order %s: %w", e.OrderID, err)
		}
		units = -e.Quantity
		if n == 0 {
			return nil
		}
		if _, err := c.ExecContext(ctx, payLate, e.OrderID); err != nil {
			return fmt.Errorf("payment of order %s: %w", e.OrderID, err)
		}
	default:
		return nil
	}
	if _, err := c.ExecContext(ctx, recountItem, units, row.ID); err != nil {
		return fmt.Errorf("count order %s: %w", e.OrderID, err)
	}
	if _, err := c.ExecContext(ctx, recountBuyer, row.ID, e.OrderID, units); err != nil {
		return fmt.Errorf("count buyer of order %s: %w", e.OrderID, err)
	}
	return nil
}

// The statements of a recovery. Each can be repeated.
const (
	// If the backup has another order under the buyer's key, the buyer was erased after it
	// and has used the key again. The recovered order gets its id as the key then.
	recreateOrder = `INSERT INTO orders (id, item_id, user_id, quantity, unit_price_minor, currency, status, reason, idempotency_key,
		created_at, confirmed_at, expires_at, closed_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8,
		CASE WHEN EXISTS (SELECT 1 FROM orders WHERE item_id = ?2 AND user_id = ?3 AND idempotency_key = ?9 AND id <> ?1) THEN ?1 ELSE ?9 END,
		?10, ?11, ?12, ?13) ON CONFLICT DO NOTHING`
	closeRecovered = `UPDATE orders SET status = 'cancelled', reason = '` + order.ReasonRecovered + `', closed_at = ?1 WHERE id = ?2 AND ` + store.OrdersHold
	// It is unknown whether the money was returned, so an operator must check it.
	payLate = `UPDATE payments SET received_as = 'late', outcome = 'late' WHERE order_id = ?1 AND outcome = 'accepted'`
	// The units were sold from a total whose increase the database may have lost, too.
	recountItem = `UPDATE items SET sold = sold + ?1, total = MAX(total, sold + ?1) WHERE id = ?2`
	// The buyer comes from the row: Redis may have the earlier name of a buyer who was
	// erased after the backup.
	recountBuyer = `INSERT INTO buyers (item_id, user_id, quantity) SELECT CAST(?1 AS TEXT), user_id, MAX(CAST(?3 AS BIGINT), 0) FROM orders WHERE id = ?2
		ON CONFLICT (item_id, user_id) DO UPDATE SET quantity = MAX(buyers.quantity + ?3, 0)`
	extendWindows = `UPDATE orders SET expires_at = MAX(expires_at, ?4) WHERE id IN (
		SELECT id FROM orders WHERE ` + store.OrdersAfter + ` LIMIT ?3) AND status = 'confirmed' AND expires_at > 0`
)

// extend gives the item's unpaid orders their payment window again, and at least a day:
// payments since the backup are lost, and the payment provider must report them again
// before an order may expire and its units are sold to another buyer.
func (x *saleRecovery) extend(ctx context.Context, row *schema.Item) error {
	if row.PaymentWindowSeconds == 0 {
		return nil
	}
	within := max(row.PaymentWindowSeconds*1000, order.PayAgainWithin.Milliseconds())
	for after := ""; ; {
		var last string
		err := x.step(ctx, "extend payment windows of "+row.ID, func(ctx context.Context, c database.Conn, now int64) error {
			if err := c.QueryRowContext(ctx, store.LastOrderOfPage, row.ID, after, recoverPage).Scan(&last); err != nil {
				return err
			}
			_, err := c.ExecContext(ctx, extendWindows, row.ID, after, recoverPage, now+within)
			return err
		})
		if err != nil || last == "" {
			return err
		}
		after = last
	}
}
