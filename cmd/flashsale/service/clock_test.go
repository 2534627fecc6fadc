//go:build unix

package service

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"
	"github.com/spf13/pflag"

	"flashsale/cmd/flashsale/config"
	"flashsale/handler/auth"
	"flashsale/handler/openapi"
	"flashsale/internal/testing/await"
	"flashsale/internal/testing/contract"
	"flashsale/internal/testing/redistest"
)

const skewSecret = "clock-tests-secret-of-more-than-32-bytes"

// skewedHost is the whole service in this process, on a host with a wrong clock.
type skewedHost struct {
	t   *testing.T
	url string
	log syncBuffer
	// registry holds the service's metrics.
	registry *prometheus.Registry
}

// syncBuffer is a buffer for concurrent writers.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// settingsOf returns the settings of the given flags.
func settingsOf(args ...string) (*config.Settings, error) {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	config.DefineFlags(flags)
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	return config.Load(flags)
}

// startSkewed runs the service until the test ends. The host's clock is ahead of Redis's by
// skew.
func startSkewed(t *testing.T, setting string, skew time.Duration) *skewedHost {
	t.Helper()
	s, err := settingsOf("--addr=127.0.0.1:0", "--ops-addr=", "--demo=false", "--jwt-secret="+skewSecret,
		"--redis="+setting, "--data-dir="+t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	h := &skewedHost{t: t}
	var out bytes.Buffer
	life := built(t, &h.registry, &env{
		settings: s, role: Serve, log: zerolog.New(&h.log), out: &out,
		now: func() time.Time { return time.Now().Add(skew) },
	})
	if h.url = apiIn(out.String()); h.url == "" {
		t.Fatalf("no address in %q", out.String())
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- life.run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return h
}

// built builds a process with a registry of its own. A process whose start exceeds a time limit on a busy machine ends,
// and is started again, as its supervisor would.
func built(t *testing.T, registry **prometheus.Registry, e *env) (life *lifecycle) {
	t.Helper()
	await.Every(t, retryPause, "the start of a process", func() bool {
		*registry = prometheus.NewRegistry()
		e.registry = *registry
		var err error
		life, err = build(t.Context(), e)
		var slow net.Error // also the end of a context
		if err != nil && !(errors.As(err, &slow) && slow.Timeout()) {
			t.Fatal(err)
		}
		return err == nil
	})
	return life
}

// underContract checks the exchanges of a client against the API's document.
func underContract(t *testing.T) http.RoundTripper {
	t.Helper()
	c, err := contract.Parse(openapi.Document)
	if err != nil {
		t.Fatal(err)
	}
	base := &http.Transport{DisableKeepAlives: true, DisableCompression: true}
	return c.Transport(base, func(err error) { t.Errorf("contract: %v", err) })
}

// ask repeats a request until its answer is not 503, as the answer demands: on a busy machine the service exceeds
// its own time limits. It decodes the last answer.
func (h *skewedHost) ask(method, path string, as auth.Role, body any, headers ...string) (status int, head http.Header, got map[string]any) {
	h.t.Helper()
	await.Every(h.t, retryPause, method+" "+path, func() bool {
		status, head, got = h.askOnce(method, path, as, body, headers...)
		return status != http.StatusServiceUnavailable
	})
	return status, head, got
}

// retryPause is the pause before a request is repeated.
const retryPause = 20 * time.Millisecond

// askOnce sends one request and decodes the answer.
func (h *skewedHost) askOnce(method, path string, as auth.Role, body any, headers ...string) (int, http.Header, map[string]any) {
	h.t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		h.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(h.t.Context(), await.Limit)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, h.url+path, bytes.NewReader(text))
	if err != nil {
		h.t.Fatal(err)
	}
	token, err := auth.SignToken([]byte(skewSecret), "user-1", as, time.Hour, time.Now())
	if err != nil {
		h.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	res, err := (&http.Client{Transport: underContract(h.t)}).Do(r)
	if err != nil {
		h.t.Fatal(err)
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	got := map[string]any{}
	if len(answer) > 0 {
		if err := json.Unmarshal(answer, &got); err != nil {
			h.t.Fatalf("%s %s: %v: %s", method, path, err, answer)
		}
	}
	return res.StatusCode, res.Header, got
}

// create opens a sale; times are by Redis's clock, zero for none.
func (h *skewedHost) create(id string, opens, closes time.Time) {
	h.t.Helper()
	body := map[string]any{
		"id": id, "name": "Thing", "price_minor": 100, "currency": "EUR", "stock": 1000, "per_user_limit": perUser,
		"payment_window_seconds": paymentWindow.Seconds(),
	}
	if !opens.IsZero() {
		body["opens_at"] = opens.UTC().Format(time.RFC3339Nano)
	}
	if !closes.IsZero() {
		body["closes_at"] = closes.UTC().Format(time.RFC3339Nano)
	}
	attempts := 0
	await.Every(h.t, retryPause, "item "+id, func() bool {
		attempts++
		status, _, got := h.askOnce("POST", "/v1/admin/items", auth.RoleAdmin, body)
		created := status == http.StatusCreated || attempts > 1 && got["code"] == "item_exists"
		if !created && status != http.StatusServiceUnavailable {
			h.t.Fatalf("create %s: %d %v", id, status, got)
		}
		return created
	})
}

// Terms of the items of these tests.
const (
	perUser       = 100
	paymentWindow = time.Hour
)

// buy repeats a purchase with its key until it is committed or refused.
func (h *skewedHost) buy(id, key string) (status int, head http.Header, got map[string]any) {
	h.t.Helper()
	await.Every(h.t, retryPause, "the purchase of "+id, func() bool {
		status, head, got = h.buyOnce(id, key)
		return status != http.StatusServiceUnavailable && status != http.StatusAccepted
	})
	return status, head, got
}

func (h *skewedHost) buyOnce(id, key string) (int, http.Header, map[string]any) {
	h.t.Helper()
	return h.askOnce("POST", "/v1/items/"+id+"/orders", auth.RoleBuyer, map[string]any{"quantity": 1}, "Idempotency-Key", key)
}

// instant reads a time from an answer.
func (h *skewedHost) instant(of map[string]any, field string) time.Time {
	h.t.Helper()
	at, err := time.Parse(time.RFC3339, fmt.Sprint(of[field]))
	if err != nil {
		h.t.Fatalf("%s: %v", field, err)
	}
	return at
}

// With a host clock that is five minutes wrong, pages, purchases, expiries and payments still
// agree.
func TestClock_SkewedHostStaysConsistent(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: it starts a redis-server, and -short asks for the quick tests")
	}
	t.Parallel()
	for _, skew := range []time.Duration{5 * time.Minute, -5 * time.Minute} {
		t.Run(skew.String(), func(t *testing.T) {
			t.Parallel()
			server := redistest.Real(t, "--appendfsync", "everysec")
			h := startSkewed(t, "redis://"+server.Addr()+"/0", skew)
			redisNow := redisTime(t, server.Addr())
			for _, c := range []struct {
				id            string
				opens, closes time.Duration // from now; 0: none
				state         string
				answer        string
			}{
				{"default", 0, 0, "open", "201"},
				{"opens-soon", 2 * time.Minute, 0, "scheduled", "409 sale_not_open"},
				{"has-opened", -2 * time.Minute, 0, "open", "201"},
				{"closes-soon", -10 * time.Minute, 2 * time.Minute, "open", "201"},
				{"has-closed", -10 * time.Minute, -2 * time.Minute, "closed", "409 sale_closed"},
			} {
				var opens, closes time.Time
				if c.opens != 0 {
					opens = redisNow.Add(c.opens)
				}
				if c.closes != 0 {
					closes = redisNow.Add(c.closes)
				}
				h.create(c.id, opens, closes)
				h.wantState(c.id, c.state)
				status, header, got := h.buy(c.id, "k")
				answer := strings.TrimSpace(fmt.Sprint(status, " ", got["code"]))
				if status == http.StatusCreated {
					answer = "201"
					h.wantExpiry(got)
				}
				if answer != c.answer {
					t.Errorf("%s is shown as %s and bought with %s, want %s", c.id, c.state, answer, c.answer)
				}
				if retry, err := strconv.Atoi(header.Get("Retry-After")); c.state == "scheduled" && (err != nil || retry < 1 || retry > 120) {
					t.Errorf("%s: Retry-After %q, want 1 to 120", c.id, header.Get("Retry-After"))
				}
			}
			if !strings.Contains(h.log.String(), "differs from the Redis clock") || !strings.Contains(h.log.String(), "NTP") {
				t.Errorf("the start does not warn:\n%s", h.log.String())
			}
			h.wantOffset(-skew)
		})
	}
}

// redisTime is a server's clock.
func redisTime(t *testing.T, addr string) time.Time {
	t.Helper()
	rdb := redis.NewClient(redistest.Options(addr))
	defer rdb.Close()
	now, err := rdb.Time(t.Context()).Result()
	if err != nil {
		t.Fatal(err)
	}
	return now
}

// wantState checks the state of an item on its page, in the list, and for an admin.
func (h *skewedHost) wantState(id, state string) {
	h.t.Helper()
	_, _, page := h.ask("GET", "/v1/items/"+id, auth.RoleBuyer, nil)
	_, _, admin := h.ask("GET", "/v1/admin/items/"+id, auth.RoleAdmin, nil)
	_, _, list := h.ask("GET", "/v1/items", auth.RoleBuyer, nil)
	shown := []map[string]any{page, admin}
	items, _ := list["items"].([]any)
	for _, one := range items {
		if item, ok := one.(map[string]any); ok && item["id"] == id {
			shown = append(shown, item)
		}
	}
	if len(shown) != 3 {
		h.t.Errorf("%s is not in the list: %v", id, list)
	}
	for _, item := range shown {
		if item["state"] != state {
			h.t.Errorf("%s is %v, want %s", id, item["state"], state)
		}
		if off := time.Since(h.instant(item, "server_time")); off.Abs() > time.Minute {
			h.t.Errorf("%s: server_time is %v off the clock of Redis", id, off)
		}
	}
}

// wantExpiry checks that the payment deadline uses the same clock as the page.
func (h *skewedHost) wantExpiry(bought map[string]any) {
	h.t.Helper()
	if left := time.Until(h.instant(bought, "expires_at")); (left - paymentWindow).Abs() > time.Minute {
		h.t.Errorf("an order expires in %v, want %v", left, paymentWindow)
	}
	if off := time.Since(h.instant(bought, "created_at")); off.Abs() > time.Minute {
		h.t.Errorf("created_at is %v off", off)
	}
	status, _, got := h.ask("POST", fmt.Sprintf("/v1/orders/%v/payment", bought["id"]), auth.RoleService,
		map[string]any{"reference": bought["id"], "amount_minor": 100, "currency": "EUR"})
	if status != http.StatusOK || got["status"] != "paid" {
		h.t.Errorf("pay: %d %v", status, got)
	}
}

// wantOffset waits until the clock has been measured, because one measurement may take too long.
func (h *skewedHost) wantOffset(want time.Duration) {
	h.t.Helper()
	await.True(h.t, fmt.Sprintf("flashsale_clock_offset_seconds of about %v", want), func() bool {
		families, err := h.registry.Gather()
		if err != nil {
			h.t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "flashsale_clock_offset_seconds" {
				return math.Abs(f.GetMetric()[0].GetGauge().GetValue()-want.Seconds()) <= 60
			}
		}
		h.t.Fatal("there is no flashsale_clock_offset_seconds")
		return false
	})
}

// The service writes and shows times by Redis's clock, which here is five minutes ahead of this
// machine's.
func TestClock_ServiceUsesTheRedisClock(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: it starts a redis-server, and -short asks for the quick tests")
	}
	t.Parallel()
	const ahead = 5 * time.Minute
	server := redistest.Real(t, "--appendfsync", "everysec")
	h := startSkewed(t, "redis://"+shiftTime(t, server.Addr(), ahead)+"/0", 0)
	h.wantOffset(ahead)
	h.create("thing", time.Now().Add(-time.Hour), time.Time{})
	before := time.Now()
	_, _, bought := h.buy("thing", "k")
	_, _, page := h.ask("GET", "/v1/items/thing", auth.RoleBuyer, nil)
	took := time.Since(before)
	for name, at := range map[string]time.Time{
		"created_at":   h.instant(bought, "created_at"),
		"confirmed_at": h.instant(bought, "confirmed_at"),
		"expires_at":   h.instant(bought, "expires_at").Add(-paymentWindow),
		"server_time":  h.instant(page, "server_time"),
	} {
		if off := at.Sub(before) - ahead; off < -time.Minute || off > took+time.Minute {
			t.Errorf("%s is %v off the clock of Redis", name, off)
		}
	}
}

// shiftTime is a proxy in front of Redis that shifts the answers to TIME.
func shiftTime(t *testing.T, target string, by time.Duration) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	t.Cleanup(all.Wait)
	t.Cleanup(func() {
		if err := ln.Close(); err != nil {
			t.Errorf("close the proxy: %v", err)
		}
	})
	all.Go(func() {
		for {
			client, err := ln.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", target)
			if err != nil {
				t.Errorf("dial %s: %v", target, err)
				if err := client.Close(); err != nil {
					t.Errorf("close a connection of the proxy: %v", err)
				}
				return
			}
			// A connection of the client's pool has one call in progress.
			var asked atomic.Bool
			all.Go(func() {
				pass(server, client, func(b []byte) []byte {
					asked.Store(strings.EqualFold(string(b), "*1\r\n$4\r\ntime\r\n"))
					return b
				})
			})
			all.Go(func() {
				pass(client, server, func(b []byte) []byte {
					lines := strings.Split(string(b), "\r\n")
					if !asked.Load() || len(lines) < 3 {
						return b
					}
					seconds, err := strconv.ParseInt(lines[2], 10, 64)
					if err != nil {
						t.Errorf("TIME was answered with %q", b)
						return b
					}
					lines[2] = strconv.FormatInt(seconds+int64(by/time.Second), 10)
					return []byte(strings.Join(lines, "\r\n"))
				})
			})
		}
	})
	return ln.Addr().String()
}

