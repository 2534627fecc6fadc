package admin

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"flashsale/cmd/flashsale/config"
	"flashsale/internal/pause"
)

// deadPage is the size of the pages in which dead letters are read.
const deadPage = 100

const deadPath = "/v1/admin/dead"

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

// deadLetters reads up to limit dead letters, 0 for all, of one group unless it is empty.
func (r *remote) deadLetters(ctx context.Context, group string, limit int) ([]deadView, error) {
	var all []deadView
	cursor := ""
	for {
		query := url.Values{"limit": {strconv.Itoa(deadPage)}}
		if group != "" {
			query.Set("group", group)
		}
		if cursor != "" {
			query.Set("cursor", cursor)
		}
		var page struct {
			Dead []deadView
			Next string `json:"next_cursor"`
		}
		if err := r.renew(); err != nil {
			return nil, err
		}
		if err := r.call(ctx, http.MethodGet, deadPath+"?"+query.Encode(), nil, &page); err != nil {
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
	var groups bool
	var group string
	c := &cobra.Command{
		Use: "dead [TASK or ORDER]", Short: "List the dead letters, newest first, their groups, or what one contains", Args: cobra.MaximumNArgs(1),
		Example: "  flashsale queue dead --groups\n  flashsale queue dead --group 3f2a91c07be4d815\n  flashsale queue dead 0197a0f2-3c4d-7abc-8def-0123456789ab",
		RunE: func(c *cobra.Command, args []string) error {
			if limit < 0 {
				return config.Usage(fmt.Errorf("--limit %d: use 0 (all) or more", limit))
			}
			if groups && group != "" || len(args) > 0 && (groups || group != "") {
				return config.Usage(fmt.Errorf("use one of TASK, --groups and --group; see %s --help", c.CommandPath()))
			}
			r, err := api.dial(c, true)
			if err != nil {
				return err
			}
			switch {
			case len(args) > 0:
				return r.printLetter(c, args[0])
			case groups:
				return r.printGroups(c)
			}
			letters, err := r.deadLetters(c.Context(), group, limit)
			if err != nil {
				return err
			}
			return printLetters(c.OutOrStdout(), letters...)
		},
	}
	c.Flags().IntVar(&limit, "limit", 50, "letters to list; 0: all")
	c.Flags().BoolVar(&groups, "groups", false, "list groups of letters whose reasons differ only in ids and numbers")
	c.Flags().StringVar(&group, "group", "", "list only the letters of the group with this id")
	return c
}

func printLetters(out io.Writer, letters ...deadView) error {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "TASK\tQUEUE\tTYPE\tORDER\tITEM\tATTEMPTS\tDIED\tREASON")
	for i := range letters {
		l := &letters[i]
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%q\n", l.Task, l.Queue, l.Type, l.order(), l.ItemID, l.Attempts, l.DiedAt, l.Reason)
	}
	return w.Flush()
}

// printLetter prints a dead letter and its orders.
func (r *remote) printLetter(c *cobra.Command, id string) error {
	var l struct {
		deadView
		Payload struct {
			Orders []struct {
				OrderID  string `json:"order_id"`
				ItemID   string `json:"item_id"`
				UserID   string `json:"user_id"`
				Quantity int64
			}
			Omitted, Unreadable int
			Raw                 string
		}
	}
	if err := r.call(c.Context(), http.MethodGet, deadPath+"/"+url.PathEscape(id)+"/payload", nil, &l); err != nil {
		return err
	}
	if err := printLetters(c.OutOrStdout(), l.deadView); err != nil {
		return err
	}
	w := tabwriter.NewWriter(c.OutOrStdout(), 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "\nORDER\tITEM\tBUYER\tQUANTITY")
	for _, o := range l.Payload.Orders {
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\n", o.OrderID, o.ItemID, o.UserID, o.Quantity)
	}
	if l.Payload.Omitted > 0 {
		fmt.Fprintf(w, "and %d more\n", l.Payload.Omitted)
	}
	if l.Payload.Unreadable > 0 || l.Payload.Raw != "" {
		fmt.Fprintf(w, "unreadable orders: %d; payload: %q\n", l.Payload.Unreadable, l.Payload.Raw)
	}
	return w.Flush()
}

// groupsView are the groups of dead letters in the API.
type groupsView struct {
	Groups []struct {
		ID      string
		Reason  string
		Count   int
		FirstAt string `json:"first_at"`
		LastAt  string `json:"last_at"`
		Example string `json:"example_task"`
	}
	Omitted, Counted, Total int
	Complete                bool
}

func (r *remote) deadGroups(ctx context.Context) (g groupsView, err error) {
	err = r.call(ctx, http.MethodGet, deadPath+"/groups", nil, &g)
	return g, err
}

func (r *remote) printGroups(c *cobra.Command) error {
	g, err := r.deadGroups(c.Context())
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(c.OutOrStdout(), 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "GROUP\tLETTERS\tFIRST\tLAST\tEXAMPLE\tREASON")
	for _, o := range g.Groups {
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%q\n", o.ID, o.Count, o.FirstAt, o.LastAt, o.Example, o.Reason)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if !g.Complete {
		fmt.Fprintf(c.ErrOrStderr(), "counted %d of %d dead letters, the newest of each queue\n", g.Counted, g.Total)
	}
	if g.Omitted > 0 {
		fmt.Fprintf(c.ErrOrStderr(), "%d smaller groups are not listed\n", g.Omitted)
	}
	return nil
}

// bulkFlags are the flags of a command that decides about dead letters.
type bulkFlags struct {
	verb          string
	all, yes      bool
	group, before string
}

// newQueueFate returns a command that requeues or discards dead letters: named ones one by
// one, or all of a selection. It reports a failure for one and continues with the others.
func newQueueFate(api *access, verb, short string) *cobra.Command {
	o := bulkFlags{verb: verb}
	c := &cobra.Command{
		Use: verb + " [TASK or ORDER ...]", Short: short,
		Example: "  flashsale queue " + verb + " 0197a0f2-3c4d-7abc-8def-0123456789ab\n  flashsale queue " + verb + " --group 3f2a91c07be4d815\n  flashsale queue " + verb + " --all",
		RunE: func(c *cobra.Command, tasks []string) error {
			ways := 0
			for _, chosen := range []bool{o.all, o.group != "", len(tasks) > 0} {
				if chosen {
					ways++
				}
			}
			if ways != 1 || o.before != "" && len(tasks) > 0 {
				return config.Usage(fmt.Errorf("name the tasks or their orders, or use --all or --group; see %s --help", c.CommandPath()))
			}
			r, err := api.dial(c, true)
			if err != nil {
				return err
			}
			if len(tasks) > 0 {
				return r.decideEach(c, verb, tasks)
			}
			if verb == "discard" && o.all && !o.yes {
				if err := r.confirmDiscard(c); err != nil {
					return err
				}
			}
			return r.decideMany(c, &o)
		},
	}
	c.Flags().BoolVar(&o.all, "all", false, verb+" every dead letter")
	c.Flags().StringVar(&o.group, "group", "", verb+" the letters of the group with this id; queue dead --groups lists them")
	c.Flags().StringVar(&o.before, "before", "", "with --all or --group: only letters that died before this RFC 3339 time (default now)")
	if verb == "discard" {
		c.Flags().BoolVar(&o.yes, "yes", false, "with --all: do not ask for confirmation")
	}
	return c
}

// decideEach retries or discards tasks one by one.
func (r *remote) decideEach(c *cobra.Command, verb string, tasks []string) error {
	var errs []error
	for _, task := range tasks {
		var done struct {
			Queue, State string
			Orders       int
		}
		if err := r.call(c.Context(), http.MethodPost, deadPath+"/"+url.PathEscape(task)+"/"+verb, nil, &done); err != nil {
			errs = append(errs, fmt.Errorf("%s %s: %w", verb, task, err))
			continue
		}
		if _, err := fmt.Fprintf(c.OutOrStdout(), "%s\t%s\torders: %d\t%s\n", task, done.Queue, done.Orders, done.State); err != nil {
			return err
		}
	}
	return errors.Join(errs...)
}

// confirmDiscard asks before all dead letters are discarded.
func (r *remote) confirmDiscard(c *cobra.Command) error {
	g, err := r.deadGroups(c.Context())
	if err != nil {
		return err
	}
	fmt.Fprintf(c.ErrOrStderr(), "Discard all %d dead letters permanently? Their uncommitted orders are rejected. Type yes: ", g.Total)
	line, err := bufio.NewReader(io.LimitReader(c.InOrStdin(), 64)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read the confirmation: %w", err)
	}
	if strings.TrimSpace(line) != "yes" {
		return errors.New("not confirmed, nothing was discarded; --yes skips the question")
	}
	return nil
}

// bulkSum adds up the answers of the calls of one command.
type bulkSum struct {
	Matched, Done, Failed, Orders int
	Remaining                     *int // nil: unknown
	Before                        string
	Next                          string `json:"next_cursor"`
}

func (s *bulkSum) add(answer bulkSum) {
	s.Matched, s.Done, s.Failed, s.Orders = s.Matched+answer.Matched, s.Done+answer.Done, s.Failed+answer.Failed, s.Orders+answer.Orders
	s.Remaining, s.Before, s.Next = answer.Remaining, answer.Before, answer.Next
}

// decideMany retries or discards a selection, call by call, and shows the progress.
func (r *remote) decideMany(c *cobra.Command, o *bulkFlags) error {
	body := map[string]any{}
	if o.all {
		body["all"] = true
	} else {
		body["group"] = o.group
	}
	if o.before != "" {
		body["before"] = o.before
	}
	progress := newProgress(c.ErrOrStderr())
	var sum bulkSum
	for {
		var answer bulkSum
		err := r.callAgain(c.Context(), deadPath+"/"+o.verb, body, &answer)
		if err != nil {
			progress.end()
			if sum.Before == "" {
				return err
			}
			return fmt.Errorf("%s after %d dead letters: %w; to continue, repeat the command with --before %s", o.verb, sum.Done, err, sum.Before)
		}
		if sum.add(answer); sum.Next == "" {
			break
		}
		body["cursor"] = sum.Next
		progress.show(sum.String(o.verb))
	}
	progress.end()
	if _, err := fmt.Fprintln(c.OutOrStdout(), sum.String(o.verb)); err != nil {
		return err
	}
	if sum.Failed > 0 {
		return fmt.Errorf("%d dead letters failed and stay; the log of the API has the errors", sum.Failed)
	}
	return nil
}

func (s *bulkSum) String(verb string) string {
	text := fmt.Sprintf("%s: %d dead letters done with %d orders, %d failed", verb, s.Done, s.Orders, s.Failed)
	if s.Remaining != nil && s.Next != "" {
		text += fmt.Sprintf(", %d remaining", *s.Remaining)
	}
	return text
}

// Attempts and pauses of a call that is refused because of a lack of capacity.
const (
	bulkAttempts = 6
	bulkPause    = time.Second
)

// callAgain posts a body that may be repeated, and repeats it after a 503.
func (r *remote) callAgain(ctx context.Context, path string, body, out any) error {
	for attempt := 1; ; attempt++ {
		if err := r.renew(); err != nil {
			return err
		}
		err := r.call(ctx, http.MethodPost, path, body, out)
		var refused *refusal
		if !errors.As(err, &refused) || refused.status != http.StatusServiceUnavailable || attempt == bulkAttempts {
			return err
		}
		if perr := pause.OrCause(ctx, time.Duration(attempt)*bulkPause); perr != nil {
			return errors.Join(err, perr)
		}
	}
}

// progress shows the state of a command: in place on a terminal, otherwise a line now and then.
type progress struct {
	out      io.Writer
	inPlace  bool
	lastLine time.Time
	shown    bool
}

// progressEvery is the least time between two lines that are not shown in place.
const progressEvery = 10 * time.Second

func newProgress(out io.Writer) *progress {
	f, ok := out.(*os.File)
	return &progress{out: out, inPlace: ok && drawable(f)}
}

func (p *progress) show(text string) {
	switch {
	case p.inPlace:
		fmt.Fprint(p.out, "\r\x1b[K"+text)
		p.shown = true
	case time.Since(p.lastLine) >= progressEvery:
		fmt.Fprintln(p.out, text)
		p.lastLine = time.Now()
	}
}

// end clears what is shown in place.
func (p *progress) end() {
	if p.shown {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}
