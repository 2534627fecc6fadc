package admin

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"

	"flashsale/cmd/flashsale/config"
)

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
}

// Payment returns the command that manages received amounts.
func Payment() *cobra.Command {
	var api access
	c := config.Group("payment", "List received amounts and mark them as refunded, through the API",
		newPaymentList(&api), newPaymentRefunded(&api))
	api.flags(c.PersistentFlags(), ownKey)
	return config.Reads(c, config.APISettings...)
}

func newPaymentList(api *access) *cobra.Command {
	var outcome string
	var needsRefund, asJSON bool
	var limit int
	c := &cobra.Command{
		Use: "list", Short: "List received amounts, newest first", Args: config.NoArgs,
		Long: "List received amounts, newest first. A late amount, a duplicate and a mismatch pay nothing and\n" +
			"have to be refunded: --needs-refund lists those that are not marked as refunded yet.",
		Example: "  flashsale payment list --needs-refund\n  flashsale payment list --outcome late --limit 10\n  flashsale payment list --limit 0 --json | jq '.payments[].reference'",
		RunE: func(c *cobra.Command, _ []string) error {
			if limit < 0 {
				return config.Usage(fmt.Errorf("--limit %d: use 0 (all) or more", limit))
			}
			if err := config.NoEmpty(c, "outcome"); err != nil {
				return err
			}
			r, err := api.dial(c, true)
			if err != nil {
				return err
			}
			query := url.Values{"needs_refund": {strconv.FormatBool(needsRefund)}}
			if outcome != "" {
				query.Set("outcome", outcome)
			}
			entries, err := r.list(c.Context(), "/v1/admin/payments", "payments", query, limit)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), "payments", entries)
			}
			payments, err := decodeEach[paymentView](entries)
			if err != nil {
				return err
			}
			return printPayments(c.OutOrStdout(), payments)
		},
	}
	c.Flags().StringVar(&outcome, "outcome", "", "only this outcome: accepted, late, duplicate, mismatch or refunded")
	c.Flags().BoolVar(&needsRefund, "needs-refund", false, "only amounts that have to be refunded")
	c.Flags().IntVar(&limit, "limit", 50, "payments to list; 0: all")
	flagJSON(c.Flags(), &asJSON)
	return c
}

func printPayments(out io.Writer, payments []paymentView) error {
	return printTable(out, paymentRows(payments))
}

// paymentRows cuts nothing, because ids are copied. --json has the other fields.
func paymentRows(payments []paymentView) [][]string {
	rows := [][]string{{"ID", "OUTCOME", "AMOUNT (MINOR)", "RECEIVED", "ORDER", "ITEM", "REFERENCE", "BUYER"}}
	for i := range payments {
		p := &payments[i]
		outcome := p.Outcome
		if p.ReceivedAs != p.Outcome {
			outcome += " (" + p.ReceivedAs + ")"
		}
		rows = append(rows, []string{strconv.FormatInt(p.ID, 10), outcome, fmt.Sprintf("%d %s", p.AmountMinor, p.Currency), second(p.ReceivedAt),
			p.OrderID, p.ItemID, p.Reference, p.UserID})
	}
	return rows
}

func newPaymentRefunded(api *access) *cobra.Command {
	return &cobra.Command{
		Use: "refunded ID", Short: "Record that an amount that paid for no order was refunded to the buyer",
		Long: "Record that an amount that paid for no order was refunded to the buyer. This transfers no money: refund it at the\n" +
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
		return config.Usage(fmt.Errorf("%s takes one payment id, from flashsale payment list; see %s --help", config.CommandName(c), c.CommandPath()))
	}
	return nil
}
