package inventory

import (
	"strconv"

	"flashsale/inventory/accepted"
)

// name gives the requests of a batch their order ids.
func name(batch []*Request, taskID string) {
	size := len(taskID)
	all := make([]byte, 0, size*len(batch))
	for i := range batch {
		all = accepted.AppendOrderID(all, taskID, i+1)
	}
	ids := string(all) // one allocation for the whole batch
	for i, r := range batch {
		r.OrderID = ids[size*i : size*(i+1)]
		if r.Named != nil {
			r.Named(r.OrderID)
		}
	}
}

// scriptArgs is the memory of a purchase script's arguments, which each batch uses again.
type scriptArgs struct {
	args    []any
	values  []string // of the buyers: see appendValues
	lines   []byte   // of the task
	records []byte   // for the log of queued orders
	hashes  []byte   // of the idempotency keys
}

// of returns the arguments of purchase.lua for a batch. They are valid until the next call.
func (a *scriptArgs) of(s *seller, batch []*Request) []any {
	a.records = appendRecords(a.records[:0], batch)
	a.hashes = appendKeyHashes(a.hashes[:0], batch)
	a.values = appendValues(a.values[:0], batch)
	a.lines = appendLines(a.lines[:0], batch)
	args := append(a.args[:0], s.lock.value, s.lock.fence, s.epoch, s.v.queues[s.partition].MaxLength(), s.floor.Load(), len(batch), a.records,
		a.hashes, batch[0].ItemVersion, s.askedBuild, s.askedFrom, s.parcel, a.lines)
	for i, r := range batch {
		// By pointer: converting a string to an interface copies it to the heap.
		args = append(args, &r.Buyer, &a.values[i])
	}
	for _, r := range batch {
		args = append(args, &r.Quantity)
	}
	a.args = args
	return args
}

// appendLines appends the lines of a batch's task.
func appendLines(b []byte, batch []*Request) []byte {
	for i, r := range batch {
		b = accepted.AppendLine(b, i == 0, r.OrderID, r.Payload)
	}
	return b
}

// appendRecords appends the records of a batch for the log of accepted orders.
func appendRecords(b []byte, batch []*Request) []byte {
	for _, r := range batch {
		b = accepted.AppendRecord(b, r.Buyer, r.OrderID)
	}
	return b
}

// appendValues appends, for each request of a batch, the value of its buyer if it is the buyer's first order: see
// fragment_buyer.lua. One allocation holds the text of all.
func appendValues(values []string, batch []*Request) []string {
	size := 0
	for _, r := range batch {
		size += 2*maxDigits + len("  :") + len(r.OrderID) + len(r.IdempotencyKey)
	}
	text := make([]byte, 0, size)
	ends := make([]int, 0, len(batch))
	for _, r := range batch {
		text = append(strconv.AppendInt(text, r.Quantity, 10), ' ')
		text = append(strconv.AppendInt(text, r.Quantity, 10), ':')
		text = append(append(append(text, r.OrderID...), ' '), r.IdempotencyKey...)
		ends = append(ends, len(text))
	}
	all, from := string(text), 0
	for _, to := range ends {
		values, from = append(values, all[from:to]), to
	}
	return values
}

// maxDigits is the number of digits of the largest quantity.
const maxDigits = 19
