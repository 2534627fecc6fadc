package admin

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"
)

// busyEvent has wide numbers and long names.
const busyEvent = `{"at":"2026-11-23T09:15:42.123Z","since":"2026-11-23T09:00:00Z","window_seconds":1,"complete":true,
"accepted_per_second":1234567.5,"committed_per_second":1199000,"refused_per_second":35120000,
"refused_by_code_per_second":{"sold_out":35000000,"user_limit":119000.5,"rate_limited":999,"idempotency_key_reused":1,"sale_not_open":0},
"totals":{"accepted":123456789,"committed":123456000,"refused":9876543210},
"queue":{"orders":1234567,"ready":12345,"delayed":0,"leased":300,"dead":7,"oldest_age_ms":61234.5,"paused":true},
"expiries":null,"workers":{"live":0,"trouble":"none live since 2026-11-22T10:00:00Z"},
"latency":{"201":{"per_second":1199000,"p50_ms":0.512,"p90_ms":12.345,"p99_ms":1234.5,"max_ms":61234},"202":{"per_second":0,"p50_ms":null,"p90_ms":null,"p99_ms":null,"max_ms":null}},
"locks":{"held":123,"waiting":45,"handovers_per_second":18000},"breakers":{"open":2,"refused_per_second":12000},"items_active":137,
"items":[ITEMS],"processes":[PROCESSES]}`

