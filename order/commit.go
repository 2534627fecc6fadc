package order

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"gorm.io/gorm"

	"flashsale/internal/faultpoint"
)

// outcome is what became of a task in the database.
type outcome struct {
	status      Status
	reason      string
	confirmedAt int64 // Unix milliseconds
	expiresAt   int64 // Unix milliseconds; 0: no payment is asked
	closedAt    int64 // Unix milliseconds; 0: not in a final state
}

// The reasons of a rejected order: each is a condition of the database that
// refused what Redis had let through.
const (
	reasonSoldOut   = "sold_out"
	reasonUserLimit = "user_limit"
	reasonNoItem    = "item_not_found"
	reasonDuplicate = "idempotency_key_reused"
	// reasonFailed is that of an order which no worker could commit.
	reasonFailed = "failed"
)

// errUneven says that a batch did not go through whole: an order exists
// already, or a condition refused one. The batch is then taken one by one.
var errUneven = errors.New("order: batch needs a closer look")

// commit makes rows of the tasks in one transaction. It first assumes that all
// are new and allowed, which costs a handful of statements whatever the number
// of tasks, and lets the database's own conditions object.
//
// It is not cut off when ctx ends: a transaction ended in its middle has an
// outcome that must be looked for. The database's busy timeout bounds it.
func (s *Store) commit(ctx context.Context, tasks []task) ([]outcome, error) {
	ctx = context.WithoutCancel(ctx)
	out, err := s.commitWhole(ctx, tasks)
	if errors.Is(err, errUneven) {
		out, err = s.commitEach(ctx, tasks)
	}
	s.boundLog(ctx)
	return out, err
}

type soldKey struct{ item, user string }

func (s *Store) commitWhole(ctx context.Context, tasks []task) ([]outcome, error) {
	out := make([]outcome, len(tasks))
	units := make(map[string]sum, 4)
	held := make(map[soldKey]int64, len(tasks))
	for i := range tasks {
		t := &tasks[i]
		if t.Quantity <= 0 {
			return nil, errUneven
		}
		units[t.ItemID] = units[t.ItemID].plus(t)
		held[soldKey{t.ItemID, t.UserID}] += t.Quantity
	}
	now := s.now().UnixMilli()
	var box *outbox
	err := s.transact(ctx, commitTexts, func(c conn) (err error) {
		of := make(map[string]terms, len(units))
		for item, n := range units {
			got, err := sell(ctx, c, item, n)
			if err != nil {
				return err
			}
			of[item] = got
		}
		if err := addHolders(ctx, c, held, of); err != nil {
			return err
		}
		args := make([]any, 0, len(tasks)*orderColumns)
		for i := range tasks {
			t := &tasks[i]
			out[i] = confirmed(now, of[t.ItemID])
			args = append(args, t.ID, t.ItemID, t.UserID, t.Quantity, t.UnitPriceMinor, t.Currency,
				t.IdempotencyKey, t.CreatedAt, now, out[i].expiresAt)
		}
		written, err := insertConfirmed.exec(ctx, c, args)
		if err != nil {
			return fmt.Errorf("insert orders: %w", err)
		}
		if written != int64(len(tasks)) {
			return errUneven
		}
		if box, err = openOutbox(ctx, c, now); err != nil {
			return err
		}
		box.tasks(tasks, out, of)
		for item := range of {
			box.revisions[item] = of[item].Revision
		}
		faultpoint.Reach("order.committing")
		return box.write(ctx, c)
	})
	if err != nil {
		return nil, fmt.Errorf("commit %d orders: %w", len(tasks), err)
	}
	s.announce(box)
	return out, nil
}

// terms are what an item's row says to its orders.
type terms struct {
	PerUserLimit         int64
	PaymentWindowSeconds int64
	Total                int64
	SoldOut              bool  // this sale took the last unit
	Revision             int64 // after this sale; see HighWater
}

func confirmed(now int64, t terms) outcome {
	o := outcome{status: StatusConfirmed, confirmedAt: now}
	if t.PaymentWindowSeconds > 0 {
		o.expiresAt = now + t.PaymentWindowSeconds*1000
	}
	return o
}

// sum is what a batch takes of one item.
type sum struct {
	units    int64
	sequence int64 // the highest of its tasks
}

func (s sum) plus(t *task) sum { return sum{s.units + t.Quantity, max(s.sequence, t.Sequence)} }

// sell counts n units as sold, if the total allows it (P1).
func sell(ctx context.Context, c conn, item string, n sum) (terms, error) {
	var t terms
	err := c.QueryRowContext(ctx, sellUnits, n.units, item, n.sequence).Scan(&t.PerUserLimit, &t.PaymentWindowSeconds, &t.Total, &t.SoldOut, &t.Revision)
	if errors.Is(err, sql.ErrNoRows) {
		return terms{}, errUneven
	}
	if err != nil {
		return terms{}, fmt.Errorf("sell %d of %s: %w", n.units, item, err)
	}
	return t, nil
}

// addHolders counts what each buyer holds, if the limit allows it (P5).
func addHolders(ctx context.Context, c conn, held map[soldKey]int64, of map[string]terms) error {
	args := make([]any, 0, len(held)*buyerColumns)
	for k, n := range held {
		// A buyer's first row has nothing to conflict with, so the statement
		// cannot check it.
		if n > of[k.item].PerUserLimit {
			return errUneven
		}
		args = append(args, k.item, k.user, n)
	}
	written, err := addToBuyers.exec(ctx, c, args)
	if err != nil {
		return fmt.Errorf("count buyers: %w", err)
	}
	if written != int64(len(held)) {
		return errUneven
	}
	return nil
}

