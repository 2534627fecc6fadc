package handler

import (
	"time"

	"flashsale/catalog"
	"flashsale/order"
)

// appendOrder appends an order as the contract spells it.
func appendOrder(b []byte, o *order.Order) []byte {
	b = appendTextField(b, `{"id":`, o.ID)
	b = appendTextField(b, `,"item_id":`, o.ItemID)
	b = appendTextField(b, `,"user_id":`, o.UserID)
	b = appendIntField(b, `,"quantity":`, o.Quantity)
	b = appendIntField(b, `,"unit_price_minor":`, o.UnitPriceMinor)
	b = appendTextField(b, `,"currency":`, o.Currency)
	b = appendTextField(b, `,"status":`, string(o.Status))
	b = appendTextIfSet(b, `,"reason":`, o.Reason)
	b = appendTimeField(b, `,"created_at":`, o.CreatedAt)
	b = appendTimeIfSet(b, `,"confirmed_at":`, o.ConfirmedAt)
	b = appendTimeIfSet(b, `,"expires_at":`, o.ExpiresAt)
	b = appendTimeIfSet(b, `,"paid_at":`, o.PaidAt)
	b = appendTimeIfSet(b, `,"closed_at":`, o.ClosedAt)
	b = appendTextIfSet(b, `,"payment_reference":`, o.PaymentReference)
	if o.Status == order.StatusRefunded {
		b = appendBoolField(b, `,"restocked":`, o.Restocked)
	}
	return append(b, '}')
}

// appendPayment appends a received amount.
func appendPayment(b []byte, p *order.PaymentRecord) []byte {
	b = appendIntField(b, `{"id":`, p.ID)
	b = appendTextField(b, `,"order_id":`, p.OrderID)
	b = appendTextField(b, `,"item_id":`, p.ItemID)
	b = appendTextField(b, `,"user_id":`, p.UserID)
	b = appendTextField(b, `,"reference":`, p.Reference)
	b = appendIntField(b, `,"amount_minor":`, p.AmountMinor)
	b = appendTextField(b, `,"currency":`, p.Currency)
	b = appendTextField(b, `,"outcome":`, string(p.Outcome))
	b = appendTextField(b, `,"received_as":`, string(p.ReceivedAs))
	b = appendTimeField(b, `,"received_at":`, p.ReceivedAt)
	return append(appendTimeIfSet(b, `,"refunded_at":`, p.RefundedAt), '}')
}

// appendPayments appends received amounts as a list.
func appendPayments(b []byte, payments []order.PaymentRecord) []byte {
	return append(appendList(append(b, '['), payments, appendPayment), ']')
}

// appendItem appends an item as the contract spells it, in its state at now.
func appendItem(b []byte, i *catalog.Item, now time.Time) []byte {
	return appendServerTime(appendItemHead(b, i, now), now)
}

// appendServerTime appends the end of an item.
func appendServerTime(b []byte, now time.Time) []byte {
	return append(appendTimeField(b, `,"server_time":`, now), '}')
}

// appendItemHead appends an item up to its server_time, which alone changes from
// one moment to the next.
func appendItemHead(b []byte, i *catalog.Item, now time.Time) []byte {
	b = appendTextField(b, `{"id":`, i.ID)
	b = appendTextField(b, `,"name":`, i.Name)
	b = appendTextField(b, `,"description":`, i.Description)
	b = appendIntField(b, `,"price_minor":`, i.PriceMinor)
	b = appendTextField(b, `,"currency":`, i.Currency)
	b = appendIntField(b, `,"stock_total":`, i.StockTotal)
	b = appendIntField(b, `,"stock_left":`, i.StockLeft)
	b = appendIntField(b, `,"per_user_limit":`, i.PerUserLimit)
	b = appendTimeField(b, `,"opens_at":`, i.OpensAt)
	if i.ClosesAt.IsZero() {
		b = append(b, `,"closes_at":null`...)
	} else {
		b = appendTimeField(b, `,"closes_at":`, i.ClosesAt)
	}
	b = appendIntField(b, `,"payment_window_seconds":`, int64(i.PaymentWindow/time.Second))
	b = appendTextField(b, `,"state":`, string(i.State(now)))
	return appendIntField(b, `,"version":`, i.Version)
}

// appendLedger appends the conservation equation.
func appendLedger(b []byte, l order.Ledger) []byte {
	b = appendIntField(b, `{"initial":`, l.Initial)
	b = appendIntField(b, `,"restocked":`, l.Restocked)
	b = appendIntField(b, `,"left":`, l.Left)
	b = appendIntField(b, `,"held":`, l.Held)
	b = appendIntField(b, `,"sold":`, l.Sold)
	return append(appendBoolField(b, `,"balanced":`, l.Balanced()), '}')
}
