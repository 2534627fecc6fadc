package handler

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"flashsale/handler/auth"
	"flashsale/internal/testing/contract"
	"flashsale/order"
	"flashsale/order/feed"
)

// fakeFeed passes the test's changes to every stream, starting with the first change.
type fakeFeed struct {
	err  error // of Follow
	open atomic.Int64

	mu      sync.Mutex
	buyers  []string
	changes []order.Order
	closed  bool
	broken  bool // look panics
	wakes   map[int]func()
	nextID  int
}

func newFakeFeed() *fakeFeed { return &fakeFeed{wakes: make(map[int]func())} }

func (f *fakeFeed) Follow(_, buyer string, wake func()) (func() (*order.Order, error), func(), error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.buyers = append(f.buyers, buyer)
	if f.err != nil {
		return nil, nil, f.err
	}
	f.open.Add(1)
	id, at := f.nextID, 0
	f.nextID++
	f.wakes[id] = wake
	wake()
	look := func() (*order.Order, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.broken {
			panic("broken")
		}
		if at < len(f.changes) {
			o := f.changes[at]
			at++
			return &o, nil
		}
		if f.closed {
			return nil, feed.ErrClosed
		}
		return nil, nil
	}
	stop := func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.wakes, id)
		f.open.Add(-1)
	}
	return look, stop, nil
}

// send notifies all streams of a change.
func (f *fakeFeed) send(o order.Order) {
	f.set(func() { f.changes = append(f.changes, o) })
}

func (f *fakeFeed) close() { f.set(func() { f.closed = true }) }

func (f *fakeFeed) set(fn func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fn()
	for _, wake := range f.wakes {
		wake()
	}
}

// The states of an order that requires payment.
func orderIn(status order.Status) order.Order {
	o := order.Order{
		ID: someOrderID, ItemID: "thing", UserID: "alice", Quantity: 1, UnitPriceMinor: 990, Currency: "EUR",
		Status: status, CreatedAt: someTime,
	}
	if status == order.StatusQueued {
		return o
	}
	o.ConfirmedAt, o.ExpiresAt = someTime.Add(time.Second), someTime.Add(time.Minute)
	switch status {
	case order.StatusPaid:
		o.PaidAt, o.PaymentReference = someTime.Add(2*time.Second), "psp-1"
	case order.StatusCancelled:
		o.ClosedAt, o.Reason = someTime.Add(2*time.Second), "buyer"
	default:
	}
	return o
}

// eventText is an event in the stream's format.
func eventText(number, status string, o order.Order) string {
	return "id: " + number + "\nevent: order\ndata: " + string(appendOrder(nil, &o)) + "\n\n"
}

// streaming makes a shop that streams the given order.
func streaming(tb testing.TB, o order.Order, change ...func(*Config)) (*shop, *fakeFeed) {
	tb.Helper()
	feed := newFakeFeed()
	s := open(tb, append([]func(*Config){func(c *Config) { c.Streams.Feed = feed }}, change...)...)
	s.orders.get = func(string) (order.Order, error) { return o, nil }
	return s, feed
}

// recorder records an answer, and the data written to its connection after the takeover.
type recorder struct {
	*httptest.ResponseRecorder
	client net.Conn // nil: it was not taken over
}

func (r *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	server, client := net.Pipe()
	r.client = client
	return server, bufio.NewReadWriter(bufio.NewReader(server), bufio.NewWriter(server)), nil
}

// events requests the stream as alice, and reads it to its end.
func (s *shop) events(tb testing.TB, headers ...string) *httptest.ResponseRecorder {
	tb.Helper()
	r := httptest.NewRequest(http.MethodGet, eventsPath, http.NoBody)
	r.Header.Set("Authorization", bearer(tb, "alice", auth.RoleBuyer))
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	return s.stream(tb, r)
}

// stream sends a request and reads its answer to the end.
func (s *shop) stream(tb testing.TB, r *http.Request) *httptest.ResponseRecorder {
	tb.Helper()
	w := &recorder{ResponseRecorder: httptest.NewRecorder()}
	s.ServeHTTP(w, r)
	if w.client != nil {
		defer w.client.Close()
		if err := w.client.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
			tb.Fatal(err)
		}
		if _, err := io.Copy(w.Body, httputil.NewChunkedReader(w.client)); err != nil {
			tb.Fatalf("read the stream after %q: %v", w.Body, err)
		}
	}
	err := apiContract(tb).Check(&contract.Exchange{
		Method: r.Method, URL: r.URL, Request: r.Header, Status: w.Code, Header: w.Header(), Body: w.Body.Bytes(),
	})
	if err != nil && !errors.Is(err, contract.ErrNoRoute) {
		tb.Errorf("contract: %v", err)
	}
	return w.ResponseRecorder
}

var retryLine = regexp.MustCompile(`\Aretry: (\d+)\n\n`)

// wantStream checks an answer that is a stream, and returns it without its first line.
func wantStream(tb testing.TB, w *httptest.ResponseRecorder) string {
	tb.Helper()
	for name, want := range map[string]string{
		"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no",
	} {
		if got := w.Header().Get(name); got != want {
			tb.Errorf("%s = %q, want %q", name, got, want)
		}
	}
	body := w.Body.String()
	first := retryLine.FindStringSubmatch(body)
	if w.Code != 200 || first == nil || len(first[1]) != 4 || first[1] < "1000" || first[1] >= "3000" {
		tb.Fatalf("%d %q, want a stream that begins with retry: 1000 to 2999", w.Code, body)
	}
	return body[len(first[0]):]
}
