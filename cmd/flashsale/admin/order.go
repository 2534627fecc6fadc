package admin

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"

	"github.com/spf13/cobra"

	"flashsale/cmd/flashsale/config"
)

// Order returns the command that manages orders.
func Order() *cobra.Command {
	var api access
	c := config.Group("order", "Manage orders, through the API", newOrderRefund(&api))
	api.flags(c.PersistentFlags(), ownKey)
	return config.Reads(c, config.APISettings...)
}

func newOrderRefund(api *access) *cobra.Command {
	var restock bool
	c := &cobra.Command{
		Use: "refund ID", Short: "Record the refund of a paid order, with or without restocking its units",
		Long: "Record that a paid order was refunded. This transfers no money: refund the buyer at the payment provider.\n" +
			"With --restock=true the units go back on sale, and the buyer may buy as many again. With --restock=false\n" +
			"they count as sold, and for the buyer's limit. A refund is final.",
		Example: "  flashsale order refund 0197a0f2-3c4d-7abc-8def-0123456789ab --restock=true",
		Args: func(c *cobra.Command, args []string) error {
			if slices.Contains(args, "true") || slices.Contains(args, "false") {
				return config.Usage(errors.New("write --restock=true or --restock=false, with an equals sign"))
			}
			if len(args) != 1 || args[0] == "" {
				return config.Usage(fmt.Errorf("%s takes one order id; see %s --help", config.CommandName(c), c.CommandPath()))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			if !c.Flags().Changed("restock") {
				return config.Usage(errors.New("order refund needs --restock=true (the units go back on sale) or --restock=false (they stay sold)"))
			}
			r, err := api.dial(c, true)
			if err != nil {
				return err
			}
			var o struct {
				ID        string `json:"id"`
				ItemID    string `json:"item_id"`
				Quantity  int64  `json:"quantity"`
				Status    string `json:"status"`
				Reference string `json:"payment_reference"`
				Restocked bool   `json:"restocked"`
			}
			path := "/v1/admin/orders/" + url.PathEscape(args[0]) + "/refund"
			if err := r.call(c.Context(), http.MethodPost, path, map[string]any{"restock": restock}, &o); err != nil {
				return err
			}
			units := "units stay sold"
			if o.Restocked {
				units = "units restocked"
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "%s\t%s\t%s\t%d %s\tpayment %s\n", o.ID, o.Status, o.ItemID, o.Quantity, units, o.Reference)
			return err
		},
	}
	c.Flags().BoolVar(&restock, "restock", false, "whether the units go back on sale; required")
	return c
}
