package main

import "fmt"

// answer is a purchase that was answered with success.
type answer struct{ key, id string }

// row is an order in the database.
type row struct {
	id, buyer, key string
	quantity       int64
}

// verdict counts what went wrong with the sale of an item.
type verdict struct {
	lost       int64 // orders that were answered with success and are not in the database
	oversold   int64 // units sold beyond the stock, or still for sale although sold
	duplicates int64 // orders of a buyer beyond the first with the same key
	stranded   int64 // units that left the stock and belong to no order
}

// judge compares the answers that buyers have with the orders in the database and the stock: of
// total units, so many are left.
func judge(total, left int64, answers []answer, rows []row) verdict {
	var v verdict
	type name struct{ buyer, key string }
	var sold int64
	orders := make(map[answer]bool, len(rows))
	seen := make(map[name]bool, len(rows))
	for _, r := range rows {
		sold += r.quantity
		orders[answer{r.key, r.id}] = true
		if n := (name{r.buyer, r.key}); seen[n] {
			v.duplicates++
		} else {
			seen[n] = true
		}
	}
	missing := make(map[answer]bool)
	for _, a := range answers {
		if !orders[a] {
			missing[a] = true
		}
	}
	v.lost = int64(len(missing))
	// A stock below zero has nothing left to sell.
	switch difference := total - max(left, 0) - sold; {
	case difference < 0:
		v.oversold = -difference
	default:
		v.stranded = difference
	}
	return v
}

func (v verdict) clean() bool { return v == verdict{} }

func (v verdict) String() string {
	return fmt.Sprintf("lost %d, oversold %d, duplicates %d, stranded %d", v.lost, v.oversold, v.duplicates, v.stranded)
}
