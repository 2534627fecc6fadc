package mockpayments

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"flashsale/internal/testing/await"
	"flashsale/order"
)

// aSecret signs the webhooks of the tests.
var aSecret = "whsec_" + base64.StdEncoding.EncodeToString([]byte("a secret of the mock's tests"))

// orderID returns the id of the nth order.
func orderID(n int) string { return fmt.Sprintf("0197a0f2-3c4d-7abc-8def-%012d", n) }

// fakeService is the service's route for payments.
type fakeService struct {
	*httptest.Server
	answer func(n int, report map[string]any) (status int, code string) // n counts the requests

	mu      sync.Mutex
	reports []map[string]any
}

func newFakeService(t *testing.T, answer func(n int, report map[string]any) (int, string)) *fakeService {
	t.Helper()
	f := &fakeService{answer: answer}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var report map[string]any
		if err := json.NewDecoder(r.Body).Decode(&report); err != nil || r.Header.Get("Authorization") != "Bearer a-token" {
			t.Errorf("%s %s: body %v, error %v, headers %v", r.Method, r.URL.Path, report, err, r.Header)
		}
		report["path"] = r.URL.Path
		f.mu.Lock()
		f.reports = append(f.reports, report)
		n := len(f.reports)
		f.mu.Unlock()
		status, code := f.answer(n, report)
		w.Header().Set("Content-Type", "application/json")
		if status == 503 {
			w.Header().Set("Retry-After", "0")
		}
		w.WriteHeader(status)
		if code == "" {
			fmt.Fprint(w, `{"status":"paid"}`)
			return
		}
		fmt.Fprintf(w, `{"status":%d,"code":%q}`, status, code)
	}))
	t.Cleanup(f.Close)
	return f
}

// seen returns the reports so far.
func (f *fakeService) seen() []map[string]any {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]map[string]any(nil), f.reports...)
}

// mock is a running Provider.
type mock struct {
	t *testing.T
	*Provider
	srv    *httptest.Server
	cancel context.CancelFunc // ends Run
	ended  chan error
	errors chan error // those of OnError
}

