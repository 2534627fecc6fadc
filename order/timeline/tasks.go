package timeline

import (
	"context"
	"slices"

	"flashsale/inventory/accepted"
	"flashsale/order"
	"flashsale/order/timeouts"
	"flashsale/queue"
)

// located is a task of the order, or the result of a search that found none.
type located struct {
	Task
	found    bool
	readable bool       // task is set
	task     order.Task // the purchase
}

// tasksOf returns the ids of the tasks of one type that may have an order, and a function that
// reads it from the payload of such a task.
type tasksOf func(orderID string) (ids []string, look func(i queue.TaskInfo) located)

// purchaseTasks are the task of the order's batch, the task of the order if it failed apart from
// the others, and the task of a version without batches.
func purchaseTasks(orderID string) (ids []string, look func(i queue.TaskInfo) located) {
	single, _ := accepted.SingleTask(accepted.Order{OrderID: orderID})
	ids = []string{accepted.TaskOf(orderID), single, orderID}
	return ids, func(i queue.TaskInfo) (l located) {
		orders := accepted.OrdersOf(i.ID, i.Payload)
		at := slices.IndexFunc(orders, func(a accepted.Order) bool { return a.OrderID == orderID })
		if at < 0 {
			return l
		}
		l.found, l.Type, l.Orders = true, TaskPurchase, len(orders)
		t, err := order.ParseAccepted(orders[at])
		if err == nil {
			l.task, l.readable = t, true
		}
		return l
	}
}

// expiryTasks are the tasks that follow those of purchaseTasks.
func expiryTasks(orderID string) (ids []string, look func(i queue.TaskInfo) located) {
	ids, _ = purchaseTasks(orderID)
	for i := range ids {
		ids[i] = order.ExpiryPrefix + ids[i]
	}
	return ids, func(i queue.TaskInfo) (l located) {
		_, orders := order.ParseExpiry(i.ID, i.Payload)
		return located{found: slices.Contains(orders, orderID), Task: Task{Type: TaskExpire, Orders: len(orders)}}
	}
}

// findIn searches queues for an order, one after the other. Errors: those of Redis.
func findIn(ctx context.Context, queues []Queue, orderID string, of tasksOf) (l located, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	for i := range queues {
		if l, err = find(ctx, queues[i], orderID, of); err != nil || l.found {
			return l, err
		}
	}
	return l, nil
}

// find searches a queue for an order, in one script. Errors: those of Redis.
func find(ctx context.Context, q Queue, orderID string, of tasksOf) (located, error) {
	ids, look := of(orderID)
	page, err := q.Tasks.List(ctx, queue.Query{IDs: ids})
	if err != nil {
		return located{}, err
	}
	for i := range page.Tasks {
		info := &page.Tasks[i]
		if info.Payload == nil || info.State == "" {
			continue
		}
		l := look(*info)
		if l.found {
			l.ID, l.Queue, l.State, l.Attempts, l.At, l.Reason = info.ID, q.Name, info.State, info.Attempt, info.At, info.Reason
			return l, nil
		}
	}
	return located{}, nil
}