// commitEach takes the tasks one by one inside one transaction: what exists
// already is reported as it stands, what a condition refuses becomes a
// rejected order with its reason.
func (s *Store) commitEach(ctx context.Context, tasks []task) ([]outcome, error) {
	out := make([]outcome, len(tasks))
	items := make(map[string]bool, 1)
	now := s.now().UnixMilli()
	var box *outbox
	err := s.write.WithContext(ctx).Transaction(func(tx *gorm.DB) (err error) {
		c := tx.Statement.ConnPool
		if box, err = openOutbox(ctx, c, now); err != nil {
			return err
		}
		for i := range tasks {
			if out[i], err = commitOne(ctx, tx, &tasks[i], box); err != nil {
				return fmt.Errorf("order %s: %w", tasks[i].ID, err)
			}
			items[tasks[i].ItemID] = true
		}
		// Also of orders that were rows before: their commit may not be recorded yet.
		for item := range items {
			if err := box.touch(ctx, c, item); err != nil {
				return err
			}
		}
		return box.write(ctx, c)
	})
	if err != nil {
		return nil, fmt.Errorf("commit %d orders one by one: %w", len(tasks), err)
	}
	s.announce(box)
	return out, nil
}

func commitOne(ctx context.Context, tx *gorm.DB, t *task, box *outbox) (outcome, error) {
	now := box.now
	var rows []orderRow
	if err := tx.WithContext(ctx).Where("id = ?", t.ID).Limit(1).Find(&rows).Error; err != nil {
		return outcome{}, err
	}
	if len(rows) > 0 { // a redelivery: it was committed before
		r := &rows[0]
		return outcome{Status(r.Status), r.Reason, r.ConfirmedAt, r.ExpiresAt, r.ClosedAt}, nil
	}
	var got terms
	var refusal refused
	// A savepoint: what a refusal leaves half-done is undone, the rest stays.
	err := tx.Transaction(func(sp *gorm.DB) error {
		var err error
		got, err = claim(ctx, sp, t)
		if err != nil {
			return err
		}
		return insertOrder(sp, t, confirmed(now, got), t.IdempotencyKey)
	})
	switch {
	case err == nil:
		box.task(t, confirmed(now, got))
		box.soldOut(t.ItemID, got)
		return confirmed(now, got), nil
	case errors.As(err, &refusal):
		out := outcome{status: StatusRejected, reason: string(refusal), closedAt: now}
		key := t.IdempotencyKey
		if refusal == reasonDuplicate {
			key = keptApart(t)
		}
		box.task(t, out)
		return out, insertOrder(tx, t, out, key)
	default:
		return outcome{}, err
	}
}

// keptApart is the key of the row of an order whose key's place is taken by
// another order: a space, which no client's key can contain, keeps it apart.
func keptApart(t *task) string { return t.IdempotencyKey + " " + t.ID }

// refused is a condition's objection to one order; its text is the reason.
type refused string

func (r refused) Error() string { return "order: refused: " + string(r) }

// claim counts one order against the item's total and its buyer's limit.
func claim(ctx context.Context, tx *gorm.DB, t *task) (terms, error) {
	var same int64
	err := tx.Model(&orderRow{}).
		Where("user_id = ? AND item_id = ? AND idempotency_key = ?", t.UserID, t.ItemID, t.IdempotencyKey).
		Count(&same).Error
	if err != nil {
		return terms{}, err
	}
	if same > 0 {
		return terms{}, refused(reasonDuplicate)
	}
	c := tx.Statement.ConnPool
	got, err := sell(ctx, c, t.ItemID, sum{}.plus(t))
	if errors.Is(err, errUneven) {
		var known int64
		if err := tx.Model(&itemRow{}).Where("id = ?", t.ItemID).Count(&known).Error; err != nil {
			return terms{}, err
		}
		if known == 0 {
			return terms{}, refused(reasonNoItem)
		}
		return terms{}, refused(reasonSoldOut)
	}
	if err != nil {
		return terms{}, err
	}
	held := map[soldKey]int64{{t.ItemID, t.UserID}: t.Quantity}
	err = addHolders(ctx, c, held, map[string]terms{t.ItemID: got})
	if errors.Is(err, errUneven) {
		err = addUnderOldLimit(ctx, c, t, fromMillis(t.CreatedAt))
	}
	if errors.Is(err, errUneven) {
		return terms{}, refused(reasonUserLimit)
	}
	return got, err
}

func insertOrder(tx *gorm.DB, t *task, o outcome, key string) error {
	row := orderRow{
		ID: t.ID, ItemID: t.ItemID, UserID: t.UserID, Quantity: t.Quantity,
		UnitPriceMinor: t.UnitPriceMinor, Currency: t.Currency,
		Status: string(o.status), Reason: o.reason, IdempotencyKey: key,
		CreatedAt: t.CreatedAt, ConfirmedAt: o.confirmedAt, ExpiresAt: o.expiresAt, ClosedAt: o.closedAt,
	}
	return tx.Create(&row).Error
}
