// Package admin has the commands that manage a running service through its API, and their
// client.
package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os/user"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"flashsale/cmd/flashsale/config"
	"flashsale/handler/auth"
)

// apiTimeout bounds one API call of the command line.
const apiTimeout = 15 * time.Second

// maxAnswer bounds an answer of the API, in bytes.
const maxAnswer = 16 << 20

// remote is the API client of the commands.
type remote struct {
	asked
	token  string
	sign   func() (string, error) // signs the next token, each short-lived; nil: the token was given
	client http.Client
}

// renew replaces a token that this process has signed, for commands with many calls.
func (r *remote) renew() (err error) {
	if r.sign != nil {
		r.token, err = r.sign()
	}
	return err
}

// call sends one request and decodes the answer into out. A refusal becomes an error with the
// text of the problem.
func (r *remote) call(ctx context.Context, method, path string, body, out any) error {
	_, err := r.send(ctx, method, path, nil, body, out)
	return err
}

// send is like call, with additional request headers; it returns the answer's headers.
func (r *remote) send(ctx context.Context, method, path string, headers map[string]string, body, out any) (answer http.Header, err error) {
	var in io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		in = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(r.server, "/")+path, in)
	if err != nil {
		return nil, err
	}
	for name, value := range headers {
		req.Header.Set(name, value)
	}
	req.Header.Set("Content-Type", "application/json")
	if r.token != "" {
		req.Header.Set("Authorization", "Bearer "+r.token)
	}
	res, err := r.client.Do(req)
	if err != nil {
		return nil, r.unanswered(ctx, method, err)
	}
	defer func() { err = errors.Join(err, res.Body.Close()) }()
	if res.StatusCode >= 300 {
		return nil, r.refused(res)
	}
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, r.unanswered(ctx, method, err)
	case len(text) > maxAnswer:
		return nil, r.foreign(fmt.Sprintf("%s with more than %d bytes", res.Status, maxAnswer))
	}
	// Each answer of the API is an object with members.
	var members map[string]json.RawMessage
	if json.Unmarshal(text, &members) != nil || len(members) == 0 || json.Unmarshal(text, out) != nil {
		return nil, r.foreign(res.Status + " with a body that the API does not send")
	}
	return res.Header, nil
}

// noRedirects makes a redirect the answer. A server that is redirected to may be another one, and a
// POST would become a GET there, whose success says nothing about the change.
func noRedirects(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// unanswered is the error of a call without a complete answer.
func (r *remote) unanswered(ctx context.Context, method string, err error) error {
	var failed *net.OpError
	changed := method != http.MethodGet && !(errors.As(err, &failed) && failed.Op == "dial") // it may have
	if ctx.Err() != nil {
		err = fmt.Errorf("interrupted before %s answered", r.server)
	} else {
		err = unreachable(r.server, err)
	}
	if changed {
		return fmt.Errorf("%w; the change may have been made", err)
	}
	return err
}

// unreachable is the error of a request without an answer.
func unreachable(server string, err error) error {
	var failed *url.Error
	if errors.As(err, &failed) {
		err = failed.Err // without the URL, which is long
	}
	return fmt.Errorf("%s does not answer: %w; start the service, or correct --server", server, err)
}

// access is how a command reaches the API: with the given server and token, or with those of a
// service that has the same settings.
type access struct{ server, token string }

// ownKey is the help of --token.
const ownKey = "admin token (default: signed with the configured key)"

// flags declares --server, --token with its help, and --wait.
func (a *access) flags(f *pflag.FlagSet, token string) {
	f.StringVar(&a.server, "server", "", "URL of the API (default http:// and --addr)")
	addWait(f)
	f.StringVar(&a.token, "token", "", token)
}

// dial prepares calls, as an admin or without a token. It waits for the API as long as --wait
// says.
func (a *access) dial(c *cobra.Command, admin bool) (*remote, error) {
	server, token := a.server, a.token
	if err := config.NoEmpty(c, "server", "token"); err != nil {
		return nil, err
	}
	if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, config.Usage(errors.New("--token: it has a space, a line break or a character that no token has; write only the token"))
	}
	s, err := config.Load(c.Flags())
	if err != nil {
		return nil, err
	}
	wait, err := waitFor(c)
	if err != nil {
		return nil, err
	}
	if server == "" {
		server = "http://" + s.Addr
	}
	if u, err := url.Parse(server); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, config.Usage(fmt.Errorf("--server %q: write a URL such as http://127.0.0.1:8080", server))
	}
	var key []byte
	var terms auth.Terms
	if token == "" && admin {
		if key, terms, err = s.Signer(auth.RoleAdmin); err != nil {
			return nil, err
		}
	}
	r := &remote{asked: asked{server, c.Flags(), key != nil, argumentOf(c)}, token: token, client: http.Client{Timeout: apiTimeout, CheckRedirect: noRedirects}}
	if err := r.waitReady(c.Context(), wait); err != nil {
		return nil, err
	}
	// Signed last, because the token is short-lived.
	if key != nil {
		r.sign = func() (string, error) { return s.Sign(key, terms, Operator(), auth.RoleAdmin, time.Minute) }
		err = r.renew()
	}
	return r, err
}

// Operator is the actor in the audit log for changes that a person on this machine makes with
// the configured key: the name of the system's user.
func Operator() string {
	const nobody = "cli"
	u, err := user.Current()
	if err != nil {
		return nobody
	}
	name := nobody + ":" + strings.ReplaceAll(u.Username, `\`, "-") // the domain is before the backslash
	if !auth.ValidSubject(name) {
		return nobody
	}
	return name
}