func newMock(t *testing.T, service string) *mock {
	t.Helper()
	m := &mock{t: t, ended: make(chan error, 1), errors: make(chan error, 100)}
	m.srv = httptest.NewUnstartedServer(nil)
	var err error
	m.Provider, err = New(Config{
		Addr: m.srv.Listener.Addr().String(), Secret: aSecret,
		Token:   func(context.Context) (string, error) { return "a-token", nil },
		OnError: func(err error) { m.errors <- err },
	})
	if err != nil {
		t.Fatal(err)
	}
	m.srv.Config.Handler = m.Handler()
	m.srv.Start()
	ctx, cancel := context.WithCancel(t.Context())
	m.cancel = cancel
	go func() { m.ended <- m.Run(ctx, service) }()
	t.Cleanup(func() {
		cancel()
		if err := <-m.ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		m.srv.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	return m
}

// send sends a request and returns the status and the body of its answer.
func (m *mock) send(method, path, body string, headers ...string) (int, string) {
	m.t.Helper()
	r, err := http.NewRequestWithContext(m.t.Context(), method, m.srv.URL+path, strings.NewReader(body))
	if err != nil {
		m.t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	if r.Header.Get("Host") != "" {
		r.Host = r.Header.Get("Host")
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		m.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		m.t.Fatal(err)
	}
	if method == http.MethodGet && resp.Header.Get("Content-Security-Policy") != policy {
		m.t.Errorf("%s has the policy %q", path, resp.Header.Get("Content-Security-Policy"))
	}
	return resp.StatusCode, string(text)
}

// charge posts a charge and returns its id.
func (m *mock) charge(orderID string, amount int) string {
	m.t.Helper()
	status, body := m.send("POST", "/charges", fmt.Sprintf(`{"order_id":%q,"amount_minor":%d,"currency":"EUR"}`, orderID, amount),
		"Content-Type", "application/json")
	var answer struct{ Charge string }
	if err := json.Unmarshal([]byte(body), &answer); err != nil || status != 202 || !strings.HasPrefix(answer.Charge, "ch_") {
		m.t.Fatalf("charge: %d %s", status, body)
	}
	return answer.Charge
}

// awaitState waits for the state of the newest charge.
func (m *mock) awaitState(want state) charge {
	m.t.Helper()
	var c charge
	await.True(m.t, "the charge is "+string(want), func() bool {
		c = m.charges.latest(1)[0]
		return c.State == want
	})
	return c
}

// A charge is paid once, with a reference of its own, also when the service is unavailable for
// a while. A repeat is the same charge.
func TestProvider_ReportsAChargeUntilItIsAnswered(t *testing.T) {
	t.Parallel()
	f := newFakeService(t, func(n int, _ map[string]any) (int, string) {
		if n < 3 {
			return 503, "unavailable"
		}
		return 200, ""
	})
	m := newMock(t, f.URL)
	id := m.charge(orderID(1), 990)
	if again := m.charge(orderID(1), 990); again != id {
		t.Errorf("the second charge is %s, the first %s", again, id)
	}
	m.awaitState(statePaid)
	if again := m.charge(orderID(1), 5); again != id {
		t.Errorf("a charge of a paid order is %s, the first was %s", again, id)
	}
	if other := m.charge(orderID(2), 990); other == id {
		t.Error("two orders have the same charge")
	}
	reports := f.seen()
	for _, r := range reports[:3] {
		if r["reference"] != id || r["amount_minor"] != 990.0 || r["currency"] != "EUR" || r["path"] != "/v1/orders/"+orderID(1)+"/payment" {
			t.Errorf("reported %v", r)
		}
	}
}

// A refusal is shown with its code. A later charge of the order is reported again.
func TestProvider_ShowsRefusals(t *testing.T) {
	t.Parallel()
	f := newFakeService(t, func(_ int, report map[string]any) (int, string) {
		if report["amount_minor"] != 990.0 {
			return 409, "amount_mismatch"
		}
		return 200, ""
	})
	m := newMock(t, f.URL)
	wrong := m.charge(orderID(1), 1)
	if c := m.awaitState(stateRefused); c.Problem != "amount_mismatch" {
		t.Errorf("refused because of %q", c.Problem)
	}
	if _, text := m.send("GET", "/", ""); !strings.Contains(text, "amount_mismatch") || !strings.Contains(text, `class="refused"`) || !strings.Contains(text, wrong) {
		t.Errorf("the page lacks the refusal:\n%s", text)
	}
	if again := m.charge(orderID(1), 1); again != wrong {
		t.Errorf("the same amount has the charges %s and %s", wrong, again)
	}
	m.awaitState(stateRefused)
	if right := m.charge(orderID(1), 990); right == wrong {
		t.Error("two amounts have the same charge")
	}
	m.awaitState(statePaid)
	if list := m.charges.latest(10); len(list) != 2 || len(f.seen()) != 3 {
		t.Errorf("charges %+v, reports %v", list, f.seen())
	}
}

func TestProvider_ShowsThatTheServiceDidNotAnswer(t *testing.T) {
	t.Parallel()
	f := newFakeService(t, func(int, map[string]any) (int, string) { return 500, "internal" })
	m := newMock(t, f.URL)
	m.charge(orderID(1), 1)
	if c := m.awaitState(stateFailed); c.Problem != "internal" {
		t.Errorf("charge %+v", c)
	}
	if err := <-m.errors; err == nil {
		t.Error("no error was reported")
	}
	f.Close()
	m.charge(orderID(1), 1)
	if c := m.awaitState(statePending); c.Problem != "" {
		t.Errorf("repeated charge %+v", c)
	}
}

func TestProvider_RefusesMalformedCharges(t *testing.T) {
	t.Parallel()
	m := newMock(t, newFakeService(t, func(int, map[string]any) (int, string) { return 200, "" }).URL)
	good := fmt.Sprintf(`{"order_id":%q,"amount_minor":990,"currency":"EUR"}`, orderID(1))
	json := []string{"Content-Type", "application/json"}
	for _, q := range []struct {
		name, body string
		headers    []string
		want       int
	}{
		{"form", good, []string{"Content-Type", "text/plain"}, 415},
		{"other site", good, append(json, "Origin", "https://attacker.example"), 403},
		{"other host", good, append(json, "Host", "attacker.example"), 421},
		{"empty", "", json, 400},
		{"unknown member", strings.Replace(good, "}", `,"x":1}`, 1), json, 400},
		{"two bodies", good + good, json, 400},
		{"too large", good + strings.Repeat(" ", maxChargeBody), json, 400},
		{"path as id", strings.Replace(good, orderID(1), "../../admin", 1), json, 422},
		{"negative", strings.Replace(good, "990", "-1", 1), json, 422},
		{"currency", strings.Replace(good, "EUR", "euro", 1), json, 422},
	} {
		if status, body := m.send("POST", "/charges", q.body, q.headers...); status != q.want {
			t.Errorf("%s: %d %s, want %d", q.name, status, body, q.want)
		}
	}
	if list := m.charges.latest(1); len(list) != 0 {
		t.Errorf("charged %+v", list)
	}
}

// A stop waits for the charges in progress, and refuses others.
func TestProvider_DrainFinishesCharges(t *testing.T) {
	t.Parallel()
	arrived, release := make(chan struct{}, 1), make(chan struct{})
	f := newFakeService(t, func(int, map[string]any) (int, string) {
		arrived <- struct{}{}
		<-release
		return 200, ""
	})
	m := newMock(t, f.URL)
	m.charge(orderID(1), 990)
	<-arrived
	drained := make(chan error, 1)
	go func() { drained <- m.Drain(t.Context()) }()
	await.True(t, "further charges are refused", func() bool {
		_, err := m.charges.add(orderID(2), 1, "EUR")
		return errors.Is(err, errBusy)
	})
	close(release)
	if err := <-drained; err != nil {
		t.Error(err)
	}
	if c := m.charges.latest(1)[0]; c.State != statePaid {
		t.Errorf("after the drain the charge is %s", c.State)
	}
	if err := m.Drain(t.Context()); err != nil {
		t.Errorf("second drain: %v", err)
	}
	if err := NewCharger(m.srv.URL).Charge(t.Context(), order.Order{ID: orderID(3), Quantity: 1, Currency: "EUR"}); err == nil {
		t.Error("a stopping mock accepted a charge")
	}
}

// The end of Run cancels reports that a drain did not wait for. Their charges stay pending.
func TestProvider_RunCancelsReports(t *testing.T) {
	t.Parallel()
	arrived, release := make(chan struct{}, 1), make(chan struct{})
	f := newFakeService(t, func(int, map[string]any) (int, string) {
		arrived <- struct{}{}
		<-release
		return 200, ""
	})
	t.Cleanup(func() { close(release) })
	m := newMock(t, f.URL)
	m.charge(orderID(1), 990)
	<-arrived
	m.cancel()
	err := <-m.ended
	m.ended <- err // for the clean-up
	if c := m.charges.latest(1)[0]; err != nil || c.State != statePending {
		t.Errorf("error %v, charge %+v", err, c)
	}
}

// The shop's side charges an order's whole price.
func TestCharger_Charge(t *testing.T) {
	t.Parallel()
	m := newMock(t, newFakeService(t, func(int, map[string]any) (int, string) { return 200, "" }).URL)
	charger := NewCharger(m.srv.URL)
	for range 2 {
		if err := charger.Charge(t.Context(), order.Order{ID: orderID(1), Quantity: 3, UnitPriceMinor: 330, Currency: "EUR"}); err != nil {
			t.Fatal(err)
		}
	}
	c := m.awaitState(statePaid)
	if c.OrderID != orderID(1) || c.AmountMinor != 990 || c.Currency != "EUR" || len(m.charges.latest(2)) != 1 {
		t.Errorf("charged %+v", m.charges.latest(2))
	}
	if err := charger.Charge(t.Context(), order.Order{ID: "x", Currency: "EUR"}); err == nil || !strings.Contains(err.Error(), "422") {
		t.Errorf("error %v, want the status of the refusal", err)
	}
	m.srv.Close()
	if err := charger.Charge(t.Context(), order.Order{ID: orderID(2), Currency: "EUR"}); err == nil {
		t.Error("charged without an answer")
	}
}

// A full list forgets the oldest charge that is not pending. It refuses another charge when all
// are pending.
func TestCharges_AreBounded(t *testing.T) {
	t.Parallel()
	cs := newCharges(time.Now)
	var ids []string
	for n := range maxCharges {
		id, err := cs.add(orderID(n), 1, "EUR")
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	if _, err := cs.add(orderID(maxCharges), 1, "EUR"); !errors.Is(err, errBusy) {
		t.Errorf("error %v, want errBusy", err)
	}
	<-cs.queue
	cs.settle(ids[1], statePaid, "")
	if _, err := cs.add(orderID(maxCharges), 1, "EUR"); err != nil {
		t.Error(err)
	}
	list := cs.latest(2 * maxCharges)
	if len(list) != maxCharges || list[maxCharges-1].ID != ids[0] || list[maxCharges-2].ID != ids[2] {
		t.Errorf("%d charges, the oldest are %+v", len(list), list[len(list)-2:])
	}
}
