package timeline

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"flashsale/inventory/accepted"
	"flashsale/order"
	"flashsale/queue"
)

// sequence is the order of events of the same millisecond.
var sequence = []Kind{
	KindRequested, KindQueued, KindDeadLetter, KindCommitted, KindRejected, KindPayment, KindPaid,
	KindCancelled, KindExpired, KindRefunded, KindPaymentRefunded, KindRelease, KindAudit, KindWebhook,
}

// build makes the timeline of an order from its rows and its tasks. queueName is that of the
// queue in which it is or was.
func build(id string, r *rows, queueName string, tasks ...located) Timeline {
	t := Timeline{Order: r.order, Payments: r.payments, Truncated: r.truncated}
	// An order whose key another order has is stored with its id after the key. An erasure puts
	// the id in place of the key.
	if key := strings.TrimSuffix(r.order.IdempotencyKey, " "+id); key != id {
		t.IdempotencyKey = key
	}
	batch := accepted.TaskOf(id)
	for i := range tasks {
		l := &tasks[i]
		if !l.found {
			continue
		}
		t.Tasks = append(t.Tasks, l.Task)
		if l.readable {
			t.RequestID = l.task.RequestID
		}
		if l.ID == id { // a version without batches has added it
			batch = id
		}
		if l.State == queue.StateDead {
			t.add(l.At, Event{Kind: KindDeadLetter, Task: l.Task})
		}
	}
	t.addStates(r.releasing, Task{ID: batch, Queue: queueName})
	t.addRecords(r)
	slices.SortStableFunc(t.Events, func(a, b Event) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(slices.Index(sequence, a.Kind), slices.Index(sequence, b.Kind)))
	})
	return t
}

// add adds an event, unless its time is not recorded.
func (t *Timeline) add(at time.Time, e Event) {
	if !at.IsZero() {
		e.At = at
		t.Events = append(t.Events, e)
	}
}

// addStates adds the changes of the order's state. releasing says that its units have not
// returned to their sale.
func (t *Timeline) addStates(releasing bool, batch Task) {
	o := &t.Order
	decided := o.ConfirmedAt
	if o.Status == order.StatusRejected {
		decided = o.ClosedAt
	}
	t.add(o.CreatedAt, Event{Kind: KindRequested})
	t.add(queuedAt(o, decided), Event{Kind: KindQueued, Task: batch})
	t.add(o.ConfirmedAt, Event{Kind: KindCommitted, Latency: o.ConfirmedAt.Sub(o.CreatedAt)})
	t.add(o.PaidAt, Event{Kind: KindPaid})
	releases := false
	switch o.Status {
	case order.StatusRejected:
		t.add(o.ClosedAt, Event{Kind: KindRejected, Latency: o.ClosedAt.Sub(o.CreatedAt)})
		releases = o.Reason == order.ReasonFailed // otherwise the sale was loaded again, without it
	case order.StatusCancelled:
		t.add(o.ClosedAt, Event{Kind: KindCancelled})
		releases = true
	case order.StatusExpired:
		t.add(o.ClosedAt, Event{Kind: KindExpired})
		releases = true
	case order.StatusRefunded:
		t.add(o.ClosedAt, Event{Kind: KindRefunded})
		releases = o.Restocked
	default:
	}
	if releases {
		t.add(o.ClosedAt, Event{Kind: KindRelease, Pending: releasing})
	}
}

// queuedAt returns when the order's batch was made, by the clock of the API process: its id begins
// with that time. decided is when the order was committed, or zero. The other times of an order are
// by the clock of Redis; of two clocks that differ, this order of events is kept.
func queuedAt(o *order.Order, decided time.Time) time.Time {
	at := o.CreatedAt
	if id, err := uuid.Parse(o.ID); err == nil && id.Version() == 7 {
		sec, nsec := id.Time().UnixTime()
		at = time.Unix(sec, nsec).UTC().Truncate(time.Millisecond)
	}
	if !decided.IsZero() && at.After(decided) {
		at = decided
	}
	if at.Before(o.CreatedAt) {
		at = o.CreatedAt
	}
	return at
}

// addRecords adds the payments, audit entries and webhook deliveries.
func (t *Timeline) addRecords(r *rows) {
	for i := range r.payments {
		p := &r.payments[i]
		t.add(p.ReceivedAt, Event{Kind: KindPayment, Payment: p})
		t.add(p.RefundedAt, Event{Kind: KindPaymentRefunded, Payment: p})
	}
	for i := range slices.Backward(r.audit) {
		t.add(r.audit[i].At, Event{Kind: KindAudit, Audit: &r.audit[i]})
	}
	for i := range slices.Backward(r.deliveries) {
		t.add(r.deliveries[i].CreatedAt, Event{Kind: KindWebhook, Delivery: &r.deliveries[i]})
	}
}
