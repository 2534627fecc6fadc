package handler

import (
	"net/http"
	"net/http/httptest"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"flashsale/handler/auth"
	"flashsale/handler/handlertest"
	"flashsale/handler/openapi"
	"flashsale/internal/testing/await"
	"flashsale/order/figures"
)

const figuresPath = "/v1/admin/events"

// figuresEvent is an event as in the document, with a number in it.
func figuresEvent(t *testing.T, n int) string {
	t.Helper()
	_, event, ok := strings.Cut(openapi.Document, "            event: figures\n            data: ")
	event, _, _ = strings.Cut(event, "\n")
	if !ok || !strings.Contains(event, `"accepted":6834`) {
		t.Fatalf("no example in the document: %s", event)
	}
	return "event: figures\ndata: " + strings.Replace(event, `"accepted":6834`, `"accepted":`+strconv.Itoa(n), 1) + "\n\n"
}

// numbered begins the line of figuresEvent's event, up to its number.
var numbered = regexp.MustCompile(`"totals":\{"accepted":(\d+)`)

// untilEvent reads the lines of a stream until an event with that number.
func untilEvent(t *testing.T, w *handlertest.Conn, n int) {
	t.Helper()
	for {
		line, err := w.In.ReadString('\n')
		if err != nil {
			t.Fatalf("waiting for the event %d: %v", n, err)
		}
		if found := numbered.FindStringSubmatch(line); found != nil && found[1] == strconv.Itoa(n) {
			return
		}
	}
}

// showing makes a shop that shows figures.
func showing(tb testing.TB, change ...func(*Config)) (*shop, *fakeFigures) {
	tb.Helper()
	f := newFakeFigures()
	return open(tb, append([]func(*Config){func(c *Config) { c.Streams.Figures = f }}, change...)...), f
}

func askFigures(t *testing.T, w *handlertest.Conn) {
	t.Helper()
	w.Send(t, "GET "+figuresPath+" HTTP/1.1\r\nHost: x\r\nAuthorization: "+bearer(t, "root", auth.RoleAdmin)+"\r\n\r\n")
}

// Each event is sent as it is; the stream ends when the process drains.
func TestFigures_EventsUntilTheDrain(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	s, f := showing(t, func(c *Config) { c.Registerer = registry })
	w := handlertest.Dial(t, serve(t, s))
	askFigures(t, w)
	until(t, w, "retry: ")
	await.True(t, "the stream to be counted", func() bool { return sum(t, registry, "flashsale_figures_streams") == 1 })
	f.send(figuresEvent(t, 1))
	until(t, w, "event: figures")
	untilEvent(t, w, 1)
	f.send(figuresEvent(t, 2))
	untilEvent(t, w, 2)
	f.close()
	until(t, w, "0\r\n") // the last chunk
	await.True(t, "the stream to leave", func() bool { return f.open() == 0 && sum(t, registry, "flashsale_figures_streams") == 0 })
	if n := sum(t, registry, "flashsale_event_streams"); n != 0 {
		t.Errorf("%v streams of orders counted", n)
	}
}

// An event that a client has not read is replaced by the next one, so nothing is queued for it.
// A client that reads nothing for long is disconnected.
func TestFigures_SlowClientMissesEvents(t *testing.T) {
	t.Parallel()
	s, f := showing(t, func(c *Config) { c.Streams.Stall = 5 * time.Second }) // enough for the quick client on a busy machine
	slow, quick := handlertest.Dial(t, serve(t, s)), handlertest.Dial(t, serve(t, s))
	askFigures(t, slow)
	askFigures(t, quick)
	until(t, slow, "retry: ")
	until(t, quick, "retry: ")
	await.True(t, "two watchers", func() bool { return f.open() == 2 })
	var reading sync.WaitGroup
	reading.Go(func() { until(t, quick, "data: last") })
	f.send("data: " + strings.Repeat("x", 16<<20) + "\n\n") // more than the kernel buffers
	await.True(t, "both streams to write", f.taken)
	for range 100 {
		f.send("data: lost\n\n")
	}
	f.send("data: last\n\n")
	reading.Wait()
	await.True(t, "the slow client to be disconnected", func() bool { return f.open() == 1 })
}

// A stream ends when its token expires.
func TestFigures_EndsWithItsToken(t *testing.T) {
	t.Parallel()
	s, f := showing(t)
	token, err := auth.SignToken(testSecret, "root", auth.RoleAdmin, time.Second, someTime)
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodGet, figuresPath, http.NoBody)
	r.Header.Set("Authorization", "Bearer "+token)
	if got := wantStream(t, s.stream(t, r)); got != "" {
		t.Errorf("got\n%s", got)
	}
	await.True(t, "the stream to leave", func() bool { return f.open() == 0 })
}

