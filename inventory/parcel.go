package inventory

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"flashsale/queue"
)

// A parcel is the task of all orders that one purchase script has accepted, so that the
// queue works once per batch. Its payload is a line with the script's stamp, and then a
// line per order: the id, a tab and the request's payload.
//
// The ids of a batch's orders differ from the id of its task only in the last four digits,
// the order's place in the batch. So an order's id leads to its task.
const (
	// ParcelType is the type of parcels. A version of the program without parcels
	// retries tasks of a type that it does not know.
	ParcelType = "parcel"

	parcelHead   = "p1\t" // begins the payload; an order's payload begins otherwise
	placeDigits  = 4
	singlePrefix = "o:"
)

// Accepted is an accepted order as its task holds it.
type Accepted struct {
	OrderID string
	TaskID  string
	Payload string // Request.Payload
	// Stamp is the epoch and the sequence of the sale, separated by a dot; empty if the
	// payload contains it or was added by a version without stamps.
	Stamp string
}

// OrdersOf returns the orders of a task: one, unless the task is a parcel. A payload that
// nothing can read is one order, too, with an unreadable payload.
func OrdersOf(taskID string, payload []byte) []Accepted {
	whole := string(payload)
	single := []Accepted{{OrderID: strings.TrimPrefix(taskID, singlePrefix), TaskID: taskID, Payload: whole}}
	text, isParcel := strings.CutPrefix(whole, parcelHead)
	if !isParcel {
		return single
	}
	stamp, text, _ := strings.Cut(text, "\n")
	orders := make([]Accepted, 0, strings.Count(text, "\n")+1)
	for more := true; more; {
		var line string
		line, text, more = strings.Cut(text, "\n")
		id, payload, ok := strings.Cut(line, "\t")
		if !ok {
			return single
		}
		orders = append(orders, Accepted{OrderID: id, TaskID: taskID, Payload: payload, Stamp: stamp})
	}
	return orders
}

// SingleTask returns the id and payload of a task for one order of a parcel, which is
// retried apart from the others.
func SingleTask(a Accepted) (id string, payload []byte) {
	payload = []byte(a.Payload)
	if a.Stamp != "" {
		payload = append(append(payload, '\t'), a.Stamp...)
	}
	return singlePrefix + a.OrderID, payload
}

// Orders reads the orders in a task queue, whatever tasks they are in.
type Orders struct{ queue *queue.Queue }

// NewOrders returns the orders of a queue.
func NewOrders(q *queue.Queue) Orders { return Orders{q} }

// findPage is how many parcels are read together, about two megabytes of large ones.
const findPage = 64

// Find returns orders by their ids, in the order of the ids; an empty OrderID says that the
// order is in no task. Errors: those of Redis.
func (o Orders) Find(ctx context.Context, ids ...string) ([]Accepted, error) {
	places := make(map[string][]int) // in ids, by the parcel's id
	var parcels []string
	for i, id := range ids {
		parcel := parcelOf(id)
		if places[parcel] == nil {
			parcels = append(parcels, parcel)
		}
		places[parcel] = append(places[parcel], i)
	}
	out := make([]Accepted, len(ids))
	for page := range slices.Chunk(parcels, findPage) {
		payloads, err := o.queue.Payloads(ctx, page...)
		if err != nil {
			return nil, err
		}
		for i, payload := range payloads {
			if payload != nil {
				pick(out, ids, places[page[i]], page[i], payload)
			}
		}
	}
	// After the parcels, because an order moves from its parcel to a task of its own.
	singles := make([]string, 0, 2*len(ids))
	for _, id := range ids {
		singles = append(singles, singlePrefix+id, id)
	}
	payloads, err := o.queue.Payloads(ctx, singles...)
	if err != nil {
		return nil, err
	}
	for i, payload := range payloads {
		if payload != nil {
			pick(out, ids, []int{i / 2}, singles[i], payload)
		}
	}
	return out, nil
}

// fewPicked is how many orders of a parcel are searched for instead of reading all its lines.
const fewPicked = 4

