package items_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"flashsale/internal/testing/await"
	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/items"
	"flashsale/order/ordertest"
	"flashsale/order/store/database"
	"flashsale/order/store/storetest"
)

// committingStock is a stock that makes every change in the database only.
type committingStock struct{ items.Stock }

func (committingStock) Open(context.Context, string) error { return nil }

func (committingStock) Change(ctx context.Context, _ string, _ inventory.Change, commit func(context.Context) (int64, error)) error {
	_, err := commit(ctx)
	return err
}

// notedCatalog records of which items it was notified.
type notedCatalog struct{ notices []string }

func (n *notedCatalog) Created(_ context.Context, id string) { n.notices = append(n.notices, id) }

func (n *notedCatalog) Changed(_ context.Context, id string, version int64) {
	n.notices = append(n.notices, fmt.Sprint(id, " ", version))
}

// TestService_Notices: processes are notified of an item again if its creation is repeated, and of
// its next version if it is unknown whether a change was made.
func TestService_Notices(t *testing.T) {
	t.Parallel()
	s, noted := storetest.New(t), new(notedCatalog)
	service := &items.Service{Store: s, Stock: committingStock{}, Catalog: noted, OnError: func(err error) { t.Errorf("reported %v", err) }}
	for _, want := range []error{nil, order.ErrItemExists} {
		if _, err := service.CreateItem(await.Context(t), ordertest.NewItem("item", 5, 5)); !errors.Is(err, want) {
			t.Errorf("create: %v, want %v", err, want)
		}
	}
	if want := []string{"item", "item"}; !slices.Equal(noted.notices, want) {
		t.Errorf("notices %v, want %v", noted.notices, want)
	}
	noted.notices = nil
	ordertest.Occupy(t, s)
	ordertest.BusyTimeout(t, s, time.Millisecond)
	name := "Another name"
	if _, err := service.ChangeItem(await.Context(t), "item", items.Change{Name: &name}, ordertest.Root); !errors.Is(err, database.ErrUnavailable) {
		t.Errorf("change: %v, want ErrUnavailable", err)
	}
	if want := []string{"item 2"}; !slices.Equal(noted.notices, want) {
		t.Errorf("notices %v, want %v", noted.notices, want)
	}
}
