package handler

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"flashsale/handler/auth"
	"flashsale/handler/handlertest"
	"flashsale/internal/testing/await"
	"flashsale/order"
	"flashsale/order/feed"
)

const eventsPath = "/v1/orders/" + someOrderID + "/events"

func TestOrderEvents(t *testing.T) {
	t.Parallel()
	queued, confirmed, paid := orderIn(order.StatusQueued), orderIn(order.StatusConfirmed), orderIn(order.StatusPaid)
	one, two, three := eventText("1", "queued", queued), eventText("2", "confirmed", confirmed), eventText("3", "paid", paid)
	for _, tt := range []struct {
		name    string
		now     order.Order
		last    string // Last-Event-ID
		changes []order.Order
		want    string // empty: 204
	}{
		{"each change", queued, "", []order.Order{confirmed, paid}, one + two + three},
		{"a change twice", queued, "", []order.Order{queued, confirmed, confirmed, paid}, one + two + three},
		{"two changes at once", queued, "", []order.Order{paid}, one + two + three},
		{"new to a confirmed order", confirmed, "", []order.Order{paid}, two + three},
		{"new to a paid order", paid, "", nil, three},
		{"resumed after the first", queued, "1", []order.Order{confirmed, paid}, two + three},
		{"resumed, two behind", paid, "1", nil, two + three},
		{"resumed, nothing missed", confirmed, "2", []order.Order{paid}, three},
		{"resumed from the start", paid, "0", nil, one + two + three},
		{"resumed from what is not there yet", confirmed, "7", []order.Order{paid}, three},
		{"resumed at the end", paid, "3", nil, ""},
		{"resumed beyond the end", paid, "4", nil, ""},
		{"cancelled", queued, "", []order.Order{confirmed, orderIn(order.StatusCancelled)},
			one + two + eventText("3", "cancelled", orderIn(order.StatusCancelled))},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			registry := prometheus.NewRegistry()
			s, source := streaming(t, tt.now, func(c *Config) { c.Registerer = registry })
			for _, o := range tt.changes {
				source.send(o)
			}
			var headers []string
			if tt.last != "" {
				headers = []string{"Last-Event-ID", tt.last}
			}
			w := s.events(t, headers...)
			if tt.want == "" {
				if w.Code != 204 || w.Body.Len() > 0 {
					t.Fatalf("%d %s, want 204", w.Code, w.Body)
				}
			} else if got := wantStream(t, w); got != tt.want {
				t.Errorf("got\n%s\nwant\n%s", got, tt.want)
			}
			await.True(t, "the stream to leave", func() bool { return source.open.Load() == 0 })
			want := strings.Count(tt.want, "id: ")
			if got := sum(t, registry, "flashsale_event_streams"); got != 0 {
				t.Errorf("%v streams counted at the end", got)
			}
			if got := sum(t, registry, "flashsale_events_sent_total"); got != float64(want) {
				t.Errorf("%v events counted, want %d", got, want)
			}
		})
	}
}

