package ordertest

import (
	"strings"
	"testing"

	"flashsale/internal/testing/await"
	"flashsale/inventory/accepted"
	"flashsale/order"
	"flashsale/queue"
)

// Parcel returns the task of several orders, as the purchase script adds it, without its stamp.
func Parcel(id string, tasks ...order.Task) queue.Task {
	lines := make([]string, len(tasks))
	for i := range tasks {
		lines[i] = tasks[i].ID + "\t" + tasks[i].Payload()
	}
	return queue.Task{
		ID: id, Type: accepted.TaskType, Payload: []byte("p1\t\n" + strings.Join(lines, "\n")), Entries: len(tasks),
	}
}

// TaskOf returns the id of an order's task.
func TaskOf(t testing.TB, q *queue.Queue, orderID string) string {
	t.Helper()
	found, err := accepted.NewOrders(q).Find(await.Context(t), orderID)
	if err != nil || found[0].OrderID == "" {
		t.Fatalf("task of order %s: %+v, %v", orderID, found, err)
	}
	return found[0].TaskID
}

// MustParse parses the payload of a task with one order.
func MustParse(t *testing.T, id string, payload []byte) order.Task {
	t.Helper()
	orders := accepted.OrdersOf(id, payload)
	if len(orders) != 1 {
		t.Fatalf("task %s has %d orders", id, len(orders))
	}
	parsed, err := order.ParseAccepted(orders[0])
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}
