// Package accepted reads the orders that purchases have added to a task queue: by their
// ids, all of them, or those of a buyer.
package accepted

import (
	"fmt"
	"strings"

	"github.com/google/uuid"
)

// A parcel is the task of all orders that one purchase script has accepted, so that the
// queue works once per batch. Its payload is a line with the script's stamp, and then a
// line per order: the id, a tab and the request's payload.
//
// The ids of a batch's orders differ from the id of its task only in the last four digits,
// the order's place in the batch. So an order's id leads to its task.
const (
	// TaskType is the type of parcels. A version of the program without parcels
	// retries tasks of a type that it does not know.
	TaskType = "parcel"

	parcelHead   = "p1\t" // begins the payload; an order's payload begins otherwise
	placeDigits  = 4
	singlePrefix = "o:"
)

// Order is an accepted order as its task holds it.
type Order struct {
	OrderID string
	TaskID  string
	Payload string // Request.Payload
	// Stamp is the epoch and the sequence of the sale, separated by a dot; empty if the
	// payload contains it or was added by a version without stamps.
	Stamp string
}

// OrdersOf returns the orders of a task: one, unless the task is a parcel. A payload that
// nothing can read is one order, too, with an unreadable payload.
func OrdersOf(taskID string, payload []byte) []Order {
	whole := string(payload)
	single := []Order{{OrderID: strings.TrimPrefix(taskID, singlePrefix), TaskID: taskID, Payload: whole}}
	text, isParcel := strings.CutPrefix(whole, parcelHead)
	if !isParcel {
		return single
	}
	stamp, text, _ := strings.Cut(text, "\n")
	orders := make([]Order, 0, strings.Count(text, "\n")+1)
	for more := true; more; {
		var line string
		line, text, more = strings.Cut(text, "\n")
		id, payload, ok := strings.Cut(line, "\t")
		if !ok {
			return single
		}
		orders = append(orders, Order{OrderID: id, TaskID: taskID, Payload: payload, Stamp: stamp})
	}
	return orders
}

// SingleTask returns the id and payload of a task for one order of a parcel, which is
// retried apart from the others.
func SingleTask(a Order) (id string, payload []byte) {
	payload = []byte(a.Payload)
	if a.Stamp != "" {
		payload = append(append(payload, '\t'), a.Stamp...)
	}
	return singlePrefix + a.OrderID, payload
}

// TaskOf returns the id of the task that has the order of this id, if it is in a parcel.
func TaskOf(orderID string) string {
	if len(orderID) <= placeDigits {
		return orderID
	}
	return orderID[:len(orderID)-placeDigits] + "0000"
}

// NewTaskID returns a new id for a batch's task, a UUIDv7.
func NewTaskID() (string, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return "", fmt.Errorf("make the orders' ids: %w", err)
	}
	return TaskOf(id.String()), nil
}

// AppendOrderID appends the id of the nth order (1 or more) of a parcel.
func AppendOrderID(b []byte, taskID string, n int) []byte {
	const digits = "0123456789abcdef"
	b = append(b, taskID[:len(taskID)-placeDigits]...)
	return append(b, digits[n>>12&15], digits[n>>8&15], digits[n>>4&15], digits[n&15])
}

// AppendLine appends an order's line of a parcel. first says that no other line precedes it.
func AppendLine(b []byte, first bool, orderID, payload string) []byte {
	if !first {
		b = append(b, '\n')
	}
	return append(append(append(b, orderID...), '\t'), payload...)
}
