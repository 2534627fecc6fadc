package worker

import (
	"time"

	"flashsale/internal/tracing"
	"flashsale/inventory/accepted"
	"flashsale/order"
	"flashsale/queue"
)

// observe reports committed orders.
func (f *Fulfiller) observe(tasks []order.Task, out []order.Outcome) {
	if f.observer.Committed == nil {
		return
	}
	for i := range tasks {
		f.observer.Committed(&tasks[i], &out[i])
	}
}

// splitOff reports the orders of a task that failed and continue in tasks of their own.
func (f *Fulfiller) splitOff(t *purchaseTask, results []orderResult) {
	if f.observer.Failed == nil || len(t.accepted) == 1 {
		return // the queue reports the failure of a single order
	}
	for i, a := range t.accepted {
		var err error
		if n := t.from + i; n < t.to {
			if results[n].retry != nil {
				return // the whole task is handled again
			}
			err = results[n].poison
		} else {
			err = t.broken[n-t.to]
		}
		if err != nil {
			f.observer.Failed(failureOf(a, t.leased, false, err))
		}
	}
}

// failed is the queue's OnFailure: a task has failed as a whole.
func (f *Fulfiller) failed(l queue.Leased, err error, dead bool) {
	if f.observer.Failed == nil || !order.IsPurchase(l.Type) {
		return
	}
	if l.Payload == nil { // its worker died
		f.observer.Failed(Failure{TaskID: l.ID, Attempt: l.Attempt, Dead: dead, Err: err})
		return
	}
	for _, a := range accepted.OrdersOf(l.ID, l.Payload) {
		f.observer.Failed(failureOf(a, &l, dead, err))
	}
}

func failureOf(a accepted.Order, l *queue.Leased, dead bool, err error) Failure {
	out := Failure{OrderID: a.OrderID, TaskID: l.ID, Attempt: l.Attempt, Dead: dead, Err: err}
	if t, perr := order.ParseAccepted(a); perr == nil {
		out.RequestID = t.RequestID
	}
	return out
}

// traceFailure makes the spans of a sampled order that could not be committed.
func (f *Fulfiller) traceFailure(t *order.Task, l *queue.Leased, err error) {
	if parent := f.tracer.Parse(t.Trace); parent != nil {
		parent.Record("order.queue", l.FetchedAt.Add(-l.Waited), l.FetchedAt)
		parent.Fail("order.commit", t.ID, l.FetchedAt, time.Now(), err)
	}
}

// trace makes the spans of the sampled orders of a transaction that ended at a time.
func (f *Fulfiller) trace(tasks []order.Task, results []orderResult, out []order.Outcome, at time.Time) {
	var parts []tracing.Part
	var of []int // the order of each part
	from := at
	for i := range tasks {
		if tasks[i].Trace == "" {
			continue
		}
		parent := f.tracer.Parse(tasks[i].Trace)
		if parent == nil {
			continue
		}
		l := results[i].leased
		parent.Record("order.queue", l.FetchedAt.Add(-l.Waited), l.FetchedAt)
		parts = append(parts, tracing.Part{Parent: parent, From: l.FetchedAt, OrderID: tasks[i].ID})
		of = append(of, i)
		if l.FetchedAt.Before(from) {
			from = l.FetchedAt
		}
	}
	if len(parts) == 0 {
		return
	}
	s := tracing.Share("batch.commit", "order.commit", "", len(tasks), from, parts)
	for part, i := range of {
		if out[i].Status == order.StatusRejected {
			s.Fail(part, out[i].Reason)
		}
	}
	s.End(at)
}
