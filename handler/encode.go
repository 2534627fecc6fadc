package handler

import (
	"strconv"
	"time"
	"unicode/utf8"

	"flashsale/catalog"
	"flashsale/order"
)

const hexDigits = "0123456789abcdef"

// appendString appends s as a JSON string. Invalid UTF-8 becomes U+FFFD, and characters that a
// browser could interpret as markup or a line end are escaped.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(s[i:])
			switch {
			case r == utf8.RuneError && size == 1:
				b = append(append(b, s[start:i]...), `\ufffd`...)
				start = i + size
			case r == '\u2028' || r == '\u2029':
				b = append(append(b, s[start:i]...), `\u202`...)
				b = append(b, hexDigits[r&0xF])
				start = i + size
			}
			i += size
			continue
		}
		if c >= ' ' && c != '"' && c != '\\' && c != '<' && c != '>' && c != '&' && c != 0x7f {
			i++
			continue
		}
		b = append(b, s[start:i]...)
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, '\\', 'n')
		case '\r':
			b = append(b, '\\', 'r')
		case '\t':
			b = append(b, '\\', 't')
		default:
			b = append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&0xF])
		}
		i++
		start = i
	}
	b = append(b, s[start:]...)
	return append(b, '"')
}

// appendTime appends t as an RFC 3339 string in UTC, truncated to milliseconds. Years outside 0
// to 9999 have no such form and do not occur.
func appendTime(b []byte, t time.Time) []byte {
	t = t.UTC()
	year, month, day := t.Date()
	hour, minute, second := t.Clock()
	ms := t.Nanosecond() / int(time.Millisecond)
	b = append(b, '"',
		byte('0'+year/1000%10), byte('0'+year/100%10), byte('0'+year/10%10), byte('0'+year%10), '-',
		byte('0'+int(month)/10), byte('0'+int(month)%10), '-',
		byte('0'+day/10), byte('0'+day%10), 'T',
		byte('0'+hour/10), byte('0'+hour%10), ':',
		byte('0'+minute/10), byte('0'+minute%10), ':',
		byte('0'+second/10), byte('0'+second%10), '.',
		byte('0'+ms/100), byte('0'+ms/10%10), byte('0'+ms%10), 'Z', '"')
	return b
}

// The functions below append `"name":value`; the caller adds separators to the name.

func appendTextField(b []byte, name, value string) []byte {
	return appendString(append(b, name...), value)
}

func appendIntField(b []byte, name string, value int64) []byte {
	return strconv.AppendInt(append(b, name...), value, 10)
}

func appendTimeField(b []byte, name string, value time.Time) []byte {
	return appendTime(append(b, name...), value)
}

// appendTimeIfSet omits a zero time.
func appendTimeIfSet(b []byte, name string, value time.Time) []byte {
	if value.IsZero() {
		return b
	}
	return appendTimeField(b, name, value)
}

// appendTextIfSet omits an empty text.
func appendTextIfSet(b []byte, name, value string) []byte {
	if value == "" {
		return b
	}
	return appendTextField(b, name, value)
}

// appendList appends the entries of a JSON array, which the caller opens and closes.
func appendList[T any](b []byte, all []T, one func([]byte, *T) []byte) []byte {
	for i := range all {
		if i > 0 {
			b = append(b, ',')
		}
		b = one(b, &all[i])
	}
	return b
}

func appendBoolField(b []byte, name string, value bool) []byte {
	return strconv.AppendBool(append(b, name...), value)
}

// appendOrder appends an order in the API's format.
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

// appendItem appends an item in the API's format, in its state at now.
func appendItem(b []byte, i *catalog.Item, now time.Time) []byte {
	return appendServerTime(appendItemHead(b, i, now), now)
}

// appendServerTime appends the end of an item.
func appendServerTime(b []byte, now time.Time) []byte {
	return append(appendTimeField(b, `,"server_time":`, now), '}')
}

// appendItemHead appends an item without its server_time, the only member that always changes.
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
