package items

import (
	"context"
	"testing"

	"gorm.io/gorm"

	"flashsale/internal/testing/await"
	"flashsale/order/ordertest"
	"flashsale/order/store/storetest"
)

// TestPostgres_Restock_Standby: a repeat of a restock is not answered while a synchronous standby
// may lack the first one.
func TestPostgres_Restock_Standby(t *testing.T) {
	t.Parallel()
	d := storetest.NewDoubt(t)
	s := &Service{Store: d.Store}
	made := Restock{Quantity: 5, Reason: "test", IdempotencyKey: "k"}
	err := d.ChangeWithGORM(await.Context(t), "test", func(tx *gorm.DB, _ int64) error {
		return tx.Create(&stockChangeRow{ItemID: "item", Quantity: made.Quantity, Reason: made.Reason, IdempotencyKey: made.IdempotencyKey}).Error
	})
	if err != nil {
		t.Fatal(err)
	}
	d.Begin(t)
	other := made
	other.Quantity++
	for _, r := range []Restock{made, other} {
		d.Refuses(t, func(ctx context.Context) error {
			_, _, err := s.Restock(ctx, "item", r, ordertest.Root)
			return err
		})
	}
}
