package accepted

import (
	"bytes"
	"context"
	"slices"
	"strings"

	"flashsale/queue"
)

// Orders reads the orders in a task queue, whatever tasks they are in.
type Orders struct{ queue *queue.Queue }

// NewOrders returns the orders of a queue.
func NewOrders(q *queue.Queue) Orders { return Orders{q} }

// findPage is how many parcels are read together, about two megabytes of large ones.
const findPage = 64

// Find returns orders by their ids, in the order of the ids; an empty OrderID says that the
// order is in no task. Errors: those of Redis.
func (o Orders) Find(ctx context.Context, ids ...string) ([]Order, error) {
	places := make(map[string][]int) // in ids, by the parcel's id
	var parcels []string
	for i, id := range ids {
		parcel := TaskOf(id)
		if places[parcel] == nil {
			parcels = append(parcels, parcel)
		}
		places[parcel] = append(places[parcel], i)
	}
	out := make([]Order, len(ids))
	for page := range slices.Chunk(parcels, findPage) {
		tasks, err := o.payloads(ctx, page)
		if err != nil {
			return nil, err
		}
		for i := range tasks {
			if tasks[i].Payload != nil {
				pick(out, ids, places[page[i]], page[i], tasks[i].Payload)
			}
		}
	}
	// After the parcels, because an order moves from its parcel to a task of its own.
	singles := make([]string, 0, 2*len(ids))
	for _, id := range ids {
		singles = append(singles, singlePrefix+id, id)
	}
	tasks, err := o.payloads(ctx, singles)
	if err != nil {
		return nil, err
	}
	for i := range tasks {
		if tasks[i].Payload != nil {
			pick(out, ids, []int{i / 2}, singles[i], tasks[i].Payload)
		}
	}
	return out, nil
}

func (o Orders) payloads(ctx context.Context, ids []string) ([]queue.TaskInfo, error) {
	page, err := o.queue.List(ctx, queue.Query{IDs: ids, Fields: queue.PayloadField})
	return page.Tasks, err
}

// fewPicked is how many orders of a parcel are searched for instead of reading all its lines.
const fewPicked = 4

// pick sets those of out whose order is in a task.
func pick(out []Order, ids []string, places []int, taskID string, payload []byte) {
	if len(places) <= fewPicked && bytes.HasPrefix(payload, []byte(parcelHead)) {
		stamp, _, _ := bytes.Cut(payload[len(parcelHead):], []byte{'\n'})
		for _, place := range places {
			_, line, found := bytes.Cut(payload, []byte("\n"+ids[place]+"\t"))
			if found {
				line, _, _ = bytes.Cut(line, []byte{'\n'})
				out[place] = Order{OrderID: ids[place], TaskID: taskID, Payload: string(line), Stamp: string(stamp)}
			}
		}
		return
	}
	at := make(map[string]Order)
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
func (o Orders) Scan(ctx context.Context, fn func(Order) error) error {
	before, err := o.queue.Stats(ctx)
	if err != nil {
		return err
	}
	if err := o.scan(ctx, "", fn); err != nil {
		return err
	}
	after, err := o.queue.Stats(ctx)
	if err != nil || after.Split == before.Split {
		return err
	}
	// An order that moved to a task of its own may have been missed in both.
	return o.scan(ctx, singlePrefix, fn)
}

// scanPage is how many tasks are read together, about a megabyte of large ones.
const scanPage = 128

// scan calls fn for every order in the tasks whose ids have a prefix.
func (o Orders) scan(ctx context.Context, prefix string, fn func(Order) error) error {
	tasks := queue.Query{Limit: scanPage, Fields: queue.PayloadField}
	for {
		page, err := o.queue.List(ctx, tasks)
		if err != nil {
			return err
		}
		for i := range page.Tasks {
			t := &page.Tasks[i]
			if !strings.HasPrefix(t.ID, prefix) {
				continue
			}
			for _, a := range OrdersOf(t.ID, t.Payload) {
				if err := fn(a); err != nil {
					return err
				}
			}
		}
		if tasks.After = page.Next; tasks.After == (queue.Place{}) {
			return nil
		}
	}
}

// State returns the state of an order's task; empty if the order is in no task. Errors:
// those of Redis.
func (o Orders) State(ctx context.Context, id string) (queue.State, error) {
	found, err := o.Find(ctx, id)
	if err != nil || found[0].OrderID == "" {
		return "", err
	}
	page, err := o.queue.List(ctx, queue.Query{IDs: []string{found[0].TaskID}, Fields: queue.BriefFields})
	if err != nil {
		return "", err
	}
	return page.Tasks[0].State, nil
}

// Stats is queue.Queue.Stats.
func (o Orders) Stats(ctx context.Context) (queue.Stats, error) { return o.queue.Stats(ctx) }
