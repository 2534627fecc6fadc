package items_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

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

// heldStock is a stock whose first bucket has six units, which can be read once release is closed.
type heldStock struct {
	items.Stock
	release chan struct{}
	moved   []int64
}

func (*heldStock) SoldOut([]string) bool { return false }

func (*heldStock) DropSoldOutMark(string) {}

func (h *heldStock) Left(context.Context, []string) ([]int64, error) {
	<-h.release
	return []int64{6, 0}, nil
}

func (h *heldStock) Move(_ context.Context, _, _ string, units int64, _ func(context.Context) (int64, int64, error)) error {
	h.moved = append(h.moved, units)
	return nil
}

// TestService_Refill_Waiting: one refill brings the units that all waiting purchases want.
func TestService_Refill_Waiting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stock := &heldStock{release: make(chan struct{})}
		service := &items.Service{Stock: stock}
		for range 5 {
			go func() {
				if ok, err := service.Refill(t.Context(), &catalog.Item{ID: "item", Buckets: 2}, "item.1", 1); !ok || err != nil {
					t.Errorf("refilled %v, %v", ok, err)
				}
			}()
		}
		synctest.Wait()
		close(stock.release)
		synctest.Wait()
		if !slices.Equal(stock.moved, []int64{5}) {
			t.Errorf("moved %v units, want once the 5 that are wanted", stock.moved)
		}
	})
}

// TestService_Refill_Stuck: a purchase does not wait for a refill whose transaction does not end.
func TestService_Refill_Stuck(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stock := &heldStock{release: make(chan struct{})}
		ok, err := (&items.Service{Stock: stock}).Refill(t.Context(), &catalog.Item{ID: "item", Buckets: 2}, "item.1", 1)
		if ok || !errors.Is(err, inventory.ErrUnavailable) {
			t.Errorf("refilled %v, %v, want ErrUnavailable", ok, err)
		}
		close(stock.release)
		synctest.Wait()
	})
}

// TestService_Refill_Recreated: an item that was lost and created again may have more buckets.
func TestService_Refill_Recreated(t *testing.T) {
	t.Parallel()
	stock := &unloadedStock{}
	service := &items.Service{Stock: stock}
	for n := 2; n <= 4; n += 2 {
		id := fmt.Sprint("item.", n-1)
		if ok, err := service.Refill(await.Context(t), &catalog.Item{ID: "item", Buckets: n}, id, 1); !ok || err != nil {
			t.Errorf("%d buckets: refilled %v, %v", n, ok, err)
		}
	}
}
