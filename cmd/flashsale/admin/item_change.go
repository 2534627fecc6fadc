package admin

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"flashsale/cmd/flashsale/config"
)

// oneItem requires exactly one argument, the id of an item.
func oneItem(c *cobra.Command, args []string) error {
	if len(args) != 1 || args[0] == "" {
		return config.Usage(fmt.Errorf("%s takes one item id; see %s --help", config.CommandName(c), c.CommandPath()))
	}
	return nil
}

// noEmptyArgs refuses an empty argument, as in "$ID" when ID is not set.
func noEmptyArgs(c *cobra.Command, args []string) error {
	if slices.Contains(args, "") {
		return config.Usage(fmt.Errorf("%s has an empty argument; write an id, or omit it", config.CommandName(c)))
	}
	return nil
}

// adminPath is the path of an item for admins.
func adminPath(id string) string { return "/v1/admin/items/" + url.PathEscape(id) }

// newItemControl returns a command that pauses, resumes or closes a whole sale.
func newItemControl(api *access, word, short string) *cobra.Command {
	return &cobra.Command{
		Use: word + " ID", Short: short, Args: oneItem,
		Example: "  flashsale item " + word + " drop-1",
		RunE: func(c *cobra.Command, args []string) error {
			r, err := api.dial(c, true)
			if err != nil {
				return err
			}
			var item itemView
			if err := r.call(c.Context(), http.MethodPost, adminPath(args[0])+"/"+word, nil, &item); err != nil {
				return err
			}
			return printItems(c.OutOrStdout(), []itemView{item})
		},
	}
}

func newItemRestock(api *access) *cobra.Command {
	var quantity int64
	var reason, key string
	c := &cobra.Command{
		Use: "restock ID", Short: "Add units to a sale, or take back unsold units", Args: oneItem,
		Example: "  flashsale item restock drop-1 --quantity 50 --reason 'second delivery'\n" +
			"  flashsale item restock drop-1 --quantity -10 --reason 'damaged in store'",
		RunE: func(c *cobra.Command, args []string) error {
			if quantity == 0 || reason == "" {
				return config.Usage(errors.New("item restock needs --quantity, not 0, and --reason; see flashsale item restock --help"))
			}
			if err := config.NoEmpty(c, "key"); err != nil {
				return err
			}
			r, err := api.dial(c, true)
			if err != nil {
				return err
			}
			if key == "" {
				key = uuid.NewString()
			}
			var item itemView
			_, err = r.send(c.Context(), http.MethodPost, adminPath(args[0])+"/restock",
				map[string]string{"Idempotency-Key": key}, map[string]any{"quantity": quantity, "reason": reason}, &item)
			var refused *refusal
			switch {
			case err == nil:
				return printItems(c.OutOrStdout(), []itemView{item})
			case errors.As(err, &refused) && refused.status < http.StatusInternalServerError:
				return err
			}
			fmt.Fprintf(c.ErrOrStderr(), "Outcome unknown; retry with --key %s, it applies at most once.\n", key)
			return err
		},
	}
	f := c.Flags()
	f.Int64Var(&quantity, "quantity", 0, "units to add; a negative number takes back unsold units")
	f.StringVar(&reason, "reason", "", "reason, recorded in the audit log")
	f.StringVar(&key, "key", "", "idempotency key; a repeat with the same key adds nothing (default: a new key)")
	return c
}

// noEnd removes the end of a sale.
const noEnd = "never"

func newItemChange(api *access) *cobra.Command {
	var n struct {
		name, description, image, opens, closes string
		price, limit                            int64
		window                                  paymentWindow
	}
	c := &cobra.Command{
		Use: "change ID", Short: "Change an item while it is on sale", Args: oneItem,
		Long: "Change an item while it is on sale. Fields without a flag stay unchanged.\n\n" +
			"The item is read first, and the change is refused if another admin changes it in between.",
		Example: "  flashsale item change drop-1 --limit 2 --closes-at 2030-01-31T18:00:00Z",
		RunE: func(c *cobra.Command, args []string) error {
			body := make(map[string]any)
			for flag, field := range map[string]struct {
				name  string
				value any
			}{
				"name": {"name", n.name}, "description": {"description", n.description}, "image": {"image_url", n.image},
				"price-minor": {"price_minor", n.price}, "limit": {"per_user_limit", n.limit},
				"opens-at": {"opens_at", n.opens}, "closes-at": {"closes_at", n.closes},
				"payment-window": {"payment_window_seconds", n.window.seconds()},
			} {
				if c.Flags().Changed(flag) {
					body[field.name] = field.value
				}
			}
			if len(body) == 0 {
				return config.Usage(errors.New("item change needs at least one field to change; see flashsale item change --help"))
			}
			if body["closes_at"] == noEnd {
				body["closes_at"] = nil
			}
			r, err := api.dial(c, true)
			if err != nil {
				return err
			}
			// Two variables, because the answer omits an image that the change has removed.
			var before, item itemView
			seen, err := r.send(c.Context(), http.MethodGet, adminPath(args[0]), nil, nil, &before)
			if err != nil {
				return err
			}
			_, err = r.send(c.Context(), http.MethodPatch, adminPath(args[0]),
				map[string]string{"If-Match": seen.Get("Etag")}, body, &item)
			if err != nil {
				return err
			}
			return printItems(c.OutOrStdout(), []itemView{item})
		},
	}
	f := c.Flags()
	f.StringVar(&n.name, "name", "", "name shown to buyers")
	f.StringVar(&n.description, "description", "", "description shown to buyers")
	f.StringVar(&n.image, "image", "", "path of an image on the shop's own address; '' removes the image")
	f.Int64Var(&n.price, "price-minor", 0, "price in the currency's minor unit (cents); accepted orders keep theirs")
	f.Int64Var(&n.limit, "limit", 0, "units per buyer; buyers who have more keep them")
	f.StringVar(&n.opens, "opens-at", "", "RFC 3339 time")
	f.StringVar(&n.closes, "closes-at", "", "RFC 3339 time, or "+noEnd)
	flagWindow(f, &n.window)
	return c
}
