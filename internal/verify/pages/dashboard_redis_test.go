//go:build unix

package pages_test

import (
	"database/sql"
	"net/http"
	"path/filepath"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/browser"
	"flashsale/internal/testing/process"
	"flashsale/internal/testing/redistest"
)

// Given a Redis that forbids INFO and CONFIG, as managed ones do, then the service starts and sells, and
// the dashboard shows the settings as unknown. When the service ends, the page says so.
func TestDashboard_RestrictedRedis(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("skipped: it starts the service and a browser, and -short asks for the quick tests")
	}
	browser.Program(t)
	server := redistest.Real(t)
	rdb := redis.NewClient(redistest.Options(server.Addr()))
	t.Cleanup(func() {
		if err := rdb.Close(); err != nil {
			t.Errorf("close redis client: %v", err)
		}
	})
	if err := rdb.Do(await.Context(t), "acl", "setuser", "shop", "on", ">secret", "~*", "&*", "+@all", "-info", "-config").Err(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	shop := process.Start(t, process.Spec{Binary: process.Build(t), Args: []string{
		"--db", "sqlite:" + filepath.Join(dir, "shop.db"), "--data-dir", dir, "--redis", "redis://shop:secret@" + server.Addr() + "/0",
	}})
	s := &service{URL: shop.URL()}
	admin := s.token(t, "root", "admin")

	var got struct {
		Redis struct {
			Engine, Version, Mode string
			Settings              map[string]string
			Used                  *int64 `json:"memory_used_bytes"`
		}
	}
	s.call(t, http.StatusOK, http.MethodGet, "/v1/admin/system", admin, nil, &got)
	if r := got.Redis; r.Engine != "redis" || r.Mode != "standalone" || r.Used != nil ||
		r.Settings["appendonly"] != "unknown" || r.Settings["appendfsync"] != "unknown" || r.Settings["maxmemory-policy"] != "unknown" {
		t.Errorf("redis %+v", r)
	}
	createSale(t, s, admin, "managed", 3)
	s.call(t, http.StatusCreated, http.MethodPost, "/v1/items/managed/orders", s.token(t, "alice", "buyer"), map[string]int{"quantity": 1}, nil,
		"Idempotency-Key", "one", "Prefer", "wait=10")

	p := dashboardPage(t, s, admin, "/admin", browser.Options{})
	p.WaitText("#stream", "Live")
	p.WaitText("#problem-list", "No problems found")
	p.WaitText("#facts", "appendonly unknown")
	p.WaitText("#facts", "Redis memory unknown")

	failures(t, s, admin)
	p.Click("#check")
	p.WaitText("#problem-list", "1 received amount did not pay for an order and has to be refunded.")
	p.WaitText("#problem-list", "Webhook disabled: Accounting")
	if first := p.Text("#problem-list strong"); first != "Refunds needed" {
		t.Errorf("the first problem is %q, not the most severe", first)
	}
	p.CheckAxe()

	p.Expect("ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_EMPTY_RESPONSE", "ERR_NETWORK", "ERR_SOCKET_NOT_CONNECTED")
	shop.Kill()
	p.WaitText("#stream", "Disconnected, reconnecting")
	p.WaitText("#problem-list", "Check failed")
	p.CheckAxe()
}

// Given a database that is locked, when orders are accepted, then the overview says that workers hold them, although
// none is ready in the queue.
func TestDashboard_HeldOrders(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("skipped: it starts the service and a browser, and -short asks for the quick tests")
	}
	browser.Program(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "shop.db")
	shop := process.Start(t, process.Spec{Binary: process.Build(t), Args: []string{
		"--db", "sqlite:" + path, "--data-dir", dir, "--redis", "redis://" + redistest.Real(t).Addr() + "/0",
	}})
	s := &service{URL: shop.URL()}
	admin := s.token(t, "root", "admin")
	createSale(t, s, admin, "held", 3)
	p := dashboardPage(t, s, admin, "/admin", browser.Options{})
	p.WaitText("#tiles", "Oldest queued order – no orders waiting")
	unlock := lock(t, path)
	s.call(t, http.StatusAccepted, http.MethodPost, "/v1/items/held/orders", s.token(t, "alice", "buyer"), map[string]int{"quantity": 1}, nil,
		"Idempotency-Key", "one", "Prefer", "respond-async")
	p.WaitText("#tiles", "Oldest queued order – held by workers")
	unlock()
	p.WaitText("#tiles", "Oldest queued order – no orders waiting")
}

// lock takes the write lock of a SQLite file until unlock is called.
func lock(t *testing.T, path string) (unlock func()) {
	t.Helper()
	db, err := sql.Open("sqlite3", "file:"+path+"?_busy_timeout=60000")
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	if _, err := db.ExecContext(await.Context(t), "BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	unlock = sync.OnceFunc(func() {
		if err := db.Close(); err != nil { // which ends the transaction
			t.Error(err)
		}
	})
	t.Cleanup(unlock)
	return unlock
}

// failures makes an amount that has to be returned, and a webhook that is disabled.
func failures(t *testing.T, s *service, admin string) {
	t.Helper()
	createSale(t, s, admin, "unpaid", 1)
	s.call(t, http.StatusOK, http.MethodPatch, "/v1/admin/items/unpaid", admin, map[string]int{"payment_window_seconds": 900}, nil, "If-Match", "*")
	var order struct{ ID string }
	s.call(t, http.StatusCreated, http.MethodPost, "/v1/items/unpaid/orders", s.token(t, "bob", "buyer"), map[string]int{"quantity": 1}, &order,
		"Idempotency-Key", "two", "Prefer", "wait=10")
	s.call(t, http.StatusConflict, http.MethodPost, "/v1/orders/"+order.ID+"/payment", s.token(t, "psp", "service"),
		map[string]any{"reference": "psp-1", "amount_minor": 1, "currency": "EUR"}, nil)
	var hook struct{ ID string }
	s.call(t, http.StatusCreated, http.MethodPost, "/v1/admin/webhooks", admin,
		map[string]any{"url": "https://shop.example/hooks", "description": "Accounting"}, &hook)
	s.call(t, http.StatusOK, http.MethodPatch, "/v1/admin/webhooks/"+hook.ID, admin, map[string]bool{"enabled": false}, nil)
}
