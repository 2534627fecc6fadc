package handler

import (
	"time"

	"flashsale/catalog"
	"flashsale/handler/encode"
	"flashsale/internal/bucket"
	"flashsale/order"
)

// appendOrder appends an order in the API's format.
func appendOrder(b []byte, o *order.Order) []byte {
	b = encode.TextField(b, `{"id":`, o.ID)
	b = encode.TextField(b, `,"item_id":`, bucket.Item(o.ItemID))
	b = encode.TextField(b, `,"user_id":`, o.UserID)
	b = encode.IntField(b, `,"quantity":`, o.Quantity)
	b = encode.IntField(b, `,"unit_price_minor":`, o.UnitPriceMinor)
	b = encode.TextField(b, `,"currency":`, o.Currency)
	b = encode.TextField(b, `,"status":`, string(o.Status))
	b = encode.TextIfSet(b, `,"reason":`, o.Reason)
	b = encode.TimeField(b, `,"created_at":`, o.CreatedAt)
	b = encode.TimeIfSet(b, `,"confirmed_at":`, o.ConfirmedAt)
	b = encode.TimeIfSet(b, `,"expires_at":`, o.ExpiresAt)
	b = encode.TimeIfSet(b, `,"paid_at":`, o.PaidAt)
	b = encode.TimeIfSet(b, `,"closed_at":`, o.ClosedAt)
	b = encode.TextIfSet(b, `,"payment_reference":`, o.PaymentReference)
	if o.Status == order.StatusRefunded {
		b = encode.BoolField(b, `,"restocked":`, o.Restocked)
	}
	return append(b, '}')
}

// appendPayment appends a received amount.
func appendPayment(b []byte, p *order.PaymentRecord) []byte {
	b = encode.IntField(b, `{"id":`, p.ID)
	b = encode.TextField(b, `,"order_id":`, p.OrderID)
	b = encode.TextField(b, `,"item_id":`, bucket.Item(p.ItemID))
	b = encode.TextField(b, `,"user_id":`, p.UserID)
	b = encode.TextField(b, `,"reference":`, p.Reference)
	b = encode.IntField(b, `,"amount_minor":`, p.AmountMinor)
	b = encode.TextField(b, `,"currency":`, p.Currency)
	b = encode.TextField(b, `,"outcome":`, string(p.Outcome))
	b = encode.TextField(b, `,"received_as":`, string(p.ReceivedAs))
	b = encode.TimeField(b, `,"received_at":`, p.ReceivedAt)
	return append(encode.TimeIfSet(b, `,"refunded_at":`, p.RefundedAt), '}')
}

// appendPayments appends received amounts as a list.
func appendPayments(b []byte, payments []order.PaymentRecord) []byte {
	return append(encode.List(append(b, '['), payments, appendPayment), ']')
}

// appendItem appends an item in the API's format, in its state at now.
func appendItem(b []byte, i *catalog.Item, now time.Time) []byte {
	return encode.ServerTime(appendItemHead(b, i, now), now)
}

// appendItemHead appends an item without its server_time, the only member that always changes.
func appendItemHead(b []byte, i *catalog.Item, now time.Time) []byte {
	b = encode.TextField(b, `{"id":`, i.ID)
	b = encode.TextField(b, `,"name":`, i.Name)
	b = encode.TextField(b, `,"description":`, i.Description)
	b = encode.TextIfSet(b, `,"image_url":`, i.ImageURL)
	b = encode.IntField(b, `,"price_minor":`, i.PriceMinor)
	b = encode.TextField(b, `,"currency":`, i.Currency)
	b = encode.IntField(b, `,"stock_total":`, i.StockTotal)
	b = encode.IntField(b, `,"stock_left":`, i.StockLeft)
	b = encode.IntField(b, `,"per_user_limit":`, i.PerUserLimit)
	b = encode.TimeField(b, `,"opens_at":`, i.OpensAt)
	if i.ClosesAt.IsZero() {
		b = append(b, `,"closes_at":null`...)
	} else {
		b = encode.TimeField(b, `,"closes_at":`, i.ClosesAt)
	}
	b = encode.IntField(b, `,"payment_window_seconds":`, int64(i.PaymentWindow/time.Second))
	if i.Buckets > 1 {
		b = encode.IntField(b, `,"buckets":`, int64(i.Buckets))
	}
	b = encode.TextField(b, `,"state":`, string(i.State(now)))
	return encode.IntField(b, `,"version":`, i.ShownVersion())
}

// appendBucket appends the item of a bucket, and the bucket's number unless it is 0.
func appendBucket(b []byte, id string) []byte {
	item, number := bucket.Split(id)
	b = encode.TextField(b, `"item_id":`, item)
	if number > 0 {
		b = encode.IntField(b, `,"bucket":`, int64(number))
	}
	return b
}

// appendLedger appends the conservation equation.
func appendLedger(b []byte, l order.Ledger) []byte {
	b = encode.IntField(b, `{"initial":`, l.Initial)
	b = encode.IntField(b, `,"restocked":`, l.Restocked)
	b = encode.IntField(b, `,"left":`, l.Left)
	b = encode.IntField(b, `,"held":`, l.Held)
	b = encode.IntField(b, `,"sold":`, l.Sold)
	return append(encode.BoolField(b, `,"balanced":`, l.Balanced()), '}')
}
