package order

import (
	"testing"
	"time"
)

func TestOrder_EventsAfter(t *testing.T) {
	t.Parallel()
	at := func(ms int64) time.Time { return time.UnixMilli(ms).UTC() }
	base := Order{ID: "o", ItemID: "i", UserID: "u", Quantity: 2, UnitPriceMinor: 5, Currency: "EUR", IdempotencyKey: "k", CreatedAt: at(1)}
	queued, confirmed, free, rejected := base, base, base, base
	queued.Status = StatusQueued
	confirmed.Status, confirmed.ConfirmedAt, confirmed.ExpiresAt = StatusConfirmed, at(2), at(9)
	free.Status, free.ConfirmedAt = StatusConfirmed, at(2)
	paid, cancelled, expired := confirmed, confirmed, confirmed
	paid.Status, paid.PaidAt, paid.PaymentReference = StatusPaid, at(3), "psp-1"
	refunded := paid
	refunded.Status, refunded.ClosedAt, refunded.Restocked = StatusRefunded, at(4), true
	cancelled.Status, cancelled.ClosedAt, cancelled.Reason = StatusCancelled, at(3), ReasonBuyer
	expired.Status, expired.ClosedAt, expired.Reason = StatusExpired, at(9), ReasonUnpaid
	rejected.Status, rejected.ClosedAt, rejected.Reason = StatusRejected, at(2), ReasonSoldOut
	for _, tt := range []struct {
		name    string
		order   Order
		settled bool
		want    []Order // all events, in order
	}{
		{"queued", queued, false, []Order{queued}},
		{"confirmed", confirmed, false, []Order{queued, confirmed}},
		{"confirmed for good", free, true, []Order{queued, free}},
		{"paid", paid, true, []Order{queued, confirmed, paid}},
		{"refunded", refunded, true, []Order{queued, confirmed, paid, refunded}},
		{"cancelled", cancelled, true, []Order{queued, confirmed, cancelled}},
		{"expired", expired, true, []Order{queued, confirmed, expired}},
		{"rejected", rejected, true, []Order{queued, rejected}},
	} {
		if got := tt.order.Settled(); got != tt.settled {
			t.Errorf("%s: settled %v", tt.name, got)
		}
		if got := tt.order.Place(); got != len(tt.want) {
			t.Errorf("%s: place %d, want %d", tt.name, got, len(tt.want))
		}
		for after := -1; after <= len(tt.want)+1; after++ {
			got := tt.order.EventsAfter(after)
			want := tt.want[min(max(after, 0), len(tt.want)):]
			if len(got) != len(want) {
				t.Fatalf("%s after %d: %d events, want %d", tt.name, after, len(got), len(want))
			}
			for i := range got {
				if number := max(after, 0) + 1 + i; got[i] != (Event{number, want[i]}) {
					t.Errorf("%s after %d: %+v, want number %d of %+v", tt.name, after, got[i], number, want[i])
				}
			}
		}
	}
}
