package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"flashsale/cmd/flashsale/config"
	"flashsale/internal/bucket"
	"flashsale/internal/plural"
)

// reconcileTimeout bounds a reconciliation of all items, which takes the API at most five
// minutes.
const reconcileTimeout = 6 * time.Minute

// errDiffers sets exit code 1 for a reconciliation that left differences.
var errDiffers = errors.New("the items' counts differ")

// reconcileView is a reconciliation report in the API.
type reconcileView struct {
	Balanced                              bool
	Examined, Differing, Failed, Repaired int
	Omitted                               int
	Items                                 []reconciledView
}

type reconciledView struct {
	ItemID string `json:"item_id"`
	Bucket int    // of an item whose stock is divided
	Error  string
	Loaded bool
	Ledger struct{ Initial, Restocked, Left, Held, Sold int64 }
	Drifts []struct {
		Kind                   string
		Expected, Found, Units int64
		Count                  int
		Repaired               bool
		Note                   string
	}
	LateReleases int64 `json:"late_returns"`
	Partial      bool
}

// Reconcile returns the command that compares Redis and the database.
func Reconcile() *cobra.Command {
	var api access
	var item string
	var repair, asJSON, deep bool
	c := &cobra.Command{
		Use: "reconcile", Short: "Compare Redis and the database for each item; exit 1 if any difference remains", Args: config.NoArgs,
		Long: "reconcile prints the conservation equation of every item, from Redis and the database, and the differences.\n" +
			"Orders in flight between the two do not count as differences. --repair reloads inconsistent sales and recomputes\n" +
			"the database's counts of its orders; it changes no order. The command uses the API.",
		Example: "  flashsale reconcile\n  flashsale reconcile --repair --item drop-1",
		RunE: func(c *cobra.Command, _ []string) error {
			r, err := api.dial(c, true)
			if err != nil {
				return err
			}
			r.client.Timeout = reconcileTimeout
			query := url.Values{"repair": {strconv.FormatBool(repair)}}
			if c.Flags().Changed("item") {
				query.Set("item_id", item)
			}
			if !deep {
				query.Set("deep", "false")
			}
			var text json.RawMessage
			if err := r.call(c.Context(), http.MethodPost, "/v1/admin/reconcile?"+query.Encode(), nil, &text); err != nil {
				return err
			}
			var report reconcileView
			if err := json.Unmarshal(text, &report); err != nil {
				return fmt.Errorf("read answer: %w", err)
			}
			if asJSON {
				_, err = fmt.Fprintf(c.OutOrStdout(), "%s\n", text)
			} else {
				err = printReconciled(c.OutOrStdout(), &report)
			}
			switch {
			case err != nil:
				return err
			case report.Balanced:
				return nil
			case report.Failed > 0:
				return fmt.Errorf("%w or could not be compared; not examined: %d of %s", errDiffers, report.Failed, plural.Count(report.Examined, "item"))
			case repair:
				return fmt.Errorf("%w and cannot be repaired automatically%s", errDiffers, report.decide())
			}
			return fmt.Errorf("%w; %s", errDiffers, report.fix())
		},
	}
	f := c.Flags()
	api.flags(f, ownKey)
	f.StringVar(&item, "item", "", "compare only this item")
	f.BoolVar(&repair, "repair", false, "repair differences")
	f.BoolVar(&deep, "deep", true, "also read all orders and records; =false compares only the counters, which takes milliseconds per item")
	f.BoolVar(&asJSON, "json", false, "print the report as JSON, as the API sends it")
	return config.Reads(c, config.APISettings...)
}

// databaseOld is the kind of a difference that only flashsale recover ends.
const databaseOld = "database_old"

// fix names the command that removes the differences.
func (r *reconcileView) fix() string {
	for i := range r.Items {
		for _, d := range r.Items[i].Drifts {
			if d.Kind != databaseOld {
				return "--repair fixes the repairable ones" + r.decide()
			}
		}
	}
	return strings.TrimPrefix(r.decide(), "; ")
}

// decide names the command for the differences that only an operator's decision ends, if there are any.
func (r *reconcileView) decide() string {
	for i := range r.Items {
		for _, d := range r.Items[i].Drifts {
			if d.Kind == databaseOld {
				return "; for stopped sales, decide with flashsale recover --from redis or --from database; see docs/backup.md"
			}
		}
	}
	return ""
}

// printReconciled prints the equations and then the differences.
func printReconciled(out io.Writer, r *reconcileView) error {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "ITEM\tINITIAL\t+ RESTOCKED\t= LEFT\t+ HELD\t+ SOLD\t")
	for i := range r.Items {
		v := &r.Items[i]
		if v.Error != "" {
			fmt.Fprintf(w, "%s\t\t\t\t\t\tnot examined: %s\n", bucket.ID(v.ItemID, v.Bucket), v.Error)
			continue
		}
		l := &v.Ledger
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%s\n", bucket.ID(v.ItemID, v.Bucket), l.Initial, l.Restocked, l.Left, l.Held, l.Sold, v.state())
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for i := range r.Items {
		v := &r.Items[i]
		for _, d := range v.Drifts {
			fmt.Fprintf(out, "%s: %s: expected %d, found %d", bucket.ID(v.ItemID, v.Bucket), d.Kind, d.Expected, d.Found)
			if d.Count > 1 {
				fmt.Fprintf(out, " (%d records)", d.Count)
			}
			if d.Repaired {
				fmt.Fprint(out, ", repaired")
			}
			if d.Note != "" {
				fmt.Fprintf(out, "; %s", d.Note)
			}
			fmt.Fprintln(out)
		}
		if v.LateReleases > 0 {
			fmt.Fprintf(out, "%s: closed orders that have waited for minutes to return their units: %d\n", bucket.ID(v.ItemID, v.Bucket), v.LateReleases)
		}
		if v.Partial && v.Error == "" {
			fmt.Fprintf(out, "%s: the comparison is incomplete, because the item changed meanwhile or too many orders are queued; repeat under less load, or pause the sale\n", bucket.ID(v.ItemID, v.Bucket))
		}
	}
	if r.Omitted > 0 {
		fmt.Fprintf(out, "and %d more, not listed\n", r.Omitted)
	}
	_, err := fmt.Fprintf(out, "%s, %d different, %s, %d not examined\n",
		plural.Count(r.Examined, "item"), r.Differing, plural.Count(r.Repaired, "repair"), r.Failed)
	return err
}

func (v *reconciledView) state() string {
	differs, repaired := false, false
	for _, d := range v.Drifts {
		differs = differs || !d.Repaired
		repaired = repaired || d.Repaired
	}
	switch {
	case differs:
		return "differs"
	case repaired:
		return "repaired"
	case !v.Loaded:
		return "not loaded"
	default:
		return "balanced"
	}
}
