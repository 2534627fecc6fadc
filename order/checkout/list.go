package checkout

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"flashsale/internal/bucket"
	"flashsale/inventory"
	"flashsale/inventory/accepted"
	"flashsale/order"
	"flashsale/order/store"
)

// ErrIncompleteList means that a list lacks the queued orders.
var ErrIncompleteList = errors.New("order: queued orders cannot be read")

// List reads a page of orders, newest first. A list of one buyer's orders contains the
// queued ones, too; a list of all buyers' orders contains only committed ones. next is the
// Filter.Before of the next page; empty: there is none. A page may be shorter than the
// limit although others follow.
//
// Over all pages an order is listed once, even if it is committed between two of them: the
// list is ordered by id, and each page reads the queue before the database.
//
// With ErrIncompleteList the page is returned without queued orders, because Redis does not
// answer. Other errors: database.ErrUnavailable, and inventory.ErrUnavailable for a list of only queued
// orders.
func (s *Service) List(ctx context.Context, f order.Filter) (orders []order.Order, next string, err error) {
	if f.Buckets > 1 {
		return s.listBuckets(ctx, f)
	}
	var queued []order.Order
	var incomplete error
	floor := ""
	if s.Queued != nil && f.UserID != "" && (f.Status == "" || f.Status == order.StatusQueued) {
		queued, floor, err = s.queuedOrders(ctx, f)
		switch {
		case errors.Is(err, inventory.ErrUnavailable) && f.Status == "":
			incomplete = ErrIncompleteList
			queued, floor = nil, ""
		case err != nil:
			return nil, "", err
		}
	}
	var rows []order.Order
	if f.Status == order.StatusQueued {
		queued, err = store.WithoutRow(ctx, s.Store, queued, func(o *order.Order) string { return o.ID })
	} else {
		rows, next, err = s.Store.List(ctx, f)
	}
	if err != nil {
		return nil, "", err
	}
	// Below the floor there may be queued orders that were not read.
	orders, next = page(merge(rows, queued), max(floor, next), f.Limit)
	return orders, next, incomplete
}

// listBuckets reads a page of the orders of all buckets of an item.
func (s *Service) listBuckets(ctx context.Context, f order.Filter) (orders []order.Order, next string, err error) {
	var incomplete error
	for _, id := range bucket.IDs(f.ItemID, f.Buckets) {
		of := f
		of.ItemID, of.Buckets = id, 0
		some, floor, err := s.List(ctx, of)
		switch {
		case errors.Is(err, ErrIncompleteList):
			incomplete = err
		case err != nil:
			return nil, "", err
		}
		orders, next = append(orders, some...), max(next, floor)
	}
	// Below the floor of any bucket there may be orders that were not read.
	orders, next = page(merge(orders, nil), next, f.Limit)
	return orders, next, incomplete
}

// page cuts a list of orders, newest first, at the floor down to which it is complete, empty if
// it is all there is, and at the limit. next is the id at which the next page begins.
func page(orders []order.Order, floor string, limit int) (cut []order.Order, next string) {
	orders = slices.DeleteFunc(orders, func(o order.Order) bool { return o.ID < floor })
	if len(orders) > limit {
		return orders[:limit], orders[limit-1].ID
	}
	return orders, floor
}

// queuedOrders reads the first queued orders that a filter selects, one more than fit on
// the page. floor is the id down to which it has read; see order.BuyersQueued.
func (s *Service) queuedOrders(ctx context.Context, f order.Filter) (queued []order.Order, floor string, err error) {
	floor, err = s.Queued.Orders(ctx, f.UserID, f.Before, f.Limit+1, func(a accepted.Order) bool {
		t, err := order.ParseAccepted(a)
		if err != nil || t.UserID != f.UserID || f.ItemID != "" && t.ItemID != f.ItemID {
			return false
		}
		queued = append(queued, t.Queued())
		return true
	})
	if err != nil {
		return nil, "", fmt.Errorf("%w: %w", inventory.ErrUnavailable, err)
	}
	return queued, floor, nil
}

// merge returns the orders of both lists, newest first. If an order is in both, the row
// wins.
func merge(rows, queued []order.Order) []order.Order {
	orders := append(slices.Clip(rows), queued...)
	slices.SortStableFunc(orders, func(a, b order.Order) int { return strings.Compare(b.ID, a.ID) })
	return slices.CompactFunc(orders, func(a, b order.Order) bool { return a.ID == b.ID })
}