// sum reads a counter or gauge without labels.
func sum(tb testing.TB, g prometheus.Gatherer, name string) float64 {
	tb.Helper()
	all, err := g.Gather()
	if err != nil {
		tb.Fatal(err)
	}
	for _, f := range all {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue() + f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	tb.Fatalf("no metric %s", name)
	return 0
}

// refused reads the count of streams refused for a reason.
func refused(tb testing.TB, g prometheus.Gatherer, reason string) float64 {
	tb.Helper()
	all, err := g.Gather()
	if err != nil {
		tb.Fatal(err)
	}
	for _, f := range all {
		for _, m := range f.GetMetric() {
			if l := m.GetLabel(); f.GetName() == "flashsale_event_streams_refused_total" && l[0].GetValue() == reason {
				return m.GetCounter().GetValue()
			}
		}
	}
	tb.Fatalf("no count of streams refused for %s", reason)
	return 0
}

// A confirmed order of an item without payment has no further events.
func TestOrderEvents_NoneAfterConfirmedWithoutPayment(t *testing.T) {
	t.Parallel()
	o := orderIn(order.StatusConfirmed)
	o.ExpiresAt = time.Time{}
	s, _ := streaming(t, o)
	if got := wantStream(t, s.events(t)); got != eventText("2", "confirmed", o) {
		t.Errorf("got\n%s", got)
	}
	if w := s.events(t, "Last-Event-ID", "2"); w.Code != 204 {
		t.Errorf("resumed: %d", w.Code)
	}
}

func TestOrderEvents_OnlyOwnerAdminAndService(t *testing.T) {
	t.Parallel()
	s, source := streaming(t, orderIn(order.StatusPaid))
	for _, who := range []struct {
		sub   string
		role  auth.Role
		buyer string // the owner of the stream
	}{{"alice", auth.RoleBuyer, "alice"}, {"root", auth.RoleAdmin, ""}, {"shop", auth.RoleService, ""}} {
		wantStream(t, s.get(t, eventsPath, who.sub, who.role))
		if got := source.buyers[len(source.buyers)-1]; got != who.buyer {
			t.Errorf("%s: a stream of %q, want %q", who.role, got, who.buyer)
		}
	}
	wantProblem(t, s.get(t, eventsPath, "bob", auth.RoleBuyer).Result(), 404, "order_not_found")
	wantProblem(t, s.get(t, eventsPath, "", "").Result(), 401, "auth_missing")
	s.orders.get = nil
	wantProblem(t, s.events(t).Result(), 404, "order_not_found")
	if n := source.open.Load(); n != 0 {
		t.Errorf("%d streams left", n)
	}
	without := open(t)
	wantProblem(t, without.events(t).Result(), 404, "route_not_found")
}

func TestOrderEvents_BadRequests(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	s, source := streaming(t, orderIn(order.StatusPaid), func(c *Config) { c.Registerer = registry })
	for _, tt := range []struct {
		headers []string
		status  int
		code    string
		param   string
	}{
		{[]string{"Last-Event-ID", "x"}, 400, "last_event_id_invalid", "Last-Event-ID"},
		{[]string{"Last-Event-ID", "-1"}, 400, "last_event_id_invalid", "Last-Event-ID"},
		{[]string{"Last-Event-ID", "1.5"}, 400, "last_event_id_invalid", "Last-Event-ID"},
		{[]string{"Last-Event-ID", " "}, 400, "last_event_id_invalid", "Last-Event-ID"},
		{[]string{"Last-Event-ID", "99999999999999999999"}, 400, "last_event_id_invalid", "Last-Event-ID"},
		{[]string{"Last-Event-ID", "1", "Last-Event-ID", "2"}, 400, "header_duplicate", "Last-Event-Id"},
		{[]string{"Accept", "application/json"}, 406, "not_acceptable", "Accept"},
		{[]string{"Accept", "text/event-stream;q=0"}, 406, "not_acceptable", "Accept"},
		{[]string{"Accept", "text/event-stream;q=0, */*"}, 406, "not_acceptable", "Accept"},
	} {
		body := wantProblem(t, s.events(t, tt.headers...).Result(), tt.status, tt.code)
		if body["param"] != tt.param {
			t.Errorf("%q: param = %v", tt.headers, body["param"])
		}
	}
	for _, good := range []string{"text/event-stream", "*/*", "text/*", "application/json, text/event-stream;q=0.5", ""} {
		wantStream(t, s.events(t, "Accept", good))
	}
	wantStream(t, s.events(t, "Last-Event-ID", "")) // no event seen yet
	wantProblem(t, s.get(t, "/v1/orders/X/events", "alice", auth.RoleBuyer).Result(), 400, "id_invalid")
	wantProblem(t, s.post(t, eventsPath, "alice", auth.RoleBuyer, "{}").Result(), 405, "method_not_allowed")
	for err, want := range map[error]struct {
		status int
		code   string
		reason string
	}{
		feed.ErrTooManyStreams:    {503, "overloaded", "process_limit"},
		feed.ErrTooManyOwnStreams: {429, "rate_limited", "buyer_limit"},
		feed.ErrClosed:            {503, "unavailable", "stopping"},
	} {
		source.err = err
		w := s.events(t)
		wantProblem(t, w.Result(), want.status, want.code)
		if w.Header().Get("Retry-After") == "" {
			t.Errorf("%v: no Retry-After", err)
		}
		if got := refused(t, registry, want.reason); got != 1 {
			t.Errorf("%v: %v streams counted as refused, want 1", err, got)
		}
	}
}

// The answer has the headers of GET, but no stream.
func TestOrderEvents_HEADSendsOnlyHeaders(t *testing.T) {
	t.Parallel()
	s, source := streaming(t, orderIn(order.StatusQueued))
	r := httptest.NewRequest(http.MethodHead, eventsPath, http.NoBody)
	r.Header.Set("Authorization", bearer(t, "alice", auth.RoleBuyer))
	if w := s.do(r); w.Code != 200 || w.Header().Get("Content-Type") != "text/event-stream" || w.Body.Len() > 0 {
		t.Errorf("%d %v %q", w.Code, w.Header(), w.Body)
	}
	if n := source.open.Load(); n != 0 {
		t.Errorf("%d streams left", n)
	}
}

// A stream ends when its process drains, at its maximum duration, and when its token expires.
func TestOrderEvents_EndsOnDrainAgeAndExpiry(t *testing.T) {
	t.Parallel()
	one := eventText("1", "queued", orderIn(order.StatusQueued))
	t.Run("the feed closes", func(t *testing.T) {
		t.Parallel()
		s, source := streaming(t, orderIn(order.StatusQueued))
		source.close()
		if got := wantStream(t, s.events(t)); got != one {
			t.Errorf("got\n%s", got)
		}
	})
	t.Run("its life", func(t *testing.T) {
		t.Parallel()
		s, _ := streaming(t, orderIn(order.StatusQueued), func(c *Config) { c.Streams.Life = 30 * time.Millisecond })
		if got := wantStream(t, s.events(t)); got != one {
			t.Errorf("got\n%s", got)
		}
	})
	t.Run("its token's life", func(t *testing.T) {
		t.Parallel()
		// The shop's clock is fixed at a moment shortly before the token expires.
		s, _ := streaming(t, orderIn(order.StatusQueued))
		token, err := auth.SignToken(testSecret, "alice", auth.RoleBuyer, time.Second, someTime)
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequest(http.MethodGet, eventsPath, http.NoBody)
		r.Header.Set("Authorization", "Bearer "+token)
		if got := wantStream(t, s.stream(t, r)); got != one {
			t.Errorf("got\n%s", got)
		}
	})
}

// serveShort serves with a short write timeout.
func serveShort(t *testing.T, h http.Handler, limit time.Duration, wrap ...func(net.Listener) net.Listener) string {
	t.Helper()
	return handlertest.Serve(t, h, func(srv *http.Server) { srv.WriteTimeout = limit }, wrap...)
}

func ask(t *testing.T, w *handlertest.Conn) {
	t.Helper()
	w.Send(t, "GET "+eventsPath+" HTTP/1.1\r\nHost: x\r\nAuthorization: "+bearer(t, "alice", auth.RoleBuyer)+"\r\n\r\n")
}

// until reads the lines of a stream until one has the prefix, and counts the heartbeats.
func until(t *testing.T, w *handlertest.Conn, prefix string) (beats int) {
	t.Helper()
	for {
		line, err := w.In.ReadString('\n')
		if err != nil {
			t.Fatalf("waiting for %q: %v", prefix, err)
		}
		if strings.HasPrefix(line, prefix) {
			return beats
		}
		if strings.HasPrefix(line, ": ") {
			beats++
		}
	}
}

// An idle stream sends heartbeats, and outlives the server's write timeout.
func TestOrderEvents_HeartbeatsOutliveTheWriteLimit(t *testing.T) {
	t.Parallel()
	const limit = 4 * time.Second
	s, source := streaming(t, orderIn(order.StatusQueued), func(c *Config) { c.Streams.Heartbeat = 20 * time.Millisecond })
	w := handlertest.Dial(t, serveShort(t, s, limit))
	start := time.Now()
	ask(t, w)
	until(t, w, "data: ")
	for time.Since(start) < 2*limit {
		until(t, w, ": ")
	}
	source.send(orderIn(order.StatusPaid))
	until(t, w, `data: {"id":"`+someOrderID+`","item_id":"thing","user_id":"alice","quantity":1,"unit_price_minor":990,"currency":"EUR","status":"paid"`)
	until(t, w, "0\r\n") // the last chunk: the server has ended the stream
}

// The stream of a client that disconnects ends long before the next heartbeat.
func TestOrderEvents_EndsWhenClientDisconnects(t *testing.T) {
	t.Parallel()
	s, source := streaming(t, orderIn(order.StatusQueued), func(c *Config) { c.Streams.Heartbeat = time.Hour })
	w := handlertest.Dial(t, serve(t, s))
	ask(t, w)
	until(t, w, "data: ")
	if n := source.open.Load(); n != 1 {
		t.Fatalf("%d streams, want 1", n)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the stream to end", func() bool { return source.open.Load() == 0 })
}

// A client that does not read is disconnected, and blocks no other.
func TestOrderEvents_SlowClientIsDisconnected(t *testing.T) {
	t.Parallel()
	s, source := streaming(t, orderIn(order.StatusQueued), func(c *Config) { c.Streams.Stall = time.Second })
	w := handlertest.Dial(t, serve(t, s))
	ask(t, w)
	until(t, w, "data: ")
	big := orderIn(order.StatusConfirmed)
	big.Reason = strings.Repeat("x", 32<<20) // more than the kernel buffers
	source.send(big)
	await.True(t, "the stream to end", func() bool { return source.open.Load() == 0 })
	if _, err := io.Copy(io.Discard, w.In); err != nil && !errors.Is(err, net.ErrClosed) && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the connection: %v", err)
	}
}

// A stream closes its connection at its end and announces it in its headers; an HTTP/1.0 client
// gets no chunks.
func TestOrderEvents_FramingFollowsTheHTTPVersion(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		proto   string
		chunked bool
	}{{"HTTP/1.1", true}, {"HTTP/1.0", false}} {
		t.Run(tt.proto, func(t *testing.T) {
			t.Parallel()
			s, source := streaming(t, orderIn(order.StatusQueued), func(c *Config) { c.Streams.Heartbeat = time.Hour })
			w := handlertest.Dial(t, serve(t, s))
			w.Send(t, "GET "+eventsPath+" "+tt.proto+"\r\nHost: x\r\nAuthorization: "+bearer(t, "alice", auth.RoleBuyer)+"\r\n\r\n")
			res, err := http.ReadResponse(w.In, nil)
			if err != nil {
				t.Fatal(err)
			}
			if got := len(res.TransferEncoding) > 0; !res.Close || got != tt.chunked {
				t.Errorf("closes: %v, chunked: %v, want true and %v", res.Close, got, tt.chunked)
			}
			source.send(orderIn(order.StatusPaid))
			body, err := io.ReadAll(res.Body)
			res.Body.Close()
			_, events, _ := strings.Cut(string(body), "\n\n")
			want := eventText("1", "queued", orderIn(order.StatusQueued)) +
				eventText("2", "confirmed", orderIn(order.StatusConfirmed)) + eventText("3", "paid", orderIn(order.StatusPaid))
			if err != nil || events != want {
				t.Errorf("%v, got\n%s\nwant\n%s", err, events, want)
			}
		})
	}
}

