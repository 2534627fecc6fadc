package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"flashsale/inventory"
	"flashsale/inventory/accepted"
	"flashsale/order/checkout"
	"flashsale/order/release"
	"flashsale/order/store"
	"flashsale/order/store/database"
	"flashsale/queue"
)

// ErrTaskNotFound means that no dead letter has that id.
var ErrTaskNotFound = errors.New("order: dead letter not found")

// NamedQueue is a task queue under the name that operators read.
type NamedQueue struct {
	Name  string
	Queue *queue.Queue
}

// Backlog lets operators read the depth of the task queues, and list, retry and discard
// dead letters.
type Backlog struct {
	ChangeNotifier *checkout.ChangeNotifier // nil: no notifications
	store          *store.Store
	releaser       *release.Releaser
	queues         []NamedQueue
	bulkTime       time.Duration // the constant; only tests set another
	groupsTime     time.Duration // the constant; only tests set another
}

// NewBacklog returns a Backlog of these queues, whose names are distinct. changes announces
// orders that are rejected; if it is nil, nothing is announced.
func NewBacklog(store *store.Store, releaser *release.Releaser, changes *checkout.ChangeNotifier, queues ...NamedQueue) *Backlog {
	return &Backlog{store: store, releaser: releaser, ChangeNotifier: changes, queues: queues, bulkTime: bulkTime, groupsTime: groupsTime}
}

// QueueDepth is the state and the counters of one queue.
type QueueDepth struct {
	Name    string
	Orders  int // in the tasks of all states; a dead letter counts as one
	Waiting int // orders in the ready, delayed and leased tasks
	Ready   int // tasks waiting to be taken
	Delayed int // not due yet, retries included
	Leased  int // held by a worker
	Dead    int // failed for good
	// OldestReady is how long the task at the head has been waiting.
	OldestReady time.Duration
	Paused      bool
	Processed   int64 // tasks done since the queue exists
	Failed      int64 // attempts that failed
	Died        int64 // tasks that became dead letters, also those retried or discarded since
	// PerSecond is how many orders were done per second, over the last full minute.
	PerSecond float64
	// WaitP50 and WaitP99 are how long half and 99 % of the tasks had waited at
	// most when they were taken, since the queue exists.
	WaitP50, WaitP99 time.Duration
}