// anEvent is an event with some items and processes.
func anEvent(t *testing.T, items, processes int) *topEvent {
	t.Helper()
	var is, ps []string
	for i := range items {
		is = append(is, fmt.Sprintf(`{"id":"%s-%02d","state":"sold_out","stock_left":999999999,"stock_total":1000000000,"accepted_per_second":123456,"lock":{"holder":"host-with-a-long-name pid 12345","fence":9,"waiting":12}}`,
			strings.Repeat("long", 15), i))
	}
	for i := range processes {
		ps = append(ps, fmt.Sprintf(`{"id":"x%d","kind":"api","host":"flashsale-production-7f9c8d-abcde:%d","started_at":"2026-11-20T00:00:00Z","seen_at":"2026-11-23T09:15:42Z",
"accepted_per_second":123456.7,"committed_per_second":0,"refused_per_second":12345678,"accepted_share":0.333,"committed_share":0,"locks_held":1234,"breakers_open":0}`, i, 10000+i))
	}
	ps = append(ps, `{"id":"late","kind":"worker","host":"w\u001b[31m:1","started_at":"2026-11-20T00:00:00Z","seen_at":"2026-11-23T09:15:37Z"}`)
	text := strings.NewReplacer("ITEMS", strings.Join(is, ","), "PROCESSES", strings.Join(ps, ","), "\n", "").Replace(busyEvent)
	e, err := parseTopEvent([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return e
}

var styles = regexp.MustCompile("\x1b\\[[0-9;]*m")

// The screen has the terminal's size, whatever it shows, and nothing that it shows controls the
// terminal.
func TestTopScreen_FitsTheTerminal(t *testing.T) {
	t.Parallel()
	for _, size := range [][2]int{{80, 24}, {80, 25}, {200, 60}, {40, 10}, {120, 30}, {20, 3}, {1, 1}, {300, 100}} {
		for _, n := range [][2]int{{0, 0}, {1, 1}, {20, 3}, {3, 40}, {20, 40}} {
			s := topState{server: "https://shop.example/with/a/long/path", event: anEvent(t, n[0], n[1]), notice: "connection lost\x1b[2J"}
			lines := s.screen(size[0], size[1])
			if len(lines) != size[1] {
				t.Errorf("%v, %v: %d lines", size, n, len(lines))
			}
			for _, l := range lines {
				plain := styles.ReplaceAllString(l, "")
				if w := utf8.RuneCountInString(plain); w > size[0] || strings.Contains(plain, "\x1b") || strings.Contains(plain, "\n") {
					t.Errorf("%v, %v: %d wide: %q", size, n, w, plain)
				}
			}
		}
	}
}

// At 80x24 everything important is visible.
func TestTopScreen_Content(t *testing.T) {
	t.Parallel()
	s := topState{server: "http://127.0.0.1:8080", event: anEvent(t, 20, 3)}
	got := styles.ReplaceAllString(strings.Join(s.screen(80, 24), "\n"), "")
	for _, want := range []string{
		"09:15:42 UTC  live", "accepted 1,234,568", "sold_out 35,000,000", "1,234,567 orders", "dead 7", "oldest 1 m 01 s", "PAUSED",
		"none live since", "held 123  waiting 45", "2 open", "512 µs", "12 ms", "1.2 s", "1 m 01 s", "de:10000", "33 %", "no report for 5.0 s",
		"sold_out     999,999,999", "longlonglonglo…ong-00", "… 1", "q quits",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	s.event = nil
	if got := strings.Join(s.screen(80, 24), "\n"); !strings.Contains(got, "waiting for the first figures") {
		t.Errorf("before the first event\n%s", got)
	}
	s = topState{event: anEvent(t, 0, 0), age: 12 * time.Second}
	if got := strings.Join(s.screen(80, 24), "\n"); !strings.Contains(got, "12 s old") || !strings.Contains(got, "the server sends no figures") || !strings.Contains(got, "no purchases yet") {
		t.Errorf("old figures\n%s", got)
	}
	s.age, s.event.Complete = 0, false
	if got := strings.Join(s.screen(80, 24), "\n"); !strings.Contains(got, "not every process has reported") {
		t.Errorf("partial figures\n%s", got)
	}
}

// The program quits on q, and takes the terminal's size and the events as they come.
func TestTopModel(t *testing.T) {
	t.Parallel()
	now := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	var m tea.Model = topModel{state: topState{server: "s"}, now: func() time.Time { return now }}
	update := func(msg tea.Msg) tea.Cmd {
		var cmd tea.Cmd
		m, cmd = m.Update(msg)
		return cmd
	}
	if m.View().Content != "" {
		t.Error("it draws without a size")
	}
	update(tea.WindowSizeMsg{Width: 60, Height: 10})
	update(topUpdate{event: anEvent(t, 1, 1)})
	now = now.Add(5 * time.Second)
	if v := m.View(); !v.AltScreen || !strings.Contains(v.Content, "5.0 s old") {
		t.Errorf("%+v", v)
	}
	update(topUpdate{notice: "connection lost"})
	if v := m.View(); !strings.Contains(v.Content, "connection lost") {
		t.Errorf("%s", v.Content)
	}
	if update(topTick{}) == nil {
		t.Error("the clock stops")
	}
	if cmd := update(tea.KeyPressMsg{Code: 'x', Text: "x"}); cmd != nil {
		t.Error("it reacts to x")
	}
	for _, key := range []tea.KeyPressMsg{{Code: 'q', Text: "q"}, {Code: 'c', Mod: tea.ModCtrl}} {
		cmd := update(key)
		if cmd == nil {
			t.Errorf("%s does not quit", key)
			continue
		}
		if _, ok := cmd().(tea.QuitMsg); !ok {
			t.Errorf("%s does not quit", key)
		}
	}
}

func TestTopNumbers(t *testing.T) {
	t.Parallel()
	f := func(v float64) *float64 { return &v }
	for got, want := range map[string]string{
		perSecond(nil): "-", perSecond(f(0)): "0", perSecond(f(0.5)): "0.5", perSecond(f(9.94)): "9.9", perSecond(f(1234.5)): "1,235",
		thousands(0): "0", thousands(-1234567): "-1,234,567", thousands(999): "999", percent(f(0.333)): "33 %", latency(nil): "-",
		span(0): "0 µs", span(9500 * time.Microsecond): "9.5 ms", span(75 * time.Second): "1 m 15 s", span(25 * time.Hour): "25 h 00 m", span(72 * time.Hour): "3 days",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestEventReader(t *testing.T) {
	t.Parallel()
	r := newEventReader(strings.NewReader("retry: 1500\n\n: \n\nevent: figures\ndata: {\ndata: }\r\n\nevent: other\n\nevent: cut\ndata: x"))
	for _, want := range []string{"", "", "figures {}", ""} {
		name, data, err := r.next()
		if got := strings.TrimSpace(name + " " + string(data)); err != nil || got != want {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
	}
	if _, _, err := r.next(); err != io.EOF { //nolint:errorlint // never wrapped
		t.Errorf("at the end: %v", err)
	}
	if r.retry != 1500*time.Millisecond {
		t.Errorf("retry %v", r.retry)
	}
}

// lines is an output that cancels its context after some lines.
type lines struct {
	mu   sync.Mutex
	b    bytes.Buffer
	left int
	stop context.CancelFunc
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.left--; l.left == 0 {
		l.stop()
	}
	return l.b.Write(p)
}

// source is a topSource of a test's server.
func source(t *testing.T, h http.HandlerFunc) *topSource {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return &topSource{asked: asked{server: srv.URL}, path: "/v1/admin/events", token: func() (string, error) { return "t", nil }}
}

// When the connection ends, the command connects again, and says so once.
func TestTop_Reconnects(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	src := source(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer t" || r.Header.Get("Accept") != "text/event-stream" {
			t.Errorf("headers %v", r.Header)
		}
		if n := calls.Add(1); n == 2 {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprint(w, `{"code":"unavailable","detail":"later\u001b[2J\u0007"}`)
			return
		}
		fmt.Fprint(w, "retry: 1\n\nevent: figures\ndata: {\"accepted_per_second\":5}\n\n")
	})
	ctx, cancel := context.WithCancel(t.Context())
	out, notices := &lines{left: 2, stop: cancel}, &bytes.Buffer{}
	if err := src.print(ctx, out, notices, plainLine); err != nil {
		t.Fatal(err)
	}
	if got := out.b.String(); strings.Count(got, "accepted_per_second=5 committed_per_second=- ") != 2 {
		t.Errorf("printed\n%s", got)
	}
	said := notices.String()
	if strings.Count(said, "reconnecting: the server ended the stream") != 1 || !strings.Contains(said, "unavailable: later[2J (flashsale doctor names the cause)\n") || strings.Count(said, "connected again") != 1 {
		t.Errorf("said\n%s", said)
	}
}

// An error that a new connection would meet again ends the command, and so does an API that
// cannot be reached at the start.
func TestTop_Errors(t *testing.T) {
	t.Parallel()
	forbidden := source(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `{"code":"\u001bforbidden","detail":"The \u001b[2Jtoken's role may not use\n this route."}`)
	})
	garbage := source(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "event: figures\ndata: nonsense\n\n")
	})
	away := &topSource{asked: asked{server: "http://127.0.0.1:1"}, token: func() (string, error) { return "", nil }}
	keyless := &topSource{asked: asked{server: "http://127.0.0.1:1"}, token: func() (string, error) { return "", io.ErrUnexpectedEOF }}
	for src, want := range map[*topSource]string{forbidden: "forbidden: The [2Jtoken's role may not use this route.", garbage: "read event", away: "refused", keyless: "unexpected EOF"} {
		err := src.print(t.Context(), io.Discard, io.Discard, plainLine)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%q, want %q", err, want)
		}
	}
	closed := source(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "event: figures\ndata: {}\n\n")
	})
	r, w := io.Pipe()
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if err := closed.print(t.Context(), w, io.Discard, plainLine); err == nil || !strings.Contains(err.Error(), "write") {
		t.Errorf("output closed: %v", err)
	}
}
