package store

import (
	"context"
	"database/sql"
	"fmt"

	"flashsale/order"
	"flashsale/order/store/database"
)

// refusal is an order that is refused.
type refusal struct {
	task   *order.Task
	reason string
	key    string // of its row
}

// checkEach separates the tasks that the database allows from those that it refuses: each as if
// those before it were committed. The transaction must exclude all others. None of the tasks has a
// row, and no two have the same id.
func checkEach(ctx context.Context, tx *database.Tx, tasks []order.Task) (allowed []order.Task, refusals []refusal, err error) {
	if len(tasks) == 0 {
		return nil, nil, nil
	}
	st, err := readState(ctx, tx, tasks)
	if err != nil {
		return nil, nil, err
	}
	for i := range tasks {
		t := &tasks[i]
		key := takenKey{buyerKey{t.ItemID, t.UserID}, t.IdempotencyKey}
		if reason := st.refuses(t, key); reason != "" {
			r := refusal{t, reason, t.IdempotencyKey}
			if st.taken[key] {
				r.key = replacementKey(t)
			}
			refusals = append(refusals, r)
		} else {
			allowed = append(allowed, *t)
			st.left[t.ItemID] -= t.Quantity
			st.held[key.buyerKey] += t.Quantity
		}
		st.taken[key] = true
	}
	return allowed, refusals, nil
}

// takenKey is an idempotency key of a buyer of an item.
type takenKey struct {
	buyerKey
	key string
}

// saleState is what the database has about the items, buyers and keys of some tasks.
type saleState struct {
	left, limit map[string]int64 // of each item that exists
	held        map[buyerKey]int64
	taken       map[takenKey]bool
	// earlier are the limits that the items had before changes, of those since the oldest task.
	earlier map[string][]limitBefore
}

// limitBefore is the limit per buyer that an item had until a time.
type limitBefore struct{ until, limit int64 }

// refuses returns the reason for which an order is refused; empty: it is allowed. An order with an
// impossible quantity is left to the constraints of its row.
func (st *saleState) refuses(t *order.Task, key takenKey) string {
	left, known := st.left[t.ItemID]
	switch {
	case st.taken[key]:
		return order.ReasonDuplicate
	case !known:
		return order.ReasonNoItem
	case t.Quantity > left:
		return order.ReasonSoldOut
	case t.Quantity > st.limitOf(t)-st.held[key.buyerKey]:
		return order.ReasonUserLimit
	}
	return ""
}

// limitOf is the highest limit per buyer that the item has had since an order was accepted. The
// sale in Redis enforced the limit of that time, and an accepted order is kept.
func (st *saleState) limitOf(t *order.Task) int64 {
	limit := st.limit[t.ItemID]
	for _, b := range st.earlier[t.ItemID] {
		if b.until >= t.CreatedAt {
			limit = max(limit, b.limit)
		}
	}
	return limit
}

// The statements of a saleState take a JSON list of items, or of lists with item, buyer and key.
const (
	selectStock = `SELECT id, total - sold, per_user_limit FROM items WHERE id IN (SELECT value FROM json_each(?1))`
	selectHeld  = `SELECT b.item_id, b.user_id, b.quantity FROM json_each(?1) p CROSS JOIN buyers b
	ON b.item_id = json_extract(p.value, '$[0]') AND b.user_id = json_extract(p.value, '$[1]')`
	selectTaken = `SELECT o.item_id, o.user_id, o.idempotency_key FROM json_each(?1) p CROSS JOIN orders o
	ON o.item_id = json_extract(p.value, '$[0]') AND o.user_id = json_extract(p.value, '$[1]') AND o.idempotency_key = json_extract(p.value, '$[2]')`
	selectLimits = `SELECT item_id, at, COALESCE(CAST(json_extract(before, '$.per_user_limit') AS BIGINT), 0) FROM audit
	WHERE item_id IN (SELECT value FROM json_each(?1)) AND item_id <> '' AND action = '` + order.ActionItemChange + `' AND at >= ?2`
)

// readState reads the state for tasks, of which there is at least one.
func readState(ctx context.Context, c database.Conn, tasks []order.Task) (*saleState, error) {
	st := &saleState{
		left: make(map[string]int64), limit: make(map[string]int64), held: make(map[buyerKey]int64),
		taken: make(map[takenKey]bool), earlier: make(map[string][]limitBefore),
	}
	keys, since := make([][3]string, len(tasks)), tasks[0].CreatedAt
	for i := range tasks {
		t := &tasks[i]
		keys[i], since = [3]string{t.ItemID, t.UserID, t.IdempotencyKey}, min(since, t.CreatedAt)
	}
	items, list := database.JSONList(boughtItems(tasks)...), database.JSON(keys)
	for _, read := range []struct {
		text string
		args []any
		scan func(rows *sql.Rows) error
	}{
		{selectStock, []any{items}, func(rows *sql.Rows) error {
			var item string
			var left, limit int64
			err := rows.Scan(&item, &left, &limit)
			st.left[item], st.limit[item] = left, limit
			return err
		}},
		{selectHeld, []any{list}, func(rows *sql.Rows) error {
			var k buyerKey
			var held int64
			err := rows.Scan(&k.item, &k.user, &held)
			st.held[k] = held
			return err
		}},
		{selectTaken, []any{list}, func(rows *sql.Rows) error {
			var k takenKey
			err := rows.Scan(&k.item, &k.user, &k.key)
			st.taken[k] = true
			return err
		}},
		{selectLimits, []any{items, since}, func(rows *sql.Rows) error {
			var item string
			var b limitBefore
			err := rows.Scan(&item, &b.until, &b.limit)
			st.earlier[item] = append(st.earlier[item], b)
			return err
		}},
	} {
		if err := database.Each(ctx, c, read.text, read.args, read.scan); err != nil {
			return nil, fmt.Errorf("read items, buyers and keys: %w", err)
		}
	}
	return st, nil
}