// Depths returns the depth of every queue, in their order.
func (b *Backlog) Depths(ctx context.Context) ([]QueueDepth, error) {
	out := make([]QueueDepth, len(b.queues))
	for i, q := range b.queues {
		var err error
		if out[i], err = q.depth(ctx); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (q NamedQueue) depth(ctx context.Context) (QueueDepth, error) {
	s, err := q.Queue.Stats(ctx)
	if err != nil {
		return QueueDepth{}, unreachable(q.Name, err)
	}
	return QueueDepth{
		Name: q.Name, Orders: s.Entries, Waiting: s.Pending(), Ready: s.Ready, Delayed: s.Delayed, Leased: s.Leased, Dead: s.Dead, Died: s.Died,
		OldestReady: s.OldestReady, Paused: s.Paused, Processed: s.Processed, Failed: s.Failed,
		PerSecond: float64(s.LastMinute) / 60, WaitP50: s.Waits.Quantile(0.5), WaitP99: s.Waits.Quantile(0.99),
	}, nil
}

// unreachable is the error for a queue whose Redis did not answer.
func unreachable(name string, err error) error {
	return fmt.Errorf("queue %s: %w: %w", name, inventory.ErrUnavailable, err)
}

// Retry makes the dead letter with an id, or with the order of that id, an ordinary task again,
// resets its attempts, and returns the letter. Errors: ErrTaskNotFound,
// inventory.ErrOverloaded if the queue is full, inventory.ErrUnavailable.
func (b *Backlog) Retry(ctx context.Context, id string) (DeadLetter, error) {
	return b.find(ctx, id, func(q *queue.Queue, info *queue.TaskInfo) (queue.Status, error) {
		status, err := q.RunNow(ctx, time.Time{}, info.ID)
		return first(status), err
	})
}

// Discard removes the dead letter with an id, or with the order of that id, permanently and
// returns it. If it has purchases, all its orders are first rejected with the reason
// "failed": their buyers get a final status, and their units return to stock. Errors:
// ErrTaskNotFound, database.ErrUnavailable, inventory.ErrUnavailable.
func (b *Backlog) Discard(ctx context.Context, id string) (DeadLetter, error) {
	return b.find(ctx, id, func(q *queue.Queue, info *queue.TaskInfo) (queue.Status, error) {
		rejected, _, err := b.rejectAll(ctx, rejectable(info.Type, info.ID, info.Payload))
		if err != nil {
			return queue.StatusUnknown, err
		}
		status, err := q.DeleteDead(ctx, info.ID)
		if len(rejected) > 0 && first(status) == queue.StatusMissing {
			return queue.StatusOK, nil // retried concurrently: the task finds its order rejected, and ends
		}
		return first(status), err
	})
}

// find calls do with the queue that has the dead letter.
func (b *Backlog) find(ctx context.Context, id string, do func(*queue.Queue, *queue.TaskInfo) (queue.Status, error)) (DeadLetter, error) {
	for _, q := range b.queues {
		status := queue.StatusUnknown
		letter, err := deadTask(ctx, q.Queue, id)
		if err == nil {
			if letter == nil {
				continue
			}
			status, err = do(q.Queue, letter)
		}
		switch {
		case err == nil && status == queue.StatusMissing: // another call was faster
			return DeadLetter{}, ErrTaskNotFound
		case err == nil:
			return deadLetter(q.Name, letter), nil
		case errors.Is(err, queue.ErrFull):
			return DeadLetter{}, fmt.Errorf("queue %s: %w", q.Name, inventory.ErrOverloaded)
		case errors.Is(err, database.ErrUnavailable):
			return DeadLetter{}, err
		}
		return DeadLetter{}, unreachable(q.Name, err)
	}
	return DeadLetter{}, ErrTaskNotFound
}

// deadTask returns the dead letter with an id, or that of the order with the id; nil if there
// is none.
func deadTask(ctx context.Context, q *queue.Queue, id string) (*queue.TaskInfo, error) {
	ids := []string{id}
	found, err := accepted.NewOrders(q).Find(ctx, id)
	if err != nil {
		return nil, err
	}
	if found[0].OrderID != "" {
		ids = append(ids, found[0].TaskID)
	}
	page, err := q.List(ctx, queue.Query{IDs: ids})
	if err != nil {
		return nil, err
	}
	for i := range page.Tasks {
		if page.Tasks[i].State == queue.StateDead {
			return &page.Tasks[i], nil
		}
	}
	return nil, nil
}

// first is the status of the only task; StatusUnknown where the call failed.
func first(status []queue.Status) queue.Status {
	if len(status) == 0 {
		return queue.StatusUnknown
	}
	return status[0]
}

// QueueCheck is the result of checking every task of one queue.
type QueueCheck struct {
	Name     string
	Tasks    int // checked
	Lost     int // in no state; repair makes them ready
	Doubled  int // in several states; repair keeps one
	Bodiless int // without payload; repair makes them dead letters
	Repaired bool
}

// Verify checks that every task is in exactly one state and has a payload. With repair it
// corrects the others. It may run concurrently with all other operations. Errors:
// inventory.ErrUnavailable.
func (b *Backlog) Verify(ctx context.Context, repair bool) ([]QueueCheck, error) {
	out := make([]QueueCheck, len(b.queues))
	for i, q := range b.queues {
		r, err := q.Queue.Verify(ctx, repair)
		if err != nil {
			return nil, unreachable(q.Name, err)
		}
		out[i] = QueueCheck{
			Name: q.Name, Tasks: r.Tasks, Lost: len(r.Lost), Doubled: len(r.Doubled), Bodiless: len(r.Bodiless),
			Repaired: repair && !r.Clean(),
		}
	}
	return out, nil
}
