package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os/user"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"flashsale/cmd/flashsale/config"
	"flashsale/handler/auth"
)

// apiTimeout bounds one call of the command line to the API.
const apiTimeout = 15 * time.Second

// maxAnswer bounds the answer read from the API, in bytes.
const maxAnswer = 16 << 20

// remote is the API as the command line uses it.
type remote struct {
	server string
	token  string
	client http.Client
}

// call sends one request and decodes the answer into out. A refusal becomes an
// error with the problem's own words.
func (r *remote) call(ctx context.Context, method, path string, body, out any) error {
	_, err := r.send(ctx, method, path, nil, body, out)
	return err
}

// send is call with headers of its own; it returns those of the answer.
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
		return nil, fmt.Errorf("ask %s: %w", r.server, err)
	}
	defer func() { err = errors.Join(err, res.Body.Close()) }()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("read answer: %w", err)
	}
	if res.StatusCode >= 300 {
		var p struct{ Code, Detail string }
		if json.Unmarshal(text, &p) != nil || p.Code == "" {
			return nil, fmt.Errorf("%s answered %s", r.server, res.Status)
		}
		return nil, &refusal{status: res.StatusCode, code: p.Code, detail: p.Detail}
	}
	if err := json.Unmarshal(text, out); err != nil {
		return nil, fmt.Errorf("read answer: %w", err)
	}
	return res.Header, nil
}

// refusal is a problem that the API has answered with.
type refusal struct {
	status       int
	code, detail string
}

func (r *refusal) Error() string { return r.code + ": " + r.detail }

// itemView is an item as the API shows it.
type itemView struct {
	ID           string `json:"id"`
	Name         string `json:"name"`
	PriceMinor   int64  `json:"price_minor"`
	Currency     string `json:"currency"`
	StockTotal   int64  `json:"stock_total"`
	StockLeft    int64  `json:"stock_left"`
	PerUserLimit int64  `json:"per_user_limit"`
	State        string `json:"state"`
}

func newItem() *cobra.Command {
	var server, token string
	c := config.Group("item", "Manage the items on sale, through the API", newItemCreate(&server, &token), newItemList(&server, &token),
		newItemChange(&server, &token), newItemRestock(&server, &token),
		newItemControl(&server, &token, "pause", "Halt a sale until it is resumed"),
		newItemControl(&server, &token, "resume", "Go on with a paused sale"),
		newItemControl(&server, &token, "close", "End a sale for good; orders stay as they are"), newItemWarm(&server, &token))
	c.PersistentFlags().StringVar(&server, "server", "", "URL of the API (default http:// and --addr)")
	addWait(c.PersistentFlags())
	c.PersistentFlags().StringVar(&token, "token", "", "admin token (default: signed with the configured key, the admins' own if they have one)")
	return c
}

// dial prepares a call: the server and token given, or those of a service that
// runs with the same settings. It waits for the API as long as --wait says.
func dial(c *cobra.Command, server, token string, admin bool) (*remote, error) {
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
	if u, err := url.Parse(server); err != nil || u.Host == "" {
		return nil, config.Usage(fmt.Errorf("--server %q: write a URL such as http://127.0.0.1:8080", server))
	}
	var key []byte
	var terms auth.Terms
	if token == "" && admin {
		if key, terms, err = s.Signer(auth.RoleAdmin); err != nil {
			return nil, err
		}
	}
	r := &remote{server: server, token: token, client: http.Client{Timeout: apiTimeout}}
	if err := r.waitReady(c.Context(), wait); err != nil {
		return nil, err
	}
	// Only now, because the token is short-lived.
	if key != nil {
		r.token, err = s.Sign(key, terms, operator(), auth.RoleAdmin, time.Minute)
	}
	return r, err
}

// operator is who the audit names when a person at this machine changes something
// with the configured key: the name the system knows them by.
func operator() string {
	const nobody = "cli"
	u, err := user.Current()
	if err != nil {
		return nobody
	}
	name := nobody + ":" + strings.ReplaceAll(u.Username, `\`, "-") // a domain's name stands before that
	if !auth.ValidSubject(name) {
		return nobody
	}
	return name
}

func newItemCreate(server, token *string) *cobra.Command {
	var n struct {
		id, name, description, currency, opens, closes string
		price, stock, limit                            int64
		window                                         paymentWindow
	}
	c := &cobra.Command{
		Use: "create", Short: "Open a sale", Args: config.NoArgs,
		Example: "  flashsale item create --id drop-1 --name 'Drop 1' --price-minor 4900 --currency EUR --stock 500 --payment-window 15m",
		RunE: func(c *cobra.Command, _ []string) error {
			if !c.Flags().Changed("payment-window") {
				return config.Usage(errors.New("item create needs --payment-window: the time to pay, for example 15m, or none. " +
					"Without one an unpaid order holds its units until it is cancelled"))

			}
			r, err := dial(c, *server, *token, true)
			if err != nil {
				return err
			}
			body := map[string]any{
				"id": n.id, "name": n.name, "description": n.description, "price_minor": n.price, "currency": n.currency,
				"stock": n.stock, "per_user_limit": n.limit, "payment_window_seconds": n.window.seconds(),
			}
			for field, at := range map[string]string{"opens_at": n.opens, "closes_at": n.closes} {
				if at != "" {
					body[field] = at
				}
			}
			var item itemView
			if err := r.call(c.Context(), http.MethodPost, "/v1/admin/items", body, &item); err != nil {
				return err
			}
			return printItems(c.OutOrStdout(), []itemView{item})
		},
	}
	f := c.Flags()
	f.StringVar(&n.id, "id", "", "item id: a-z, 0-9 and -")
	f.StringVar(&n.name, "name", "", "what buyers read")
	f.StringVar(&n.description, "description", "", "what buyers read below it")
	f.Int64Var(&n.price, "price-minor", 0, "price in the currency's minor unit (cents)")
	f.StringVar(&n.currency, "currency", "EUR", "ISO 4217 code")
	f.Int64Var(&n.stock, "stock", 0, "units on sale")
	f.Int64Var(&n.limit, "limit", 1, "units per buyer")
	f.StringVar(&n.opens, "opens-at", "", "RFC 3339 time; default now")
	f.StringVar(&n.closes, "closes-at", "", "RFC 3339 time; default never")
	flagWindow(f, &n.window)
	return c
}

func newItemList(server, token *string) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the items", Args: config.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			r, err := dial(c, *server, *token, false)
			if err != nil {
				return err
			}
			items, err := r.items(c.Context())
			if err != nil {
				return err
			}
			return printItems(c.OutOrStdout(), items)
		},
	}
}

// itemsPage is the length of the pages in which items are read, the longest there is.
const itemsPage = 100

// items reads all items, page by page.
func (r *remote) items(ctx context.Context) ([]itemView, error) {
	var all []itemView
	query := url.Values{"limit": {strconv.Itoa(itemsPage)}}
	for {
		var page struct {
			Items []itemView `json:"items"`
			Next  string     `json:"next_cursor"`
		}
		if err := r.call(ctx, http.MethodGet, "/v1/items?"+query.Encode(), nil, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Items...)
		if page.Next == "" || len(page.Items) == 0 {
			return all, nil
		}
		query.Set("cursor", page.Next)
	}
}

func printItems(out io.Writer, items []itemView) error {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tSTATE\tLEFT\tTOTAL\tLIMIT\tPRICE\tNAME")
	for _, i := range items {
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%d %s\t%s\n", i.ID, i.State, i.StockLeft, i.StockTotal, i.PerUserLimit, i.PriceMinor, i.Currency, i.Name)
	}
	return w.Flush()
}
