package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/charmbracelet/x/term"
	"github.com/spf13/cobra"

	"flashsale/cmd/flashsale/config"
	"flashsale/handler/auth"
)

// topTokenLife is the life of the tokens that top signs for itself. The server ends a stream
// with its token; the next one gets a new token.
const topTokenLife = time.Hour

// Top returns the command that shows the live figures.
func Top() *cobra.Command {
	var api access
	var asJSON bool
	var items []string
	c := &cobra.Command{
		Use: "top", Short: "Show live figures of the whole deployment, once per second", Args: config.NoArgs,
		Long: "top shows live figures of the whole deployment: purchases accepted, committed and refused per second,\n" +
			"latencies, queues, locks, circuit breakers, the busiest items and the share of each process.\n\n" +
			"On a terminal it refreshes in place; q or Ctrl-C quits. Otherwise it prints one line per second, or with\n" +
			"--json the data of each event. When the connection ends it reconnects, and says so.",
		Example: "  flashsale top\n  flashsale top --item drop-1,drop-2\n  flashsale top --json | jq .accepted_per_second",
		RunE: func(c *cobra.Command, _ []string) error {
			t, err := api.dialTop(c, items)
			if err != nil {
				return err
			}
			out := c.OutOrStdout()
			f, isFile := out.(*os.File)
			switch {
			case asJSON:
				return t.print(c.Context(), out, c.ErrOrStderr(), func(e *topEvent) string { return string(e.raw) })
			case isFile && drawable(f):
				return t.draw(c.Context(), f)
			default:
				return t.print(c.Context(), out, c.ErrOrStderr(), plainLine)
			}
		},
	}
	api.flags(c.Flags(), ownKey)
	c.Flags().BoolVar(&asJSON, "json", false, "print the data of each event as one line of JSON")
	c.Flags().StringSliceVar(&items, "item", nil, "items to show, up to 20 (default: the busiest)")
	return config.Reads(c, config.APISettings...)
}

// drawable reports whether a file is a terminal of a known size.
func drawable(f *os.File) bool {
	if !term.IsTerminal(f.Fd()) || os.Getenv("TERM") == "dumb" {
		return false
	}
	width, height, err := term.GetSize(f.Fd())
	return err == nil && width > 0 && height > 0
}

// topSource connects to the stream of figures.
type topSource struct {
	asked
	path string
	// token returns the token for the next connection.
	token  func() (string, error)
	client http.Client
}

// dialTop prepares the stream, and waits for the API as long as --wait says.
func (a *access) dialTop(c *cobra.Command, items []string) (*topSource, error) {
	if err := config.NoEmpty(c, "item"); err != nil {
		return nil, err
	}
	r, err := a.dial(c, true)
	if err != nil {
		return nil, err
	}
	t := &topSource{
		asked: r.asked, path: "/v1/admin/events",
		token: func() (string, error) { return r.token, nil },
		// The answer begins at once; a stream has no end.
		client: http.Client{
			Transport:     &http.Transport{ResponseHeaderTimeout: apiTimeout, Proxy: http.ProxyFromEnvironment},
			CheckRedirect: noRedirects,
		},
	}
	if len(items) > 0 {
		t.path += "?item=" + url.QueryEscape(strings.Join(items, ","))
	}
	if a.token == "" {
		s, err := config.Load(c.Flags())
		if err != nil {
			return nil, err
		}
		t.token = func() (string, error) {
			key, terms, err := s.Signer(auth.RoleAdmin)
			if err != nil {
				return "", err
			}
			return s.Sign(key, terms, Operator(), auth.RoleAdmin, topTokenLife)
		}
	}
	return t, nil
}

