package checkout_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/trace/noop"

	"flashsale/catalog"
	"flashsale/internal/pause"
	"flashsale/internal/testing/await"
	"flashsale/internal/tracing"
	"flashsale/inventory"
	"flashsale/inventory/accepted"
	"flashsale/order"
	"flashsale/order/checkout"
	"flashsale/order/ordertest"
	"flashsale/order/store/storetest"
	"flashsale/order/timeouts"
)

// countedItems is a catalogue that counts the reads of items.
type countedItems struct {
	checkout.Items
	asked int
}

func (c *countedItems) Item(context.Context, string) (catalog.Item, error) {
	c.asked++
	return catalog.Item{}, catalog.ErrItemNotFound
}

// keptStock is a stock that keeps the submitted requests.
type keptStock struct {
	unmarked
	payload string
}

func (k *keptStock) Submit(r *inventory.Request) error {
	k.payload = r.Payload
	return inventory.ErrSoldOut
}

// parent is the span of a sampled request.
func parent(t *testing.T) *tracing.Parent {
	t.Helper()
	tracer, err := tracing.New(t.Context(), noop.NewTracerProvider(), 1)
	if err != nil {
		t.Fatal(err)
	}
	return tracer.Parse("4bf92f3577b34da6a3ce929d0e0e473600f067aa0ba902b7")
}

// TestService_Place_Item: an item that the caller has read is not read again, and an item
// with another id is not used.
func TestService_Place_Item(t *testing.T) {
	t.Parallel()
	items, stock := &countedItems{}, &keptStock{}
	service := checkout.NewService(checkout.Config{Store: storetest.New(t), Stock: stock, Items: items, Waiters: checkout.NewWaiters()})
	p := order.Purchase{
		ItemID: "thing", Item: catalog.Item{ID: "thing", PriceMinor: 321, Currency: "EUR"},
		UserID: "u", IdempotencyKey: "k", Quantity: 1, Wait: ordertest.Long,
	}
	if _, err := service.Place(await.Context(t), p); !errors.Is(err, inventory.ErrSoldOut) || items.asked != 0 {
		t.Errorf("with its item: %v, %d reads of the catalogue, want none", err, items.asked)
	}
	if sent, err := order.ParseAccepted(accepted.Order{OrderID: "o", Payload: stock.payload}); err != nil || sent.UnitPriceMinor != 321 || sent.Currency != "EUR" {
		t.Errorf("sent %+v, %v", sent, err)
	}
	// Without a trace, nothing of one is stored; the request id costs its number.
	if !strings.Contains(stock.payload, "\t"+service.Waiters.Origin()+"\t") {
		t.Errorf("without a request id: %q", stock.payload)
	}
	p.RequestID = service.Waiters.Origin() + "-1z"
	if _, err := service.Place(await.Context(t), p); !errors.Is(err, inventory.ErrSoldOut) || !strings.Contains(stock.payload, "\t"+p.RequestID+"\t") {
		t.Errorf("%v with a request id: %q", err, stock.payload)
	}
	p.Trace = parent(t)
	if _, err := service.Place(await.Context(t), p); !errors.Is(err, inventory.ErrSoldOut) || !strings.Contains(stock.payload, "\t"+p.RequestID+";"+p.Trace.String()+"\t") {
		t.Errorf("%v with a trace: %q", err, stock.payload)
	}
	p.Item.ID = "other"
	if _, err := service.Place(await.Context(t), p); !errors.Is(err, catalog.ErrItemNotFound) || items.asked != 1 {
		t.Errorf("with another item: %v, %d reads of the catalogue, want 1", err, items.asked)
	}
}

// markedStock is a stock with a sold-out mark. Its other methods panic.
type markedStock struct{ checkout.Stock }

func (markedStock) Refusal(string, string, string, int64) error { return inventory.ErrSoldOut }

// TestService_Place_Refusal: a purchase that the sold-out mark answers is not submitted.
func TestService_Place_Refusal(t *testing.T) {
	t.Parallel()
	service := checkout.NewService(checkout.Config{
		Store: storetest.New(t), Stock: markedStock{}, Items: &countedItems{}, Waiters: checkout.NewWaiters(),
	})
	p := order.Purchase{
		ItemID: "thing", Item: catalog.Item{ID: "thing"}, UserID: "u", IdempotencyKey: "k", Quantity: 1, Wait: ordertest.Long,
	}
	if _, err := service.Place(await.Context(t), p); !errors.Is(err, inventory.ErrSoldOut) {
		t.Errorf("%v, want ErrSoldOut", err)
	}
}

// lostRefills are buckets whose units others take after each refill, which takes some time.
type lostRefills struct {
	refills int
	take    time.Duration
}

func (*lostRefills) Item(_ context.Context, id string) (catalog.Item, error) {
	return catalog.Item{ID: id, Buckets: 2}, nil
}

func (l *lostRefills) Refill(ctx context.Context, _ *catalog.Item, _ string, _ int64) (bool, error) {
	l.refills++
	return pause.For(ctx, l.take), nil
}

func (*lostRefills) Outdated(string, int64) {}

// TestService_Place_LostRefills: if others take the units of each refill, the buyer is told that
// nothing is left, and not that the service has failed.
func TestService_Place_LostRefills(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	synctest.Test(t, func(t *testing.T) {
		buckets := &lostRefills{take: 100 * time.Millisecond}
		service := checkout.NewService(checkout.Config{Store: s, Stock: &keptStock{}, Items: buckets, Buckets: buckets, Waiters: checkout.NewWaiters()})
		_, err := service.Place(t.Context(), order.Purchase{
			ItemID: "thing", Item: catalog.Item{ID: "thing", Buckets: 2}, UserID: "u", IdempotencyKey: "k", Quantity: 1,
		})
		if want := int(timeouts.Refill / (100 * time.Millisecond)); !errors.Is(err, inventory.ErrSoldOut) || buckets.refills <= want {
			t.Errorf("%v after %d refills, want ErrSoldOut after more than %d", err, buckets.refills, want)
		}
	})
}

// refilledStock is a stock that has units after the first refill.
type refilledStock struct {
	unmarked
	buckets *lostRefills
}

func (f *refilledStock) Submit(r *inventory.Request) error {
	if f.buckets.refills == 0 {
		return inventory.ErrSoldOut
	}
	r.Done(inventory.Outcome{})
	return nil
}

// TestService_Place_SlowRefill: a purchase is tried again after a refill, however long it took.
func TestService_Place_SlowRefill(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	synctest.Test(t, func(t *testing.T) {
		buckets := &lostRefills{take: 2 * timeouts.Refill}
		service := checkout.NewService(checkout.Config{Store: s, Stock: &refilledStock{buckets: buckets}, Items: buckets, Buckets: buckets, Waiters: checkout.NewWaiters()})
		_, err := service.Place(t.Context(), order.Purchase{
			ItemID: "thing", Item: catalog.Item{ID: "thing", Buckets: 2}, UserID: "u", IdempotencyKey: "k", Quantity: 1,
		})
		if err != nil || buckets.refills != 1 {
			t.Errorf("%v after %d refills, want an order after one", err, buckets.refills)
		}
	})
}
