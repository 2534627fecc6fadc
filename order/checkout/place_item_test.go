package checkout_test

import (
	"context"
	"errors"
	"testing"

	"flashsale/catalog"
	"flashsale/internal/testing/await"
	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/checkout"
	"flashsale/order/ordertest"
	"flashsale/order/store/storetest"
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
	checkout.Stock
	payload string
}

func (k *keptStock) Submit(r *inventory.Request) error {
	k.payload = r.Payload
	return inventory.ErrSoldOut
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
	if sent, err := order.ParseTask("o", []byte(stock.payload)); err != nil || sent.UnitPriceMinor != 321 || sent.Currency != "EUR" {
		t.Errorf("sent %+v, %v", sent, err)
	}
	p.Item.ID = "other"
	if _, err := service.Place(await.Context(t), p); !errors.Is(err, catalog.ErrItemNotFound) || items.asked != 1 {
		t.Errorf("with another item: %v, %d reads of the catalogue, want 1", err, items.asked)
	}
}
