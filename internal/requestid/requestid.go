// Package requestid attaches to an error the orders that it concerns, so that its log line has
// their ids and the ids of the requests that placed them.
package requestid

import "slices"

// Order names an order and the request that placed it. One of the two may be unknown and empty.
type Order struct{ OrderID, RequestID string }

// maxOrders bounds how many orders of one error are kept: a failed batch has hundreds.
const maxOrders = 8

// Error is an error about some orders.
type Error struct {
	Orders []Order // the first ones
	Total  int     // how many they are
	Err    error
}

// Error is the text of the cause: the ids are separate fields of a log line.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// About returns err with the first of n orders, which at returns by their index.
func About(err error, n int, at func(i int) Order) error {
	if err == nil || n == 0 {
		return err
	}
	e := &Error{Total: n, Err: err, Orders: make([]Order, min(n, maxOrders))}
	for i := range e.Orders {
		e.Orders[i] = at(i)
	}
	return e
}

// Of returns the orders that an error is about, all of its causes included, and how many there
// are in total.
func Of(err error) (orders []Order, total int) {
	switch e := err.(type) { //nolint:errorlint // it visits every cause itself
	case nil:
		return nil, 0
	case *Error:
		orders, total = e.Orders, e.Total
		more, n := Of(e.Err)
		return slices.Concat(orders, more), total + n
	case interface{ Unwrap() error }:
		return Of(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, cause := range e.Unwrap() {
			more, n := Of(cause)
			orders, total = append(orders, more...), total+n
		}
	}
	return orders, total
}
