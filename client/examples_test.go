//go:build unix

package client_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"flashsale/client"
	"flashsale/internal/testing/await"
	"flashsale/internal/testing/process"
)

func TestMain(m *testing.M) { process.Main(m) }

// TestExamples runs the examples one after the other against a service in development mode.
func TestExamples(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and starts the service")
	}
	t.Parallel()
	s := sale{process.Start(t, process.Spec{Args: []string{"--webhook-allow", "127.0.0.1"}}).URL()}
	t.Run("admin", s.testAdmin)
	t.Run("buyer", s.testBuyer)
	t.Run("shop", s.testShop)
	t.Run("lost answer", s.testLostAnswer)
}

// sale is a running service.
type sale struct{ url string }

// token gets a token from POST /dev/tokens.
func (s sale) token(t *testing.T, sub string, role client.Role) string {
	t.Helper()
	c, err := client.NewBearer(s.url, "")
	if err != nil {
		t.Fatal(err)
	}
	token, err := client.Decode[client.DevToken](c.CreateDevToken(t.Context(), client.DevTokenRequest{Sub: sub, Role: role}))
	if err != nil {
		t.Fatal(err)
	}
	return token.Token
}

func (s sale) client(t *testing.T, sub string, role client.Role) *client.Client {
	t.Helper()
	c, err := client.NewBearer(s.url, s.token(t, sub, role))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (s sale) testAdmin(t *testing.T) {
	const created = "drop-1 is open with 100 units\n"
	const rest = "closes after 24h0m0s\n100 + 50 = 150 left + 0 held + 0 sold: true\n"
	for _, want := range []string{created, "drop-1 is open with 150 units\n"} { // repeated, the example changes nothing
		var out strings.Builder
		if err := administer(await.Context(t), &out, s.url, s.token(t, "root", client.RoleAdmin)); err != nil {
			t.Fatal(err)
		}
		if out.String() != want+rest {
			t.Errorf("output:\n%s", out.String())
		}
	}
}

func (s sale) testBuyer(t *testing.T) {
	ctx := await.Context(t)
	for range 2 { // a repeat gets the same order
		var out strings.Builder
		if err := buy(ctx, &out, s.url, s.token(t, "alice", client.RoleBuyer)); err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(out.String(), "open\n1 of demo: confirmed\n") {
			t.Errorf("output:\n%s", out.String())
		}
	}
	page, err := client.Decode[client.OrderPage](s.client(t, "alice", client.RoleBuyer).ListOrders(ctx, nil))
	if err != nil || len(page.Orders) != 1 {
		t.Errorf("orders %+v, %v", page.Orders, err)
	}
}

func (s sale) testShop(t *testing.T) {
	ctx := await.Context(t)
	mux := http.NewServeMux()
	hooks := httptest.NewServer(mux)
	defer hooks.Close()
	hook, err := client.Decode[client.WebhookWithSecret](
		s.client(t, "root", client.RoleAdmin).CreateWebhook(ctx, client.NewWebhook{URL: hooks.URL + "/hooks"}))
	if err != nil {
		t.Fatal(err)
	}
	shop, err := newShopServer(s.url, s.token(t, "backend", client.RoleService), hook.Secret)
	if err != nil {
		t.Fatal(err)
	}
	mux.Handle("POST /hooks", shop)
	go shop.work(ctx)

	bob := s.client(t, "bob", client.RoleBuyer)
	order, replayed, err := client.Buy(ctx, bob, client.BuyParams{Item: "drop-1", Quantity: 2})
	if err != nil || replayed {
		t.Fatalf("%+v, %t, %v", order, replayed, err)
	}
	for _, want := range []string{"paid", "order.paid"} {
		if got := next(ctx, shop.done); got != want {
			t.Fatalf("the shop's server reports %q, want %q", got, want)
		}
	}
	paid, err := client.Decode[client.OrderDetail](bob.GetOrder(ctx, order.ID))
	if err != nil || paid.Status != client.OrderStatusPaid || paid.PaymentReference == nil || *paid.PaymentReference != "psp-"+order.ID {
		t.Errorf("%+v, %v", paid, err)
	}
	// Messages of others are refused.
	resp, err := http.Post(hooks.URL+"/hooks", "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil || resp.StatusCode != http.StatusBadRequest {
		t.Errorf("an unsigned message: %d, %v", resp.StatusCode, err)
	}
}

// testLostAnswer buys through a proxy that breaks the connection after the service has answered.
func (s sale) testLostAnswer(t *testing.T) {
	ctx := await.Context(t)
	target, err := url.Parse(s.url)
	if err != nil {
		t.Fatal(err)
	}
	forward := httputil.NewSingleHostReverseProxy(target)
	var purchases atomic.Int64
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if purchases.Add(1) > 1 {
			forward.ServeHTTP(w, r)
			return
		}
		forward.ServeHTTP(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler)
	}))
	defer proxy.Close()
	c, err := client.NewBearer(proxy.URL, s.token(t, "carol", client.RoleBuyer))
	if err != nil {
		t.Fatal(err)
	}
	order, replayed, err := client.Buy(ctx, c, client.BuyParams{Item: "drop-1"})
	if err != nil || !replayed {
		t.Fatalf("%+v, %t, %v", order, replayed, err)
	}
	page, err := client.Decode[client.OrderPage](c.ListOrders(ctx, nil))
	if err != nil || len(page.Orders) != 1 || page.Orders[0].ID != order.ID {
		t.Errorf("orders %+v, %v", page.Orders, err)
	}
}

// next returns the next value, or "" when ctx ends.
func next(ctx context.Context, values <-chan string) string {
	select {
	case value := <-values:
		return value
	case <-ctx.Done():
		return ""
	}
}
