package admin

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"flashsale/cmd/flashsale/config"
	"flashsale/internal/pause"
	"flashsale/internal/plural"
)

const deadPath = "/v1/admin/dead"

// deadView is a dead letter in the API.
type deadView struct {
	Task     string `json:"task"`
	Queue    string `json:"queue"`
	Type     string `json:"type"`
	Orders   int    `json:"orders"`
	ItemID   string `json:"item_id"`
	Attempts int    `json:"attempts"`
	DiedAt   string `json:"died_at"`
	Reason   string `json:"reason"`
}

func newQueueDead(api *access) *cobra.Command {
	var limit int
	var groups, asJSON bool
	var group string
	c := &cobra.Command{
		Use: "dead [TASK or ORDER]", Short: "List the dead letters, newest first, or their groups, or show one dead letter",
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 1 {
				return config.Usage(fmt.Errorf("%s takes one task or order, and got %d; see %s --help", config.CommandName(c), len(args), c.CommandPath()))
			}
			return noEmptyArgs(c, args)
		},
		Example: "  flashsale queue dead --groups\n  flashsale queue dead --group 3f2a91c07be4d815\n  flashsale queue dead 0197a0f2-3c4d-7abc-8def-0123456789ab",
		RunE: func(c *cobra.Command, args []string) error {
			if limit < 0 {
				return config.Usage(fmt.Errorf("--limit %d: use 0 (all) or more", limit))
			}
			if err := config.NoEmpty(c, "group"); err != nil {
				return err
			}
			if groups && group != "" || len(args) > 0 && (groups || group != "") {
				return config.Usage(fmt.Errorf("use one of TASK or ORDER, --groups and --group; see %s --help", c.CommandPath()))
			}
			r, err := api.dial(c, true)
			if err != nil {
				return err
			}
			switch {
			case len(args) > 0:
				return r.printLetter(c, args[0], asJSON)
			case groups:
				return r.printGroups(c, asJSON)
			default:
				return r.printLetters(c, group, limit, asJSON)
			}
		},
	}
	c.Flags().IntVar(&limit, "limit", 50, "dead letters to list; 0: all")
	c.Flags().BoolVar(&groups, "groups", false, "list groups of dead letters whose reasons differ only in ids and numbers")
	c.Flags().StringVar(&group, "group", "", "list only the dead letters of the group with this id")
	flagJSON(c.Flags(), &asJSON)
	return c
}

// printLetters lists up to limit dead letters, 0 for all, of one group unless it is empty.
func (r *remote) printLetters(c *cobra.Command, group string, limit int, asJSON bool) error {
	query := url.Values{}
	if group != "" {
		query.Set("group", group)
	}
	entries, err := r.list(c.Context(), deadPath, "dead", query, limit)
	if err != nil {
		return err
	}
	if asJSON {
		return printJSON(c.OutOrStdout(), "dead", entries)
	}
	letters, err := decodeEach[deadView](entries)
	if err != nil {
		return err
	}
	return printTable(c.OutOrStdout(), letterRows(letters))
}

func letterRows(letters []deadView) [][]string {
	rows := [][]string{{"TASK", "QUEUE", "ORDERS", "ITEM", "DIED", "REASON"}}
	for i := range letters {
		l := &letters[i]
		rows = append(rows, []string{l.Task, l.Queue, strconv.Itoa(l.Orders), l.ItemID, second(l.DiedAt), l.Reason})
	}
	return cutLast(rows)
}

