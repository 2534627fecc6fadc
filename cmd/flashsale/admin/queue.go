package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"flashsale/cmd/flashsale/config"
)

// Queue returns the command that manages the task queues and dead letters.
func Queue() *cobra.Command {
	var api access
	c := config.Group("queue", "Inspect the task queues and handle dead letters, through the API",
		newQueueStats(&api), newQueueDead(&api),
		newQueueDecision(&api, "retry", "Move dead letters back to their queue"),
		newQueueDecision(&api, "discard", "Remove dead letters permanently; an order that was never committed is rejected"),
		newQueueVerify(&api))
	api.flags(c.PersistentFlags(), ownKey)
	return config.Reads(c, config.APISettings...)
}

func newQueueStats(api *access) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "stats", Short: "Print the tasks of each queue", Args: config.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			r, err := api.dial(c, true)
			if err != nil {
				return err
			}
			var text json.RawMessage
			if err := r.call(c.Context(), http.MethodGet, "/v1/admin/queue", nil, &text); err != nil {
				return err
			}
			if asJSON {
				_, err := fmt.Fprintf(c.OutOrStdout(), "%s\n", text)
				return err
			}
			s, err := decodeJSON[struct {
				Queues []struct {
					Name      string
					Orders    int
					Ready     int
					Delayed   int
					Leased    int
					Dead      int
					Oldest    float64 `json:"oldest_age_ms"`
					Processed int64
					PerSecond float64 `json:"per_second"`
					Wait      float64 `json:"wait_p99_ms"`
					Paused    bool
				}
			}](text)
			if err != nil {
				return err
			}
			w := tabwriter.NewWriter(c.OutOrStdout(), 0, 4, 2, ' ', 0)
			fmt.Fprintln(w, "QUEUE\tORDERS\tREADY\tDELAYED\tLEASED\tDEAD\tOLDEST\tDONE\tPER SECOND\tWAITED P99\t")
			for _, q := range s.Queues {
				state := ""
				if q.Paused {
					state = "paused"
				}
				fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%s\t%d\t%.1f\t%s\t%s\n", q.Name, q.Orders, q.Ready, q.Delayed, q.Leased, q.Dead,
					millis(q.Oldest), q.Processed, q.PerSecond, millis(q.Wait), state)
			}
			return w.Flush()
		},
	}
	flagJSON(c.Flags(), &asJSON)
	return c
}

// millis is a number of milliseconds as a rounded duration.
func millis(ms float64) time.Duration {
	return time.Duration(ms * float64(time.Millisecond)).Round(10 * time.Microsecond)
}

// errUnclean sets exit code 1 for a check that found a problem.
var errUnclean = errors.New("tasks are inconsistent; --repair fixes them")

func newQueueVerify(api *access) *cobra.Command {
	var repair bool
	c := &cobra.Command{
		Use: "verify", Short: "Check that every task is complete and in one state; exit 1 if one is not", Args: config.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			r, err := api.dial(c, true)
			if err != nil {
				return err
			}
			var report struct {
				Queues []struct {
					Name                           string
					Tasks, Lost, Doubled, Bodiless int
					Repaired                       bool
				}
				Clean bool
			}
			path := "/v1/admin/queue/verify?repair=" + strconv.FormatBool(repair)
			if err := r.call(c.Context(), http.MethodPost, path, nil, &report); err != nil {
				return err
			}
			w := tabwriter.NewWriter(c.OutOrStdout(), 0, 4, 2, ' ', 0)
			fmt.Fprintln(w, "QUEUE\tTASKS\tLOST\tDOUBLED\tBODILESS\t")
			for _, q := range report.Queues {
				state := ""
				if q.Repaired {
					state = "repaired"
				}
				fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%s\n", q.Name, q.Tasks, q.Lost, q.Doubled, q.Bodiless, state)
			}
			if err := w.Flush(); err != nil {
				return err
			}
			if !report.Clean && !repair {
				return errUnclean
			}
			return nil
		},
	}
	c.Flags().BoolVar(&repair, "repair", false, "repair inconsistent tasks")
	return c
}
