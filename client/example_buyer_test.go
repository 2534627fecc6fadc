package client_test

import (
	"context"
	"fmt"
	"io"
	"os"

	"flashsale/client"
)

// A buyer's app: it shows what is on sale, buys a unit of the first open item, and follows the order until
// it is confirmed.
func Example_buyer() {
	if err := buy(context.Background(), os.Stdout, "https://sale.example", os.Getenv("TOKEN")); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

func buy(ctx context.Context, out io.Writer, server, token string) error {
	c, err := client.NewBearer(server, token)
	if err != nil {
		return err
	}
	page, err := client.Decode[client.ItemPage](c.ListItems(ctx, nil))
	if err != nil {
		return err
	}
	for _, item := range page.Items {
		fmt.Fprintf(out, "%s: %d.%02d %s, %d left, %s\n",
			item.Name, item.PriceMinor/100, item.PriceMinor%100, item.Currency, item.StockLeft, item.State)
		if item.State != client.ItemStateOpen {
			continue
		}
		// A real app stores the key before it buys. If it is killed, it buys again with the same key after
		// its restart, and gets the same order.
		order, _, err := client.Buy(ctx, c, client.BuyParams{Item: item.ID, Key: "order-of-basket-17"})
		switch {
		case client.HasCode(err, client.ProblemCodeSoldOut), client.HasCode(err, client.ProblemCodeUserLimit):
			fmt.Fprintln(out, "not this time:", err)
			continue
		case err != nil:
			return err
		}
		return follow(ctx, out, c, order.ID)
	}
	return nil
}

// follow prints the order's states until it is confirmed or refused.
func follow(ctx context.Context, out io.Writer, c *client.Client, id string) error {
	for order, err := range client.Follow(ctx, c, id) {
		if err != nil {
			return err
		}
		if order.Status == client.OrderStatusQueued {
			continue
		}
		fmt.Fprintf(out, "%d of %s: %s\n", order.Quantity, order.ItemID, order.Status)
		break
	}
	return nil
}
