package client_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"flashsale/client"
)

// An operator's script: it creates a sale, adds units to it, moves its end, and reads its ledger.
func Example_admin() {
	if err := administer(context.Background(), os.Stdout, "https://sale.example", os.Getenv("TOKEN")); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

func administer(ctx context.Context, out io.Writer, server, token string) error {
	c, err := client.NewBearer(server, token)
	if err != nil {
		return err
	}
	limit, window := int64(2), int64(15*60)
	item, err := client.Decode[client.Item](c.CreateItem(ctx, client.NewItem{
		ID: "drop-1", Name: "Drop 1", PriceMinor: 4900, Currency: "EUR", Stock: 100,
		PerUserLimit: &limit, PaymentWindowSeconds: &window,
	}))
	if client.HasCode(err, client.ProblemCodeItemExists) {
		item, err = client.Decode[client.Item](c.GetAdminItem(ctx, "drop-1"))
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s is %s with %d units\n", item.ID, item.State, item.StockTotal)

	// The key makes the restock safe to repeat: it adds the units once.
	item, err = client.Decode[client.Item](c.RestockItem(ctx, item.ID,
		&client.RestockItemParams{IdempotencyKey: "delivery-2030-01-02"}, client.Restock{Quantity: 50, Reason: "Second delivery"}))
	if err != nil {
		return err
	}
	// If another admin has changed the item in the meantime, the answer is version_conflict.
	item, err = client.Decode[client.Item](c.ChangeItem(ctx, item.ID,
		&client.ChangeItemParams{IfMatch: fmt.Sprintf(`"%d"`, item.Version)},
		client.ItemChange{ClosesAt: client.TimeOrNull{Time: item.OpensAt.Add(24 * time.Hour)}}))
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "closes after %v\n", item.ClosesAt.Sub(item.OpensAt))

	ledger, err := client.Decode[client.Ledger](c.GetItemLedger(ctx, item.ID))
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%d + %d = %d left + %d held + %d sold: %t\n",
		ledger.Initial, ledger.Restocked, ledger.Left, ledger.Held, ledger.Sold, ledger.Balanced)
	return nil
}
