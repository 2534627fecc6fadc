package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"flashsale/cmd/flashsale/config"
)

// itemView is an item in the API.
type itemView struct {
	ID           string `json:"id"`
	Name         string `json:"name"`
	PriceMinor   int64  `json:"price_minor"`
	Currency     string `json:"currency"`
	StockTotal   int64  `json:"stock_total"`
	StockLeft    int64  `json:"stock_left"`
	PerUserLimit int64  `json:"per_user_limit"`
	State        string `json:"state"`
	ImageURL     string `json:"image_url"`
}

// Item returns the command that manages the items on sale.
func Item() *cobra.Command {
	var api access
	c := config.Group("item", "Manage the items on sale, through the API", newItemCreate(&api), newItemList(&api),
		newItemChange(&api), newItemRestock(&api),
		newItemControl(&api, "pause", "Halt a sale until it is resumed"),
		newItemControl(&api, "resume", "Resume a paused sale"),
		newItemControl(&api, "close", "End a sale permanently; orders stay as they are"), newItemWarm(&api))
	api.flags(c.PersistentFlags(), "admin token (default: signed with the configured key, the admins' own if they have one)")
	return config.Reads(c, config.APISettings...)
}

func newItemCreate(api *access) *cobra.Command {
	var n struct {
		id, name, description, image, currency, opens, closes string
		price, stock, limit, buckets                          int64
		window                                                paymentWindow
	}
	c := &cobra.Command{
		Use: "create", Short: "Open a sale", Args: config.NoArgs,
		Example: "  flashsale item create --id drop-1 --name 'Drop 1' --price-minor 4900 --currency EUR --stock 500 --payment-window 15m",
		RunE: func(c *cobra.Command, _ []string) error {
			if err := needFlags(c); err != nil {
				return err
			}
			if err := config.NoEmpty(c, "opens-at", "closes-at"); err != nil {
				return err
			}
			r, err := api.dial(c, true)
			if err != nil {
				return err
			}
			body := map[string]any{
				"id": n.id, "name": n.name, "description": n.description, "price_minor": n.price, "currency": n.currency,
				"stock": n.stock, "per_user_limit": n.limit, "payment_window_seconds": n.window.seconds(),
			}
			if n.buckets != 1 {
				body["buckets"] = n.buckets
			}
			for field, value := range map[string]string{"image_url": n.image, "opens_at": n.opens, "closes_at": n.closes} {
				if value != "" {
					body[field] = value
				}
			}
			var item itemView
			if err := r.call(c.Context(), http.MethodPost, "/v1/admin/items", body, &item); err != nil {
				return err
			}
			return printItems(c.OutOrStdout(), []itemView{item})
		},
	}
	f := c.Flags()
	f.StringVar(&n.id, "id", "", "item id: a-z, 0-9 and -; required")
	f.StringVar(&n.name, "name", "", "name shown to buyers; required")
	f.StringVar(&n.description, "description", "", "description shown to buyers")
	f.StringVar(&n.image, "image", "", "path of an image on the shop's own address, such as /images/drop-1.jpg; default none")
	f.Int64Var(&n.price, "price-minor", 0, "price in the currency's minor unit (cents); required")
	f.StringVar(&n.currency, "currency", "EUR", "ISO 4217 code")
	f.Int64Var(&n.stock, "stock", 0, "units on sale; required")
	f.Int64Var(&n.limit, "limit", 1, "units per buyer")
	f.Int64Var(&n.buckets, "buckets", 1, "buckets to divide the stock into, for a sale whose load is too high for one Redis master; 1: not divided")
	f.StringVar(&n.opens, "opens-at", "", "RFC 3339 time; default now")
	f.StringVar(&n.closes, "closes-at", "", "RFC 3339 time; default never")
	flagWindow(f, &n.window)
	return c
}

// needFlags refuses item create without its required flags, and names all that are missing. The
// API requires them, too. With the zero of a flag, a forgotten price would sell for nothing.
func needFlags(c *cobra.Command) error {
	var missing []string
	for _, name := range []string{"id", "name", "price-minor", "stock"} {
		if !c.Flags().Changed(name) {
			missing = append(missing, "--"+name)
		}
	}
	why := ""
	if !c.Flags().Changed("payment-window") {
		missing = append(missing, "--payment-window")
		why = " (the time to pay, for example 15m, or none: then an unpaid order holds its units until it is cancelled)"
	}
	if len(missing) == 0 {
		return nil
	}
	return config.Usage(fmt.Errorf("item create needs %s%s; see %s --help", strings.Join(missing, ", "), why, c.CommandPath()))
}

func newItemList(api *access) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "list", Short: "List the items", Args: config.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			r, err := api.dial(c, false)
			if err != nil {
				return err
			}
			entries, err := r.items(c.Context())
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), "items", entries)
			}
			items, err := decodeEach[itemView](entries)
			if err != nil {
				return err
			}
			return printItems(c.OutOrStdout(), items)
		},
	}
	flagJSON(c.Flags(), &asJSON)
	return c
}

// items reads all items.
func (r *remote) items(ctx context.Context) ([]json.RawMessage, error) {
	return r.list(ctx, "/v1/items", "items", url.Values{}, 0)
}

func printItems(out io.Writer, items []itemView) error { return printTable(out, itemRows(items)) }

func itemRows(items []itemView) [][]string {
	// The name is last, because it may be long and its letters wide.
	rows := [][]string{{"ID", "STATE", "LEFT", "TOTAL", "LIMIT", "PRICE (MINOR)", "IMAGE", "NAME"}}
	for _, i := range items {
		rows = append(rows, []string{i.ID, i.State, fmt.Sprint(i.StockLeft), fmt.Sprint(i.StockTotal), fmt.Sprint(i.PerUserLimit),
			fmt.Sprintf("%d %s", i.PriceMinor, i.Currency), cmp.Or(i.ImageURL, "-"), i.Name})
	}
	return cutLast(rows)
}
