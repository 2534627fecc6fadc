// Package mockpayments is a mock of a shop's payment provider and backend, for development. It
// knows the service only by its API and its webhooks, as real ones would:
//
//   - POST /charges accepts a charge, and reports it in the background to POST
//     /v1/orders/{order}/payment, with retries (charges.go).
//   - POST /webhooks receives the service's webhooks and verifies their signatures (inbox.go).
//   - GET / is a page with the latest charges and webhooks (page.go).
//
// Charger is the other side: it sends charges to such a server. No money moves, and nothing is
// stored: a restart forgets all charges and webhooks.
package mockpayments

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"flashsale/client"
)

const (
	// workers is the number of charges that are reported concurrently.
	workers = 8
	// reportTimeout bounds the report of one charge, with all its attempts.
	reportTimeout = time.Minute
	// drainTimeout bounds how long a stop waits for charges that are being reported.
	drainTimeout = 2 * time.Second
)

// Config configures a Provider.
type Config struct {
	// Addr is the address of the server, host:port. Requests for other hosts are refused,
	// so that a page of another site cannot reach it through a name that resolves to it.
	Addr string
	// Token returns a token of the role service. It is called before each request.
	Token func(context.Context) (string, error)
	// Secret is the secret of the webhooks. Empty: webhooks get 503.
	Secret string
	// OnError receives the errors of charges that could not be reported. Default: they are
	// only shown on the page.
	OnError func(error)
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

// Provider is the mock. It is safe for concurrent use.
type Provider struct {
	cfg     Config
	charges *charges
	inbox   *inbox
	drained chan struct{} // closed when no charge will be reported any more
}

// New returns a Provider. Serve its Handler and run Run.
func New(c Config) (*Provider, error) {
	if _, _, err := net.SplitHostPort(c.Addr); err != nil {
		return nil, errors.New("mockpayments: Config.Addr is not host:port")
	}
	if c.Token == nil {
		return nil, errors.New("mockpayments: Config.Token is missing")
	}
	if c.OnError == nil {
		c.OnError = func(error) {}
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	in := &inbox{}
	if c.Secret != "" {
		verifier, err := client.NewWebhookVerifier(c.Secret)
		if err != nil {
			return nil, err
		}
		verifier.Now, in.verifier = c.Now, verifier
	}
	return &Provider{cfg: c, charges: newCharges(c.Now), inbox: in, drained: make(chan struct{})}, nil
}

// Handler returns the routes.
func (p *Provider) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /charges", p.serveCharge)
	mux.Handle("POST /webhooks", p.inbox)
	mux.HandleFunc("GET /{$}", p.servePage)
	mux.HandleFunc("GET /style.css", serveStyle)
	// Browsers send requests from pages of other sites, too.
	guarded := http.NewCrossOriginProtection().Handler(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Host != p.cfg.Addr && !localName(r.Host, p.cfg.Addr) {
			http.Error(w, "unknown host", http.StatusMisdirectedRequest)
			return
		}
		guarded.ServeHTTP(w, r)
	})
}

// localName reports whether host is localhost with the port of addr.
func localName(host, addr string) bool {
	_, port, err := net.SplitHostPort(addr)
	return err == nil && host == net.JoinHostPort("localhost", port)
}

// Run reports charges to the service at a URL such as "http://127.0.0.1:8080" until ctx ends.
// Call it once.
func (p *Provider) Run(ctx context.Context, service string) error {
	transport := &http.Transport{MaxIdleConnsPerHost: workers} // without a proxy
	defer transport.CloseIdleConnections()
	api, err := client.NewBearerFunc(service, p.cfg.Token,
		client.WithHTTPClient(&client.Retry{Client: &http.Client{Transport: transport}}))
	if err != nil {
		return err
	}
	var running sync.WaitGroup
	for range workers {
		running.Go(func() { p.work(ctx, api) })
	}
	running.Wait()
	close(p.drained)
	<-ctx.Done()
	return nil
}

// work reports queued charges until the queue is closed or ctx ends.
func (p *Provider) work(ctx context.Context, api *client.Client) {
	for {
		select {
		case <-ctx.Done():
			return
		case c, open := <-p.charges.queue:
			if !open {
				return
			}
			p.report(ctx, api, c)
		}
	}
}

// Drain refuses further charges, and waits up to 2 s until the accepted ones have been reported.
// The end of Run's context cancels the rest. Call it while Run works. A repeat returns at once.
func (p *Provider) Drain(ctx context.Context) error {
	if !p.charges.close() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	select {
	case <-p.drained:
	case <-ctx.Done():
	}
	return nil
}