// printLetter prints a dead letter and its orders.
func (r *remote) printLetter(c *cobra.Command, id string, asJSON bool) error {
	var text json.RawMessage
	if err := r.call(c.Context(), http.MethodGet, deadPath+"/"+url.PathEscape(id)+"/payload", nil, &text); err != nil {
		return err
	}
	if asJSON {
		_, err := fmt.Fprintf(c.OutOrStdout(), "%s\n", text)
		return err
	}
	l, err := decodeJSON[struct {
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
	}](text)
	if err != nil {
		return err
	}
	out := c.OutOrStdout()
	err = printTable(out, [][]string{
		{"task", l.Task}, {"queue", l.Queue}, {"type", l.Type}, {"attempts", strconv.Itoa(l.Attempts)}, {"died", l.DiedAt},
		{"reason", oneLine(l.Reason)},
	})
	if err != nil {
		return err
	}
	rows := [][]string{{"ORDER", "ITEM", "QUANTITY", "BUYER"}}
	for _, o := range l.Payload.Orders {
		rows = append(rows, []string{o.OrderID, o.ItemID, strconv.FormatInt(o.Quantity, 10), o.UserID})
	}
	fmt.Fprintln(out)
	if err := printTable(out, rows); err != nil {
		return err
	}
	if l.Payload.Omitted > 0 {
		fmt.Fprintf(out, "and %d more\n", l.Payload.Omitted)
	}
	if l.Payload.Unreadable > 0 || l.Payload.Raw != "" {
		fmt.Fprintf(out, "unreadable orders: %d; payload: %q\n", l.Payload.Unreadable, l.Payload.Raw)
	}
	return nil
}

// groupsView are the groups of dead letters in the API.
type groupsView struct {
	Groups                  []groupView
	Omitted, Counted, Total int
	Complete                bool
}

type groupView struct {
	ID      string
	Reason  string
	Count   int
	FirstAt string `json:"first_at"`
	LastAt  string `json:"last_at"`
}

func (r *remote) deadGroups(ctx context.Context) (text json.RawMessage, g groupsView, err error) {
	if err = r.call(ctx, http.MethodGet, deadPath+"/groups", nil, &text); err == nil {
		g, err = decodeJSON[groupsView](text)
	}
	return text, g, err
}

func (r *remote) printGroups(c *cobra.Command, asJSON bool) error {
	text, g, err := r.deadGroups(c.Context())
	if err != nil {
		return err
	}
	if asJSON {
		_, err := fmt.Fprintf(c.OutOrStdout(), "%s\n", text)
		return err
	}
	if err := printTable(c.OutOrStdout(), groupRows(&g)); err != nil {
		return err
	}
	if !g.Complete {
		fmt.Fprintf(c.ErrOrStderr(), "counted %d of %s, the newest of each queue\n", g.Counted, plural.Count(g.Total, "dead letter"))
	}
	if g.Omitted > 0 {
		fmt.Fprintf(c.ErrOrStderr(), "not listed: %s\n", plural.Count(g.Omitted, "smaller group"))
	}
	return nil
}

func groupRows(g *groupsView) [][]string {
	rows := [][]string{{"GROUP", "LETTERS", "FIRST", "LAST", "REASON"}}
	for i := range g.Groups {
		o := &g.Groups[i]
		rows = append(rows, []string{o.ID, strconv.Itoa(o.Count), second(o.FirstAt), second(o.LastAt), o.Reason})
	}
	return cutLast(rows)
}

// bulkFlags are the flags of a command that decides about dead letters.
type bulkFlags struct {
	verb          string
	all, yes      bool
	group, before string
}

// nothing is the result if no dead letter is selected.
func (o *bulkFlags) nothing() string {
	text := "nothing to " + o.verb + ": there are no dead letters"
	if o.group != "" {
		text += " in group " + o.group
	}
	if o.before != "" {
		text += " that died before " + o.before
	}
	return text
}