// pick sets those of out whose order is in a task.
func pick(out []Accepted, ids []string, places []int, taskID string, payload []byte) {
	if len(places) <= fewPicked && bytes.HasPrefix(payload, []byte(parcelHead)) {
		stamp, _, _ := bytes.Cut(payload[len(parcelHead):], []byte{'\n'})
		for _, place := range places {
			_, line, found := bytes.Cut(payload, []byte("\n"+ids[place]+"\t"))
			if found {
				line, _, _ = bytes.Cut(line, []byte{'\n'})
				out[place] = Accepted{OrderID: ids[place], TaskID: taskID, Payload: string(line), Stamp: string(stamp)}
			}
		}
		return
	}
	at := make(map[string]Accepted)
	for _, a := range OrdersOf(taskID, payload) {
		at[a.OrderID] = a
	}
	for _, place := range places {
		if a, found := at[ids[place]]; found {
			out[place] = a
		}
	}
}

// Scan calls fn for every order in the queue, in any state, dead letters included. It may
// miss orders that are added or removed during the scan, and may visit an order twice. It
// stops at the first error of fn. Errors: fn's, and those of Redis.
func (o Orders) Scan(ctx context.Context, fn func(Accepted) error) error {
	before, err := o.queue.Stats(ctx)
	if err != nil {
		return err
	}
	each := func(id string, payload []byte) error {
		for _, a := range OrdersOf(id, payload) {
			if err := fn(a); err != nil {
				return err
			}
		}
		return nil
	}
	if err := o.queue.Scan(ctx, each); err != nil {
		return err
	}
	after, err := o.queue.Stats(ctx)
	if err != nil || after.Split == before.Split {
		return err
	}
	// An order that moved to a task of its own may have been missed in both.
	return o.queue.Scan(ctx, func(id string, payload []byte) error {
		if !strings.HasPrefix(id, singlePrefix) {
			return nil
		}
		return each(id, payload)
	})
}

// State returns the state of an order's task; empty if the order is in no task. Errors:
// those of Redis.
func (o Orders) State(ctx context.Context, id string) (queue.State, error) {
	found, err := o.Find(ctx, id)
	if err != nil || found[0].OrderID == "" {
		return "", err
	}
	tasks, err := o.queue.Get(ctx, found[0].TaskID)
	if err != nil {
		return "", err
	}
	return tasks[0].State, nil
}

// Stats is queue.Queue.Stats.
func (o Orders) Stats(ctx context.Context) (queue.Stats, error) { return o.queue.Stats(ctx) }

// parcelOf returns the id of the task that has the order of this id, if it is in a parcel.
func parcelOf(orderID string) string {
	if len(orderID) <= placeDigits {
		return orderID
	}
	return orderID[:len(orderID)-placeDigits] + "0000"
}

// newParcelID returns a new id for a batch's task, a UUIDv7.
func newParcelID() (string, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return "", fmt.Errorf("make the orders' ids: %w", err)
	}
	return parcelOf(id.String()), nil
}

// name gives the requests of a batch their order ids.
func name(batch []*Request, parcel string) {
	const digits = "0123456789abcdef"
	size := len(parcel)
	all := make([]byte, 0, size*len(batch))
	for i := 1; i <= len(batch); i++ { // so that no order has the task's id
		all = append(all, parcel[:size-placeDigits]...)
		all = append(all, digits[i>>12&15], digits[i>>8&15], digits[i>>4&15], digits[i&15])
	}
	ids := string(all) // one allocation for the whole batch
	for i, r := range batch {
		r.OrderID = ids[size*i : size*(i+1)]
		if r.Named != nil {
			r.Named(r.OrderID)
		}
	}
}

// appendLines appends the lines of a batch's task.
func appendLines(b []byte, batch []*Request) []byte {
	for i, r := range batch {
		if i > 0 {
			b = append(b, '\n')
		}
		b = append(append(append(b, r.OrderID...), '\t'), r.Payload...)
	}
	return b
}

// appendFields appends, for each request of a batch, its field of the idempotency hash and the
// field's value. One allocation holds the text of all.
func appendFields(fields []string, batch []*Request) []string {
	size := 0
	for _, r := range batch {
		size += len(r.Buyer) + 1 + len(r.IdempotencyKey) + maxDigits + 1 + len(r.OrderID)
	}
	text := make([]byte, 0, size)
	ends := make([]int, 0, 2*len(batch))
	for _, r := range batch {
		text = append(append(append(text, r.Buyer...), ' '), r.IdempotencyKey...)
		ends = append(ends, len(text))
		text = append(append(strconv.AppendInt(text, r.Quantity, 10), ':'), r.OrderID...)
		ends = append(ends, len(text))
	}
	all, from := string(text), 0
	for _, to := range ends {
		fields, from = append(fields, all[from:to]), to
	}
	return fields
}

// maxDigits is the number of digits of the largest quantity.
const maxDigits = 19
