package service

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"time"

	"github.com/rs/zerolog"

	"flashsale/cmd/flashsale/config"
	"flashsale/cmd/flashsale/mockpayments"
	"flashsale/handler/auth"
	"flashsale/order"
	"flashsale/order/store"
	"flashsale/order/webhooks"
	"flashsale/webhook"
)

const (
	// mockEndpoint is the description by which the mock's webhook endpoint is found again.
	mockEndpoint = "Mock payment service of development mode"
	// mockTokenLife is the lifetime of a token of the mock. Each request has its own.
	mockTokenLife = time.Minute
	// mockStop bounds how long the mock's server waits for requests in progress.
	mockStop = time.Second
)

// mockPayments is the mock payment service of development mode. A nil *mockPayments is valid and
// means that there is none. Its failures are logged and never stop the process.
type mockPayments struct {
	log      zerolog.Logger
	url      string // of its server
	hook     string // the URL of its webhook endpoint
	provider *mockpayments.Provider
	client   *webhook.Client // sends webhooks to the mock only
}

// newMockPayments adds the mock's server, which listens already, and registers its webhook
// endpoint. It returns nil if the process has no mock. The server stops after the parts that are
// added later, so that it still receives the webhooks of their last orders.
func newMockPayments(ctx context.Context, e *env, eng *engine, dev *development, ps *parts) (*mockPayments, error) {
	addr, err := e.settings.MockPayments(dev != nil)
	if err != nil {
		return nil, err
	}
	log := e.log.With().Str("component", "mock payments").Logger()
	if addr == "" {
		if e.role.command == "serve" {
			dropMockEndpoints(ctx, log, eng.store)
		}
		return nil, nil
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, config.FailedSetting("mock-payments-addr", addr, err.Error(), "choose a free address, or off")
	}
	at, err := netip.ParseAddrPort(l.Addr().String())
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	m := &mockPayments{log: log, url: "http://" + at.String(), hook: "http://" + at.String() + "/webhooks"}
	m.client = webhook.NewClient(webhook.Config{Policy: webhook.Policy{Allow: []netip.Prefix{netip.PrefixFrom(at.Addr(), at.Addr().BitLen())}}})
	secret, err := m.register(ctx, eng.store)
	if err != nil {
		log.Warn().Err(err).Msg("register webhook endpoint failed; the mock payment service receives no webhooks")
	}
	m.provider, err = mockpayments.New(mockpayments.Config{
		Addr: at.String(), Secret: secret, Now: e.now,
		Token: func(context.Context) (string, error) {
			return dev.sign("mock-payments", auth.RoleService, mockTokenLife)
		},
		OnError: func(err error) { log.Warn().Err(err).Msg("report charge failed") },
	})
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	ps.add(m.server(e.server(m.provider.Handler()), l))
	return m, nil
}

// server returns the part that serves the mock's routes.
func (m *mockPayments) server(srv *http.Server, l net.Listener) part {
	serve := serving(srv, l, func() {})
	return part{
		name: "mock payments server",
		run: func(ctx context.Context) error {
			m.failed(ctx, serve(ctx))
			return nil
		},
		stop: func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, mockStop)
			defer cancel()
			// A client that keeps its connection open loses nothing that matters.
			if srv.Shutdown(ctx) != nil {
				m.warn(ignoreClosed(srv.Close()))
			}
			m.client.Close()
			return nil
		},
	}
}

// addTo adds the part that reports charges to the API, and returns the URL of the mock for the
// banner. The part stops before the API.
func (m *mockPayments) addTo(ps *parts, api net.Addr) string {
	if m == nil {
		return ""
	}
	ps.add(part{
		name: "mock payments",
		run: func(ctx context.Context) error {
			m.failed(ctx, m.provider.Run(ctx, "http://"+api.String()))
			return nil
		},
		stop: m.provider.Drain,
	})
	return m.url
}

// failed logs the failure of a part, and waits for the end of the process.
func (m *mockPayments) failed(ctx context.Context, err error) {
	m.warn(err)
	<-ctx.Done()
}