func TestFigures_Heartbeats(t *testing.T) {
	t.Parallel()
	s, _ := showing(t, func(c *Config) { c.Streams.Heartbeat = 5 * time.Millisecond })
	w := handlertest.Dial(t, serve(t, s))
	askFigures(t, w)
	until(t, w, "retry: ")
	until(t, w, ": ")
	until(t, w, ": ")
}

func TestFigures_Selection(t *testing.T) {
	t.Parallel()
	s, f := showing(t)
	many := strings.Repeat("thing,", figures.MaxItems) + "thing" // repetitions do not count
	for query, want := range map[string][]string{"": nil, "?item=thing": {"thing"}, "?item=thing,thing": {"thing"}, "?item=" + many: {"thing"}} {
		r := httptest.NewRequest(http.MethodHead, figuresPath+query, http.NoBody)
		r.Header.Set("Authorization", bearer(t, "root", auth.RoleAdmin))
		w := s.do(r)
		if got := f.selected[len(f.selected)-1]; w.Code != 200 || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %d, watches %v, want %v", query, w.Code, got, want)
		}
	}
	var distinct []string
	for i := range figures.MaxItems + 1 {
		distinct = append(distinct, "i"+strings.Repeat("x", i))
	}
	full, _ := showing(t, func(c *Config) {
		items := fakeItems{}
		for _, id := range distinct {
			items[id] = someItem()
		}
		c.Items = items
	})
	for _, tt := range []struct {
		s      *shop
		query  string
		status int
		code   string
	}{
		{s, "?item=", 400, "parameter_invalid"}, {s, "?item=Thing", 400, "id_invalid"}, {s, "?item=thing,", 400, "id_invalid"},
		{s, "?item=other", 404, "item_not_found"}, {s, "?item=thing&item=thing", 400, "parameter_invalid"}, {s, "?items=thing", 400, "unknown_parameter"},
		{full, "?item=" + strings.Join(distinct, ","), 400, "parameter_invalid"},
	} {
		wantProblem(t, tt.s.get(t, figuresPath+tt.query, "root", auth.RoleAdmin).Result(), tt.status, tt.code)
	}
}

func TestFigures_Refusals(t *testing.T) {
	t.Parallel()
	s, f := showing(t)
	wantProblem(t, s.get(t, figuresPath, "", "").Result(), 401, "auth_missing")
	wantProblem(t, s.get(t, figuresPath, "alice", auth.RoleBuyer).Result(), 403, "forbidden")
	wantProblem(t, s.get(t, figuresPath, "shop", auth.RoleService).Result(), 403, "forbidden")
	for err, code := range map[error]string{figures.ErrTooManyWatchers: "overloaded", figures.ErrTooManyItems: "overloaded", figures.ErrClosed: "unavailable"} {
		f.err = err
		w := s.get(t, figuresPath, "root", auth.RoleAdmin)
		wantProblem(t, w.Result(), 503, code)
		if w.Header().Get("Retry-After") == "" || w.Header().Get("Connection") != "close" {
			t.Errorf("%v: headers %v", err, w.Header())
		}
	}
	if f.open() != 0 {
		t.Error("watchers are left")
	}
	wantProblem(t, open(t).get(t, figuresPath, "root", auth.RoleAdmin).Result(), 404, "route_not_found")
}

// observed records what is counted for the figures.
type observed struct {
	mu  sync.Mutex
	got []string
}

func (o *observed) Answered(status int, _ time.Duration) { o.add(http.StatusText(status)) }
func (o *observed) Refused(code string)                  { o.add(code) }

func (o *observed) add(what string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.got = append(o.got, what)
}

// Answers to purchases are counted, and no others.
func TestFigures_CountsPurchases(t *testing.T) {
	t.Parallel()
	o := &observed{}
	s := open(t, func(c *Config) { c.Purchases = o })
	s.do(purchaseRequest(t, `{"quantity":1}`))
	s.do(purchaseRequest(t, `{"quantity":0}`))
	s.get(t, "/v1/orders/x", "alice", auth.RoleBuyer)
	s.get(t, "/v1/items/thing", "", "")
	r := purchaseRequest(t, `{"quantity":1}`)
	r.Header.Del("Authorization")
	s.do(r)
	// Forms count like requests to the API.
	cookie := sessionCookie(t, buyerCookie, auth.RoleBuyer)
	s.visit(t, "/items/thing/buy", "key=k&quantity=1", cookie)
	s.visit(t, "/items/thing/buy", "key=k&quantity=0", cookie)
	if got := strings.Join(o.got, " "); got != "Created quantity_range auth_missing Created quantity_range" {
		t.Errorf("counted %s", got)
	}
}
