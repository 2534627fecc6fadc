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

// errNotAll says that payments that pay their orders could not be recorded. They are then recorded
// one by one.
var errNotAll = errors.New("order: payments must be recorded one by one")

// payAll records the payments that are new, pay different orders, and may pay them. It returns the
// rest. Statements for single payments cost three times as much. Errors: errNotAll.
func (g *group) payAll(bunch []*write) (rest []*write, err error) {
	of := make(map[string]*payment, len(bunch))
	references := make(map[string]bool, len(bunch))
	for _, one := range bunch {
		if p := one.pay; of[p.orderID] == nil && !references[p.Reference] {
			of[p.orderID], references[p.Reference] = p, true
		}
	}
	var paid map[string]*payment
	err = g.withOutbox(g.ctx, func(box *Outbox) error {
		paid, err = recordAll(g.ctx, g, of, box)
		return err
	})
	for _, one := range bunch {
		if paid[one.pay.orderID] != one.pay {
			rest = append(rest, one)
		}
	}
	return rest, err
}

// recordAll records those payments that may pay their orders, and returns them. The maps have the
// payments by their orders.
func recordAll(ctx context.Context, c Conn, of map[string]*payment, box *Outbox) (map[string]*payment, error) {
	paid := make(map[string]*payment, len(of))
	err := Each(ctx, c, payUnpaidOf, []any{box.Now, valuesOf(of)}, func(rows *sql.Rows) error {
		o, err := ScanOrder(rows)
		if err != nil {
			return err
		}
		p := of[o.ID]
		paid[o.ID] = p
		p.got = receipt{order: o, outcome: order.PaymentAccepted, recorded: true}
		box.Touch(o.ItemID)
		box.payment(&o, 0, p.Payment, order.PaymentAccepted)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("pay %d orders: %w", len(of), err)
	}
	if len(paid) == 0 {
		return nil, nil
	}
	recorded, err := Changed(c.ExecContext(ctx, insertPaymentsOf, box.Now, valuesOf(paid)))
	if err != nil {
		return nil, fmt.Errorf("record %d payments: %w", len(paid), err)
	}
	if recorded != int64(len(paid)) {
		return nil, errNotAll
	}
	return paid, nil
}

// valuesOf returns payments as JSON.
func valuesOf(of map[string]*payment) string {
	list := []byte{'['}
	for _, p := range of {
		if len(list) > 1 {
			list = append(list, ',')
		}
		list = append(list, `["`...)
		list = append(append(list, p.orderID...), `","`...)
		list = append(append(list, p.Reference...), `",`...)
		list = append(strconv.AppendInt(list, p.AmountMinor, 10), `,"`...)
		list = append(append(list, p.Currency...), `"]`...)
	}
	return string(append(list, ']'))
}
