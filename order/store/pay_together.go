package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"

	"flashsale/order"
)

// payment is a payment to be recorded.
type payment struct {
	order.Payment
	orderID string
	got     receipt // the answer
}

// plain reports whether the payment's texts need no escapes in JSON.
func (p *payment) plain() bool { return plain(p.orderID) && plain(p.Reference) && plain(p.Currency) }

func plain(text string) bool {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

// errNotAll says that not every payment is new, pays a different order, and may pay it.
// They are then recorded one by one.
var errNotAll = errors.New("order: payments must be recorded one by one")

// payAll records payments that all pay their orders, or none. Statements for single
// payments cost three times as much. Errors: errNotAll.
func (g *group) payAll(bunch []*write) error {
	of := make(map[string]*payment, len(bunch))
	list := []byte{'['}
	for i, one := range bunch {
		p := one.pay
		of[p.orderID] = p
		if i > 0 {
			list = append(list, ',')
		}
		list = append(list, `["`...)
		list = append(append(list, p.orderID...), `","`...)
		list = append(append(list, p.Reference...), `",`...)
		list = append(strconv.AppendInt(list, p.AmountMinor, 10), `,"`...)
		list = append(append(list, p.Currency...), `"]`...)
	}
	if len(of) != len(bunch) {
		return errNotAll // two payments for one order
	}
	values := string(append(list, ']'))
	return g.telling(g.ctx, func(box *Outbox) error { return recordAll(g.ctx, g, values, of, box) })
}

// recordAll implements payAll. values are the payments as JSON; of maps orders to them.
func recordAll(ctx context.Context, c Conn, values string, of map[string]*payment, box *Outbox) error {
	paid := 0
	err := Each(ctx, c, payUnpaidOf, []any{box.Now, values}, func(rows *sql.Rows) error {
		o, err := ScanOrder(rows)
		if err != nil {
			return err
		}
		paid++
		of[o.ID].got = receipt{order: o, outcome: order.PaymentAccepted, recorded: true}
		box.Touch(o.ItemID)
		box.payment(&o, 0, of[o.ID].Payment, order.PaymentAccepted)
		return nil
	})
	if err != nil {
		return fmt.Errorf("pay %d orders: %w", len(of), err)
	}
	if paid != len(of) {
		return errNotAll
	}
	recorded, err := Changed(c.ExecContext(ctx, insertPaymentsOf, box.Now, values))
	if err != nil {
		return fmt.Errorf("record %d payments: %w", len(of), err)
	}
	if recorded != int64(len(of)) {
		return errNotAll
	}
	return nil
}