// A client may send a few bytes on its stream, but loses it if it sends without end.
func TestOrderEvents_ClientMaySendLittle(t *testing.T) {
	t.Parallel()
	s, source := streaming(t, orderIn(order.StatusQueued), func(c *Config) { c.Streams.Heartbeat = time.Hour })
	w := handlertest.Dial(t, serve(t, s))
	ask(t, w)
	until(t, w, "data: ")
	w.Send(t, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	source.send(orderIn(order.StatusConfirmed))
	until(t, w, "id: 2")
	for line := []byte(strings.Repeat("x", 1024)); ; {
		if _, err := w.Write(line); err != nil {
			break // the connection was closed with unread bytes
		}
	}
	await.True(t, "the stream to end", func() bool { return source.open.Load() == 0 })
}

// A panic in a stream only ends that stream.
func TestOrderEvents_PanicEndsOnlyItsStream(t *testing.T) {
	t.Parallel()
	s, source := streaming(t, orderIn(order.StatusQueued))
	w := handlertest.Dial(t, serve(t, s))
	ask(t, w)
	until(t, w, "data: ")
	source.set(func() { source.broken = true })
	await.True(t, "the stream to end", func() bool { return source.open.Load() == 0 })
	if _, err := io.ReadAll(w.In); err != nil {
		t.Errorf("the connection: %v", err)
	}
}

// TestOrderEvents_EndedStreamsLeaveNothing opens two thousand streams, ends half of them from
// each side, and checks that nothing of them is left.
func TestOrderEvents_EndedStreamsLeaveNothing(t *testing.T) { //nolint:paralleltest // it counts goroutines
	const n = 2000
	before := goleak.IgnoreCurrent()
	t.Run("streams", func(t *testing.T) {
		s, source := streaming(t, orderIn(order.StatusQueued), func(c *Config) { c.Streams.Heartbeat = time.Hour })
		addr := serve(t, s)
		conns := make([]net.Conn, n)
		for i := range conns {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() }) //nolint:errcheck // half of them are already closed
			conns[i] = c
			w := &handlertest.Conn{TCPConn: c.(*net.TCPConn), In: bufio.NewReader(c)}
			ask(t, w)
			until(t, w, "data: ")
		}
		if got := source.open.Load(); got != n {
			t.Fatalf("%d streams, want %d", got, n)
		}
		for _, c := range conns[:n/2] {
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
		}
		await.True(t, "the streams of those who left to end", func() bool { return source.open.Load() == n/2 })
		source.close()
		await.True(t, "the rest to end", func() bool { return source.open.Load() == 0 })
	})
	goleak.VerifyNone(t, before)
}
