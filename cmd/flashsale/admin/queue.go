package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"flashsale/cmd/flashsale/config"
)

// deadPage is the size of the pages in which dead letters are read.
const deadPage = 100

// Queue returns the command that manages the task queues and dead letters.
func Queue() *cobra.Command {
	var api access
	c := config.Group("queue", "Inspect the task queues and handle dead letters, through the API",
		newQueueStats(&api), newQueueDead(&api),
		newQueueFate(&api, "retry", "Move dead letters back to their queue"),
		newQueueFate(&api, "discard", "Remove dead letters permanently; an order that was never committed is rejected"),
		newQueueVerify(&api))
	api.flags(c.PersistentFlags(), ownKey)
	return c
}

func newQueueStats(api *access) *cobra.Command {
	return &cobra.Command{
		Use: "stats", Short: "Print the tasks of each queue", Args: config.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			r, err := api.dial(c, true)
			if err != nil {
				return err
			}
			var s struct {
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
			}
			if err := r.call(c.Context(), http.MethodGet, "/v1/admin/queue", nil, &s); err != nil {
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
}

// millis is a number of milliseconds as a rounded duration.
func millis(ms float64) time.Duration {
	return time.Duration(ms * float64(time.Millisecond)).Round(10 * time.Microsecond)
}

// deadView is a dead letter in the API.
type deadView struct {
	Task     string `json:"task"`
	Queue    string `json:"queue"`
	Type     string `json:"type"`
	Orders   int    `json:"orders"`
	OrderID  string `json:"order_id"` // empty unless it is about one order
	ItemID   string `json:"item_id"`
	Attempts int    `json:"attempts"`
	DiedAt   string `json:"died_at"`
	Reason   string `json:"reason"`
}

// order names the order that a letter is about, or says how many there are.
func (l *deadView) order() string {
	if l.OrderID != "" {
		return l.OrderID
	}
	return fmt.Sprintf("%d orders", l.Orders)
}

// deadLetters reads up to limit dead letters; 0 for all.
func (r *remote) deadLetters(ctx context.Context, limit int) ([]deadView, error) {
	var all []deadView
	cursor := ""
	for {
		query := url.Values{"limit": {strconv.Itoa(deadPage)}}
		if cursor != "" {
			query.Set("cursor", cursor)
		}
		var page struct {
			Dead []deadView
			Next string `json:"next_cursor"`
		}
		if err := r.call(ctx, http.MethodGet, "/v1/admin/dead?"+query.Encode(), nil, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Dead...)
		if limit > 0 && len(all) >= limit {
			return all[:limit], nil
		}
		if cursor = page.Next; cursor == "" {
			return all, nil
		}
	}
}

func newQueueDead(api *access) *cobra.Command {
	var limit int
	c := &cobra.Command{
		Use: "dead", Short: "List the dead letters, newest first", Args: config.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if limit < 0 {
				return config.Usage(fmt.Errorf("--limit %d: use 0 (all) or more", limit))
			}
			r, err := api.dial(c, true)
			if err != nil {
				return err
			}
			letters, err := r.deadLetters(c.Context(), limit)
			if err != nil {
				return err
			}
			w := tabwriter.NewWriter(c.OutOrStdout(), 0, 4, 2, ' ', 0)
			fmt.Fprintln(w, "TASK\tQUEUE\tTYPE\tORDER\tITEM\tATTEMPTS\tDIED\tREASON")
			for i := range letters {
				l := &letters[i]
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%q\n", l.Task, l.Queue, l.Type, l.order(), l.ItemID, l.Attempts, l.DiedAt, l.Reason)
			}
			return w.Flush()
		},
	}
	c.Flags().IntVar(&limit, "limit", 50, "letters to list; 0: all")
	return c
}

// newQueueFate returns a command that requeues or discards dead letters one by one. It reports
// a failure for one and continues with the others.
func newQueueFate(api *access, verb, short string) *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use: verb + " [TASK or ORDER ...]", Short: short,
		Example: "  flashsale queue " + verb + " 0197a0f2-3c4d-7abc-8def-0123456789ab\n  flashsale queue " + verb + " --all",
		RunE: func(c *cobra.Command, tasks []string) error {
			if all == (len(tasks) > 0) {
				return config.Usage(fmt.Errorf("name the tasks or their orders, or use --all; see %s --help", c.CommandPath()))
			}
			r, err := api.dial(c, true)
			if err != nil {
				return err
			}
			if all {
				// All of them first, because each decision shifts the pages.
				letters, err := r.deadLetters(c.Context(), 0)
				if err != nil {
					return err
				}
				for _, l := range letters {
					tasks = append(tasks, l.Task)
				}
			}
			var errs []error
			for _, task := range tasks {
				var done struct {
					Queue, State string
					Orders       int
				}
				if err := r.call(c.Context(), http.MethodPost, "/v1/admin/dead/"+url.PathEscape(task)+"/"+verb, nil, &done); err != nil {
					errs = append(errs, fmt.Errorf("%s %s: %w", verb, task, err))
					continue
				}
				if _, err := fmt.Fprintf(c.OutOrStdout(), "%s\t%s\torders: %d\t%s\n", task, done.Queue, done.Orders, done.State); err != nil {
					return err
				}
			}
			return errors.Join(errs...)
		},
	}
	c.Flags().BoolVar(&all, "all", false, verb+" every dead letter")
	return c
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
