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
