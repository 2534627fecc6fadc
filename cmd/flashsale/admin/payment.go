package admin

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"flashsale/cmd/flashsale/config"
)

// paymentsPage is the size of the pages in which payments are read, the maximum.
const paymentsPage = 100

// paymentView is a received amount in the API.
type paymentView struct {
	ID          int64  `json:"id"`
	OrderID     string `json:"order_id"`
	ItemID      string `json:"item_id"`
	UserID      string `json:"user_id"`
	Reference   string `json:"reference"`
	AmountMinor int64  `json:"amount_minor"`
	Currency    string `json:"currency"`
	Outcome     string `json:"outcome"`
	ReceivedAs  string `json:"received_as"`
	ReceivedAt  string `json:"received_at"`
	RefundedAt  string `json:"refunded_at"`
}

// Payment returns the command that manages received amounts.
func Payment() *cobra.Command {
	var api access
	c := config.Group("payment", "Look at received amounts, and mark them as refunded, through the API",
		newPaymentList(&api), newPaymentRefunded(&api))
	api.flags(c.PersistentFlags(), ownKey)
	return c
}

func newPaymentList(api *access) *cobra.Command {
	var outcome string
	var needsRefund bool
	var limit int
	c := &cobra.Command{
		Use: "list", Short: "List received amounts, newest first", Args: config.NoArgs,
		Long: "List received amounts, newest first. A late amount, a duplicate and a mismatch pay nothing and\n" +
			"have to be refunded: --needs-refund lists those that are not marked as refunded yet.",
		Example: "  flashsale payment list --needs-refund\n  flashsale payment list --outcome late --limit 10",
		RunE: func(c *cobra.Command, _ []string) error {
			if limit < 0 {
				return config.Usage(fmt.Errorf("--limit %d: use 0 (all) or more", limit))
			}
			r, err := api.dial(c, true)
			if err != nil {
				return err
			}
			query := url.Values{"needs_refund": {strconv.FormatBool(needsRefund)}}
			if outcome != "" {
				query.Set("outcome", outcome)
			}
			payments, err := r.payments(c.Context(), query, limit)
			if err != nil {
				return err
			}
			return printPayments(c.OutOrStdout(), payments)
		},
	}
	c.Flags().StringVar(&outcome, "outcome", "", "only those: accepted, late, duplicate, mismatch or refunded")
	c.Flags().BoolVar(&needsRefund, "needs-refund", false, "only amounts that have to be refunded")
	c.Flags().IntVar(&limit, "limit", 50, "payments to list; 0: all")
	return c
}

// payments reads up to limit payments; 0 for all.
func (r *remote) payments(ctx context.Context, query url.Values, limit int) ([]paymentView, error) {
	var all []paymentView
	query.Set("limit", strconv.Itoa(paymentsPage))
	for {
		var page struct {
			Payments []paymentView `json:"payments"`
			Next     string        `json:"next_cursor"`
		}
		if err := r.call(ctx, http.MethodGet, "/v1/admin/payments?"+query.Encode(), nil, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Payments...)
		if limit > 0 && len(all) >= limit {
			return all[:limit], nil
		}
		if page.Next == "" || len(page.Payments) == 0 {
			return all, nil
		}
		query.Set("cursor", page.Next)
	}
}

func printPayments(out io.Writer, payments []paymentView) error {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tOUTCOME\tRECEIVED AS\tAMOUNT\tREFERENCE\tORDER\tITEM\tBUYER\tRECEIVED\tREFUNDED")
	for i := range payments {
		p := &payments[i]
		fmt.Fprintf(w, "%d\t%s\t%s\t%d %s\t%s\t%s\t%s\t%s\t%s\t%s\n", p.ID, p.Outcome, p.ReceivedAs, p.AmountMinor, p.Currency,
			p.Reference, p.OrderID, p.ItemID, p.UserID, p.ReceivedAt, p.RefundedAt)
	}
	return w.Flush()
}

func newPaymentRefunded(api *access) *cobra.Command {
	return &cobra.Command{
		Use: "refunded ID", Short: "Record that an amount that paid nothing was returned to the buyer",
		Long: "Record that an amount that paid nothing was returned to the buyer. It moves no money: refund it at the\n" +
			"payment provider. An accepted amount is refunded with its order: flashsale order refund.",
		Example: "  flashsale payment refunded 17", Args: onePayment,
		RunE: func(c *cobra.Command, args []string) error {
			r, err := api.dial(c, true)
			if err != nil {
				return err
			}
			var p paymentView
			if err := r.call(c.Context(), http.MethodPost, "/v1/admin/payments/"+url.PathEscape(args[0])+"/refunded", nil, &p); err != nil {
				return err
			}
			return printPayments(c.OutOrStdout(), []paymentView{p})
		},
	}
}

// onePayment requires exactly one argument, the id of a payment.
func onePayment(c *cobra.Command, args []string) error {
	if len(args) != 1 || args[0] == "" {
		return config.Usage(fmt.Errorf("%s takes one payment id, from flashsale payment list; see %s --help", c.CommandPath(), c.CommandPath()))
	}
	return nil
}