// pass copies data between connections, changing each piece.
func pass(to, from net.Conn, change func([]byte) []byte) {
	defer to.Close()
	defer from.Close()
	for b := make([]byte, 64<<10); ; {
		n, err := from.Read(b)
		if err != nil {
			return
		}
		if _, err := to.Write(change(b[:n])); err != nil {
			return
		}
	}
}

// The embedded engine uses the host's clock, so the service neither measures a difference nor
// warns.
func TestClock_EmbeddedUsesTheHostClock(t *testing.T) {
	t.Parallel()
	h := startSkewed(t, config.EmbeddedRedis, 0)
	h.create("default", time.Time{}, time.Time{})
	h.wantState("default", "open")
	if status, _, got := h.buy("default", "k"); status != http.StatusCreated {
		t.Errorf("buy: %d %v", status, got)
	}
	h.wantOffset(0)
	if strings.Contains(h.log.String(), "clock") {
		t.Errorf("the start mentions clocks:\n%s", h.log.String())
	}
}

var apiLine = regexp.MustCompile(`(?m)^api +(http://\S+)/v1/items$`)

// apiIn returns the address of the API that a banner shows, or "".
func apiIn(banner string) string {
	m := apiLine.FindStringSubmatch(banner)
	if m == nil {
		return ""
	}
	return m[1]
}