func (m *mockPayments) warn(err error) {
	if err != nil {
		m.log.Warn().Err(err).Msg("mock payment service failed")
	}
}

// charge returns handler.Config.Charge.
func (m *mockPayments) charge() func(context.Context, order.Order) error {
	if m == nil {
		return nil
	}
	return mockpayments.NewCharger(m.url).Charge
}

// checkURL returns a check that also allows the mock's own URL.
func (m *mockPayments) checkURL(next func(string) error) func(string) error {
	if m == nil {
		return next
	}
	return func(text string) error {
		if text == m.hook {
			return nil
		}
		return next(text)
	}
}

// sender returns a sender that also sends to the mock's own URL. All other webhooks, also those
// to other ports of this machine, go through next and its policy.
func (m *mockPayments) sender(next webhooks.Sender) webhooks.Sender {
	if m == nil {
		return next
	}
	return &mockSender{m, next}
}

// mockSender is the result of sender.
type mockSender struct {
	mock *mockPayments
	next webhooks.Sender
}

// Send sends a message once.
func (s *mockSender) Send(ctx context.Context, m *webhook.Message) webhook.Result {
	if m.URL == s.mock.hook {
		return s.mock.client.Send(ctx, m)
	}
	return s.next.Send(ctx, m)
}

// mockActor is the author of the mock's changes in the audit log.
var mockActor = order.By{Actor: "flashsale serve"}

// register registers the mock's webhook endpoint, and returns its secret. The endpoint of an
// earlier run is changed to the new URL, with its pending deliveries.
func (m *mockPayments) register(ctx context.Context, s *store.Store) (secret string, err error) {
	admin := &webhooks.Admin{Store: s, CheckURL: m.checkURL(func(string) error { return webhook.ErrAddress })}
	old, err := mockEndpoints(ctx, admin)
	if err != nil {
		return "", err
	}
	if len(old) == 0 {
		_, secret, err = admin.CreateEndpoint(ctx, webhooks.NewEndpoint{URL: m.hook, Description: mockEndpoint, Events: order.EventTypes}, mockActor)
		return secret, err
	}
	for _, e := range old[1:] {
		if err := admin.DeleteEndpoint(ctx, e.ID, mockActor); err != nil {
			return "", err
		}
	}
	// A secret cannot be read again. The previous one signs as well for a day.
	if _, secret, err = admin.RotateSecret(ctx, old[0].ID, mockActor); err != nil {
		return "", err
	}
	enabled := true
	if _, err := admin.ChangeEndpoint(ctx, old[0].ID, webhooks.EndpointChange{URL: &m.hook, Events: order.EventTypes, Enabled: &enabled}, mockActor); err != nil {
		return "", err
	}
	return secret, nil
}

// mockEndpoints returns the endpoints that a mock has registered: at most one, unless an admin
// has created others.
func mockEndpoints(ctx context.Context, admin *webhooks.Admin) ([]webhooks.Endpoint, error) {
	all, err := admin.Endpoints(ctx)
	if err != nil {
		return nil, err
	}
	var mocks []webhooks.Endpoint
	for i := range all {
		u, err := url.Parse(all[i].URL)
		if err != nil || all[i].Description != mockEndpoint {
			continue
		}
		if a, err := netip.ParseAddr(u.Hostname()); err == nil && a.IsLoopback() {
			mocks = append(mocks, all[i])
		}
	}
	return mocks, nil
}

// dropMockEndpoints deletes the endpoint of an earlier run with a mock, to which nothing could
// be delivered.
func dropMockEndpoints(ctx context.Context, log zerolog.Logger, s *store.Store) {
	admin := &webhooks.Admin{Store: s}
	old, err := mockEndpoints(ctx, admin)
	for _, e := range old {
		err = errors.Join(err, admin.DeleteEndpoint(ctx, e.ID, mockActor))
	}
	if err != nil {
		log.Warn().Err(err).Msg("delete the mock payment service's webhook endpoint failed")
	}
}
