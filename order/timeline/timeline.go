// Package timeline gathers everything that is recorded about one order into one list: its row,
// payments, audit entries and webhook deliveries in the database, and its tasks in the queues.
package timeline

import (
	"context"
	"fmt"
	"time"

	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/store"
	"flashsale/queue"
)

// Kind is the kind of an event.
type Kind string

// The kinds of events.
const (
	// KindRequested: the API accepted the buyer's request.
	KindRequested Kind = "requested"
	// KindQueued: the order's batch was made, which the purchase script then added to the queue.
	KindQueued Kind = "queued"
	// KindDeadLetter: a task of the order became a dead letter, and still is one.
	KindDeadLetter Kind = "dead_letter"
	KindCommitted  Kind = "committed"
	KindRejected   Kind = "rejected"
	// KindPayment: an amount was received, whether it paid the order or not.
	KindPayment Kind = "payment"
	KindPaid    Kind = "paid"
	// KindPaymentRefunded: an amount was recorded as refunded.
	KindPaymentRefunded Kind = "payment_refunded"
	KindCancelled       Kind = "cancelled"
	KindExpired         Kind = "expired"
	KindRefunded        Kind = "refunded"
	// KindRelease: it was recorded that the units of the closed order return to the stock.
	KindRelease Kind = "release"
	// KindAudit: an admin changed the order or one of its payments.
	KindAudit Kind = "audit"
	// KindWebhook: a webhook event of the order was recorded for one endpoint.
	KindWebhook Kind = "webhook"
)

// Event is one event in the life of an order. Of the fields after Kind, those of its kind are
// set; further facts are in the timeline's Order.
type Event struct {
	At   time.Time
	Kind Kind
	// Task is the task of KindQueued and KindDeadLetter. For KindQueued only ID and Queue are
	// set.
	Task Task
	// Latency is the time from the request to KindCommitted or KindRejected.
	Latency time.Duration
	// Payment is the payment of KindPayment and KindPaymentRefunded.
	Payment *order.PaymentRecord
	// Pending says for KindRelease that the units have not returned yet.
	Pending  bool
	Audit    *order.AuditEntry // of KindAudit
	Delivery *Delivery         // of KindWebhook
}

// Delivery is the delivery of one webhook event to one endpoint. A zero time means "not
// happened".
type Delivery struct {
	EndpointID, EventID string
	Type                order.EventType
	Status              string // pending, delivered or dead
	Attempts            int
	CreatedAt           time.Time
	NextAt              time.Time // of the next attempt; zero unless it is pending
	LastAt              time.Time // of the last attempt
	LastStatus          int       // the HTTP status of its answer; 0: none
	LastError           string
	DeliveredAt         time.Time
}

// TaskType is what a task does with the order.
type TaskType string

// The types of tasks, named as in the list of dead letters.
const (
	TaskPurchase TaskType = "purchase" // commits it
	TaskExpire   TaskType = "expire"   // expires it unless it is paid
)

// Task is a task of the order, which may have other orders of the same batch.
type Task struct {
	ID, Queue string
	Type      TaskType
	Orders    int // in the task
	State     queue.State
	Attempts  int
	At        time.Time // see queue.TaskInfo.At
	Reason    string    // why the last attempt failed; empty: it did not
}

// Timeline is what is recorded about an order.
type Timeline struct {
	Order    order.Order
	Payments []order.PaymentRecord // oldest first
	// IdempotencyKey is the key that the client sent; empty if it was erased.
	IdempotencyKey string
	// RequestID is the id of the purchase's request; empty if it is unknown. Only its task has it.
	RequestID string
	Events    []Event // oldest first
	// Tasks are the order's tasks that are in a queue at present.
	Tasks []Task
	// Truncated means that older webhook deliveries or audit entries were omitted.
	Truncated bool
	// Incomplete means that Redis did not answer, so all that the queues know is missing.
	Incomplete bool
}

// Tasks is the part of a task queue that a Service uses.
type Tasks interface {
	// List is queue.Queue.List.
	List(ctx context.Context, q queue.Query) (queue.Page, error)
}

// Queue is a task queue with its name for operators.
type Queue struct {
	Name  string
	Tasks Tasks
}

// Service reads timelines. Its queues are in the order of the partitions of items.
type Service struct {
	Store            *store.Store
	Orders, Expiries []Queue
}

// Timeline returns the timeline of an order in any state. Errors: order.ErrNotFound for an order
// that is neither in the database nor in a queue, inventory.ErrStopped instead while the database
// is known to have lost orders, inventory.ErrUnavailable if Redis does not answer and the order has
// no row, database.ErrTooManyLists, database.ErrUnavailable.
func (s *Service) Timeline(ctx context.Context, id string) (Timeline, error) {
	rows, err := s.readRows(ctx, id)
	if err != nil {
		return Timeline{}, err
	}
	if rows.found {
		return s.ofRow(ctx, id, &rows)
	}
	purchase, err := findIn(ctx, s.Orders, id, purchaseTasks)
	if err != nil {
		return Timeline{}, fmt.Errorf("find order %s in the queue: %w: %w", id, inventory.ErrUnavailable, err)
	}
	// It may have been committed between the two reads.
	if rows, err = s.readRows(ctx, id); err != nil {
		return Timeline{}, err
	}
	switch {
	case rows.found:
	case purchase.readable:
		rows.order = purchase.task.Queued()
	case s.Store.HighWater().AnyStopped():
		return Timeline{}, fmt.Errorf("order %s may have been lost by the database: %w", id, inventory.ErrStopped)
	default:
		return Timeline{}, order.ErrNotFound
	}
	return build(id, &rows, s.queueOf(&rows.order), purchase), nil
}

// ofRow returns the timeline of an order that has a row. It may still have tasks: the one that
// expires it, a dead letter, or one that is about to be acknowledged.
func (s *Service) ofRow(ctx context.Context, id string, r *rows) (Timeline, error) {
	o := &r.order
	var expiry located
	purchase, err := findIn(ctx, s.Orders[s.partition(o.ItemID):][:1], id, purchaseTasks)
	if err == nil && o.Status == order.StatusConfirmed && !o.ExpiresAt.IsZero() {
		expiry, err = findIn(ctx, s.Expiries[s.partition(o.ItemID):][:1], id, expiryTasks)
	}
	t := build(id, r, s.queueOf(o), purchase, expiry)
	t.Incomplete = err != nil
	return t, context.Cause(ctx)
}

// queueOf returns the name of the queue in which the order is or was.
func (s *Service) queueOf(o *order.Order) string { return s.Orders[s.partition(o.ItemID)].Name }

func (s *Service) partition(item string) int { return inventory.PartitionOf(item, len(s.Orders)) }