// newQueueDecision returns a command that requeues or discards dead letters: named ones one by
// one, or all of a selection. It reports a failure for one and continues with the others.
func newQueueDecision(api *access, verb, short string) *cobra.Command {
	o := bulkFlags{verb: verb}
	c := &cobra.Command{
		Use: verb + " [TASK or ORDER ...]", Short: short, Args: noEmptyArgs,
		Example: "  flashsale queue " + verb + " 0197a0f2-3c4d-7abc-8def-0123456789ab\n  flashsale queue " + verb + " --group 3f2a91c07be4d815\n  flashsale queue " + verb + " --all",
		RunE: func(c *cobra.Command, tasks []string) error {
			if err := config.NoEmpty(c, "group", "before"); err != nil {
				return err
			}
			ways := 0
			for _, chosen := range []bool{o.all, o.group != "", len(tasks) > 0} {
				if chosen {
					ways++
				}
			}
			if ways != 1 {
				return config.Usage(fmt.Errorf("%s needs exactly one of: ids of tasks or orders, --group, or --all; see %s --help", config.CommandName(c), c.CommandPath()))
			}
			if o.before != "" && len(tasks) > 0 {
				return config.Usage(fmt.Errorf("--before %q: it selects among the letters of --all or --group; leave it out, or the ids", o.before))
			}
			if err := checkBefore(o.before); err != nil {
				return err
			}
			r, err := api.dial(c, true)
			if err != nil {
				return err
			}
			if len(tasks) > 0 {
				return r.decideEach(c, verb, tasks)
			}
			if verb == "discard" && o.all && !o.yes {
				if some, err := r.confirmDiscard(c, o.before); err != nil || !some {
					return err
				}
			}
			return r.decideMany(c, &o)
		},
	}
	c.Flags().BoolVar(&o.all, "all", false, verb+" every dead letter")
	c.Flags().StringVar(&o.group, "group", "", verb+" the dead letters of the group with this id; queue dead --groups lists the groups")
	c.Flags().StringVar(&o.before, "before", "", "with --all or --group: only dead letters that died before this RFC 3339 time (default now)")
	if verb == "discard" {
		c.Flags().BoolVar(&o.yes, "yes", false, "with --all: do not ask for confirmation")
	}
	return c
}

// checkBefore checks --before as the API does, which is not asked if there are no dead letters.
func checkBefore(text string) error {
	if text == "" {
		return nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if y := t.UTC().Year(); err != nil || y < 2000 || y > 2999 {
		return config.Usage(fmt.Errorf("--before %q: write an RFC 3339 time such as 2030-01-31T18:00:00Z, in the years 2000 to 2999", text))
	}
	return nil
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
			errs = append(errs, fmt.Errorf("%s %s: %w", verb, printable(task), err))
			continue
		}
		if _, err := fmt.Fprintf(c.OutOrStdout(), "%s\t%s\torders: %d\t%s\n", task, done.Queue, done.Orders, done.State); err != nil {
			return err
		}
	}
	if len(tasks) > 1 && len(errs) > 0 { // others may be done, so it is no usage error
		return errors.New(errors.Join(errs...).Error())
	}
	return errors.Join(errs...)
}

// confirmDiscard asks before all dead letters are discarded, or those that died before a time. some
// is false if there are none.
func (r *remote) confirmDiscard(c *cobra.Command, before string) (some bool, err error) {
	_, g, err := r.deadGroups(c.Context())
	if err != nil {
		return false, err
	}
	if g.Total == 0 {
		_, err := fmt.Fprintln(c.OutOrStdout(), (&bulkFlags{verb: "discard"}).nothing())
		return false, err
	}
	which := ""
	if before != "" {
		which = " that died before " + before
	}
	fmt.Fprintf(c.ErrOrStderr(), "Discard all dead letters%s permanently (%d in total)? Their uncommitted orders are rejected. Type yes: ", which, g.Total)
	line, err := bufio.NewReader(io.LimitReader(c.InOrStdin(), 64)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return false, fmt.Errorf("read the confirmation: %w", err)
	}
	if strings.TrimSpace(line) != "yes" {
		return false, errors.New("not confirmed, nothing was discarded; --yes skips the question")
	}
	return true, nil
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
			return fmt.Errorf("%s after %s: %w; to continue, repeat the command with --before %s", o.verb, plural.Count(sum.Done, "dead letter"), err, sum.Before)
		}
		if sum.add(answer); sum.Next == "" {
			break
		}
		body["cursor"] = sum.Next
		progress.show(sum.String(o.verb))
	}
	progress.end()
	result := sum.String(o.verb)
	if sum.Matched == 0 {
		result = o.nothing()
	}
	if _, err := fmt.Fprintln(c.OutOrStdout(), result); err != nil {
		return err
	}
	if sum.Failed > 0 {
		return fmt.Errorf("failed and left as before: %s; the log of the API has the errors", plural.Count(sum.Failed, "dead letter"))
	}
	return nil
}

func (s *bulkSum) String(verb string) string {
	text := fmt.Sprintf("%s: %s done with %s, %d failed", verb, plural.Count(s.Done, "dead letter"), plural.Count(s.Orders, "order"), s.Failed)
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
