package items_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"flashsale/catalog"
	"flashsale/internal/testing/await"
	"flashsale/inventory"
	"flashsale/order/items"
	"flashsale/order/ordertest"
)

// unloadedStock is a stock whose buckets cannot be read until all of the loads have run.
type unloadedStock struct {
	items.Stock
	loads   []func() error
	dropped []string
}

func (*unloadedStock) SoldOut([]string) bool { return false }

func (u *unloadedStock) DropSoldOutMark(item string) { u.dropped = append(u.dropped, item) }

func (u *unloadedStock) Left(_ context.Context, ids []string) ([]int64, error) {
	if len(u.loads) > 0 {
		return nil, inventory.ErrUnavailable
	}
	return slices.Repeat([]int64{5}, len(ids)), nil
}

func (u *unloadedStock) Warm(context.Context, string) error {
	load := u.loads[0]
	u.loads = u.loads[1:]
	return load()
}

// TestService_Refill_Unloaded: a refill waits for a bucket that is not loaded, also while Redis is
// away, and then drops the process's sold-out mark. Another error ends it.
func TestService_Refill_Unloaded(t *testing.T) {
	t.Parallel()
	fails := func(err error) func() error { return func() error { return err } }
	refill := func(ctx context.Context, stock *unloadedStock) (bool, error) {
		return (&items.Service{Stock: stock}).Refill(ctx, &catalog.Item{ID: "item", Buckets: 2}, "item.1", 3)
	}
	stock := &unloadedStock{loads: []func() error{fails(inventory.ErrUnavailable), fails(inventory.ErrRebuilding), fails(nil)}}
	if ok, err := refill(await.Context(t), stock); !ok || err != nil || !slices.Equal(stock.dropped, []string{"item.1"}) {
		t.Errorf("refilled %v, %v, marks dropped of %v", ok, err, stock.dropped)
	}
	stock = &unloadedStock{loads: []func() error{fails(ordertest.ErrTest)}}
	if ok, err := refill(await.Context(t), stock); ok || !errors.Is(err, inventory.ErrUnavailable) || !errors.Is(err, ordertest.ErrTest) || len(stock.dropped) != 0 {
		t.Errorf("a failed load: refilled %v, %v, want ErrUnavailable and its error", ok, err)
	}
	// A client goes away during the load.
	ctx, leave := context.WithCancelCause(t.Context())
	loading := make(chan struct{})
	defer close(loading)
	stock = &unloadedStock{loads: []func() error{func() error {
		leave(ordertest.ErrTest)
		<-loading
		return ordertest.ErrTest
	}}}
	if _, err := refill(ctx, stock); !errors.Is(err, ordertest.ErrTest) || errors.Is(err, inventory.ErrUnavailable) {
		t.Errorf("a client that has gone: %v, want its cause", err)
	}
}