// open connects. A refusal of the API is a *refusal.
func (t *topSource) open(ctx context.Context) (io.ReadCloser, error) {
	token, err := t.token()
	if err != nil {
		return nil, &final{err}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(t.server, "/")+t.path, http.NoBody)
	if err != nil {
		return nil, &final{err}
	}
	req.Header.Set("Accept", "text/event-stream")
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := t.client.Do(req)
	if err != nil {
		var failed *url.Error
		if errors.As(err, &failed) {
			err = failed.Err // without the URL, which is shown beside it
		}
		return nil, err
	}
	if res.StatusCode == http.StatusOK {
		return res.Body, nil
	}
	defer res.Body.Close()
	err = t.refused(res)
	if res.StatusCode < 500 && res.StatusCode != http.StatusTooManyRequests {
		return nil, &final{err} // a repeat would get the same
	}
	return nil, err
}

// final is an error that a new connection would meet again.
type final struct{ err error }

func (f *final) Error() string { return f.err.Error() }
func (f *final) Unwrap() error { return f.err }

// topUpdate is what the connection reports: an event, or its state in words.
type topUpdate struct {
	event *topEvent
	// notice describes a lost connection; empty: connected.
	notice string
}

// The pauses between attempts to connect.
const (
	topRetryMin = 500 * time.Millisecond
	topRetryMax = 10 * time.Second
	// topSilence is how long the stream may be silent: it has an event per second.
	topSilence = 10 * time.Second
)

// follow reads events and reconnects until ctx ends or an error is final. It does not wait for
// an API that cannot be reached at the start; --wait does.
func (t *topSource) follow(ctx context.Context, tell func(topUpdate)) error {
	ever := false
	for wait := topRetryMin; ; wait = min(2*wait, topRetryMax) {
		pause, got, err := t.read(ctx, tell)
		var end *final
		var refused *refusal
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the user has quit
		case errors.As(err, &end):
			return end.err
		case got:
			ever, wait = true, topRetryMin
		case !ever && errors.As(err, &refused):
			return err
		case !ever:
			return unreachable(t.server, err)
		}
		if pause == 0 {
			pause = wait
		}
		tell(topUpdate{notice: "connection lost, reconnecting: " + err.Error()})
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
	}
}

// errStreamEnded is the ordinary end of a stream: the process stops, or the token expires.
var errStreamEnded = errors.New("the server ended the stream")

// errSilent is the end of a stream that sends nothing.
var errSilent = fmt.Errorf("no data for %v", topSilence)

// read follows one connection. got says that there was an event; pause is how long
// the server asks the client to wait before it reconnects, 0 if it does not say.
func (t *topSource) read(ctx context.Context, tell func(topUpdate)) (pause time.Duration, got bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(topSilence+apiTimeout, func() { cancel(errSilent) })
	defer silence.Stop()
	body, err := t.open(ctx)
	if err != nil {
		return 0, false, err
	}
	defer body.Close()
	in := newEventReader(body)
	for {
		silence.Reset(topSilence)
		name, data, err := in.next()
		switch {
		case errors.Is(context.Cause(ctx), errSilent):
			return in.retry, got, errSilent
		case errors.Is(err, io.EOF):
			return in.retry, got, errStreamEnded
		case err != nil:
			return in.retry, got, err
		case name != "figures":
			continue
		}
		e, err := parseTopEvent(data)
		if err != nil {
			return 0, got, &final{err}
		}
		got = true
		tell(topUpdate{event: e})
	}
}

// print writes one line for each event, and to notices when the connection is lost and restored.
func (t *topSource) print(ctx context.Context, out, notices io.Writer, line func(*topEvent) string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	last := ""
	err := t.follow(ctx, func(n topUpdate) {
		switch {
		case n.event == nil && n.notice != last:
			fmt.Fprintf(notices, "%s: %s\n", t.server, printable(n.notice))
			last = n.notice
		case n.event != nil:
			if last != "" {
				fmt.Fprintf(notices, "%s: connected again\n", t.server)
				last = ""
			}
			if _, err := fmt.Fprintln(out, line(n.event)); err != nil {
				cancel(err) // the reader of the output has gone
			}
		}
	})
	if cause := context.Cause(ctx); err == nil && cause != nil && !errors.Is(cause, context.Canceled) {
		return fmt.Errorf("write: %w", cause)
	}
	return err
}
