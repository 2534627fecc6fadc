//go:build unix

package main_test

import (
	"database/sql"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"flashsale/handler/auth"
	"flashsale/internal/testing/process"
)

// snapshot copies the shop's current database, and returns the path of the copy.
func (s *shop) snapshot() string {
	s.t.Helper()
	path := filepath.Join(s.t.TempDir(), "backup.db")
	db, err := sql.Open("sqlite3", "file:"+s.dbPath+"?_busy_timeout=10000")
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := db.ExecContext(s.t.Context(), "VACUUM INTO ?", path); err != nil {
		s.t.Fatalf("copy database: %v", err)
	}
	if err := db.Close(); err != nil {
		s.t.Fatal(err)
	}
	return path
}

// putBack replaces the shop's database by a copy. No process of the shop may run.
func (s *shop) putBack(path string) {
	s.t.Helper()
	if err := s.db.Close(); err != nil {
		s.t.Fatal(err)
	}
	for _, suffix := range []string{"-wal", "-shm"} {
		if err := os.Remove(s.dbPath + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(s.dbPath, text, 0o600)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	if s.db, err = sql.Open("sqlite3", "file:"+s.dbPath+"?_busy_timeout=10000&_query_only=true"); err != nil {
		s.t.Fatal(err)
	}
}

// unreadyAPI starts an API and only waits until it is alive.
func (s *shop) unreadyAPI(args ...string) *process.P {
	s.t.Helper()
	spec := s.spec("api", args)
	spec.ReadyPath = "/healthz"
	return process.Start(s.t, spec)
}

// rolledBack is a shop whose database was restored from a backup that has the order of u1, but
// not those of u2 and u3. Redis has all three, and the sale is sold out.
type rolledBack struct {
	*shop
	item   string
	bought []purchase // by u1, u2 and u3
	api    *process.P
	c      *client
}

func newRolledBack(t *testing.T, window int) *rolledBack {
	t.Helper()
	needSQLite(t)
	s := newRedisShop(t)
	w, p := s.worker(), s.api()
	c := dial(t, p)
	r := &rolledBack{shop: s}
	r.item = "drop-1"
	a := c.admin("POST", "/v1/admin/items", map[string]any{
		"id": r.item, "name": "Thing", "description": "d", "price_minor": 990, "currency": "EUR",
		"stock": 3, "per_user_limit": 1, "payment_window_seconds": window,
	})
	if a.Status != 201 {
		t.Fatalf("create item: %d %s", a.Status, a.Body)
	}
	r.bought = append(r.bought, c.buy(r.item, "u1", "k", untilCommitted...))
	backup := s.snapshot()
	r.bought = append(r.bought, c.buy(r.item, "u2", "k", untilCommitted...), c.buy(r.item, "u3", "k", untilCommitted...))
	only(t, r.bought, "201")
	only(t, []purchase{c.buy(r.item, "u4", "k")}, "409 sold_out")
	p.Stop()
	w.Stop()
	s.putBack(backup)
	s.worker()
	r.api = s.unreadyAPI("--reconcile-every", "1s")
	r.c = dial(t, r.api)
	return r
}

// listed reads the list of orders that a recovery wrote, by action.
func listed(t *testing.T, path string) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string][]string)
	for line := range strings.Lines(string(text)) {
		var o struct {
			Action  string
			OrderID string `json:"order_id"`
			UserID  string `json:"user_id"`
			Key     string `json:"idempotency_key"`
		}
		if err := json.Unmarshal([]byte(line), &o); err != nil || o.Key == "" || o.UserID == "" {
			t.Fatalf("line %q: %v", line, err)
		}
		out[o.Action] = append(out[o.Action], o.OrderID)
	}
	for _, list := range out {
		slices.Sort(list)
	}
	return out
}

// stops checks that the sale sells nothing, and that everything an operator can read names the
// reason.
func (r *rolledBack) stops() {
	r.t.Helper()
	for _, buyer := range []string{"u4", "u5", "u2"} {
		p := r.c.buy(r.item, buyer, "k", untilCommitted...)
		only(r.t, []purchase{p}, "503 sale_stopped")
		if p.Header["Retry-After"] == "" {
			r.t.Errorf("no Retry-After: %+v", p.answer)
		}
	}
	r.unready(r.c, "database")
	if !strings.Contains(r.api.Log(), "sale stopped: the database is older than Redis") {
		r.t.Errorf("the log does not name the reason:\n%s", r.api.Log())
	}
	metrics, err := dialAddr(r.t, r.api.OpsURL()).do("GET", "/metrics", "", "")
	if err != nil || !strings.Contains(metrics.Body, "\nflashsale_sales_stopped 1\n") {
		r.t.Errorf("no flashsale_sales_stopped of 1 (%v):\n%s", err, metrics.Body)
	}
	wantCode(r.t, 1, r.run("doctor"), "it is older than Redis", "drop-1", "flashsale recover --from redis")
	for _, args := range [][]string{{"reconcile"}, {"reconcile", "--repair"}} {
		wantCode(r.t, 1, r.run(append(args, "--server", r.api.URL())...), "drop-1: database_old", "not repaired")
	}
	if a := r.c.get("/v1/orders/"+r.bought[1].Order.ID, "u2"); a.verdict() != "503 sale_stopped" {
		r.t.Errorf("u2 reads the lost order: %s, want 503 sale_stopped", a.verdict())
	}
	if a := r.c.send(r.bought[0].Order.ID, "cancel", "u1", auth.RoleBuyer, ""); a.verdict() != "503 sale_stopped" {
		r.t.Errorf("u1 cancels: %s, want 503 sale_stopped", a.verdict())
	}
	for _, change := range []string{"pause", "restock"} {
		headers := []string{"Content-Type", "application/json", "Idempotency-Key", change}
		body := ""
		if change == "restock" {
			body = `{"quantity":1,"reason":"r"}`
		}
		a, err := r.c.do("POST", "/v1/admin/items/"+r.item+"/"+change, r.c.token("root", auth.RoleAdmin), body, headers...)
		if err != nil || a.verdict() != "503 sale_stopped" {
			r.t.Errorf("%s: %s, %v, want 503 sale_stopped", change, a.verdict(), err)
		}
	}
}

// sells waits until the service is ready, and checks that it sells the given units.
func (r *rolledBack) sells(left int) {
	r.t.Helper()
	eventually(r.t, "the service is ready", soon, func() (bool, any) {
		a := r.c.get("/readyz", "u")
		return a.Status == 200, a.Body
	})
	for i := range 3 {
		p := r.c.settle(r.item, r.c.buy(r.item, "late-"+string(rune('a'+i)), "k", untilCommitted...))
		if i < left {
			only(r.t, []purchase{p}, "201", "202") // 202: on a busy machine the commit takes longer than the wait
		} else {
			only(r.t, []purchase{p}, "409 sold_out")
		}
	}
	if l := r.ledger(r.c, r.item); l.Sold+l.Held != 3 || l.Left != 0 {
		r.t.Errorf("ledger %+v, want 3 units sold and none left", l)
	}
	wantCode(r.t, 0, r.run("reconcile", "--server", r.api.URL()))
	if doctor := r.run("doctor"); !strings.Contains(doctor.Output, "it is not older than Redis") {
		r.t.Errorf("doctor:\n%s", doctor.Output)
	}
}

// After a restored backup no unit is sold twice, and the orders that only Redis has are orders
// again.
func TestRollback_FromRedisRestoresOrders(t *testing.T) {
	needProcesses(t)
	r := newRolledBack(t, 0)
	r.stops()
	list := filepath.Join(r.dir, "orders.jsonl")
	wantCode(t, 0, r.run("recover", "--from", "redis", "--list", list), "drop-1", "sales recovered: 1;", list)
	want := []string{r.bought[1].Order.ID, r.bought[2].Order.ID}
	slices.Sort(want)
	if got := listed(t, list); !slices.Equal(got["recreated"], want) || len(got) != 1 {
		t.Errorf("listed %v, want %v recreated", got, want)
	}
	r.sells(0)
	for i, p := range r.bought {
		again := r.c.settle(r.item, r.c.buy(r.item, p.user, "k", untilCommitted...))
		if again.verdict() != "201" || !again.replayed() || again.Order.ID != p.Order.ID {
			t.Errorf("buyer %d repeats: %s, order %s, want %s", i+1, again.verdict(), again.Order.ID, p.Order.ID)
		}
	}
	wantCode(t, 0, r.run("recover", "--from", "redis", "--item", r.item), "no sale is stopped")
	wantCode(t, 1, r.run("recover", "--from", "redis", "--item", "nope"), `--item "nope": there is no such item, and no sale is stopped`, "item list")
	away := r.run("recover", "--from", "redis", "--redis", "redis://"+process.FreeAddr(t))
	wantCode(t, 1, away, "FLASHSALE_REDIS", "start it")
	if strings.Count(away.Output, "\n") != 1 {
		t.Errorf("the message is not one line:\n%s", away.Output)
	}
}

// The orders that only Redis has are listed, and their units are sold again once.
func TestRollback_FromDatabaseSellsUnitsAgain(t *testing.T) {
	needProcesses(t)
	r := newRolledBack(t, 0)
	r.stops()
	list := filepath.Join(r.dir, "orders.jsonl")
	wantCode(t, 1, r.run("recover", "--from", "database", "--item", "nope", "--list", list), `--item "nope": there is no such item; the sales of `+r.item+" are stopped")
	// "-" prints the list, and only the list, to standard output.
	script := `exec "$@" recover --from database --item ` + r.item + ` --list - >` + list
	spec := process.Spec{Binary: "/bin/sh", Args: append([]string{"-c", script, "sh", process.Build(t)}, r.settings()...), Dir: r.dir}
	wantCode(t, 0, process.Run(t, spec), "sales recovered: 1;", "listed in standard output")
	want := []string{r.bought[1].Order.ID, r.bought[2].Order.ID}
	slices.Sort(want)
	if got := listed(t, list); !slices.Equal(got["discarded"], want) || len(got) != 1 {
		t.Errorf("listed %v, want %v discarded", got, want)
	}
	wantCode(t, 0, process.Run(t, spec), "no sale is stopped")
	r.sells(2)
}

// Changes of a sale after the backup other than purchases are also recovered from Redis:
// released units, a restock, and a change of the item. The epoch has increased since the
// backup.
func TestRollback_RecoversReleasesRestocksAndChanges(t *testing.T) {
	needProcesses(t)
	needSQLite(t)
	s := newRedisShop(t)
	w, p := s.worker(), s.api()
	c := dial(t, p)
	item := s.newHeldItem(c, 3, 600)
	buy := func(user string) purchase {
		t.Helper()
		b := c.settle(item, c.buy(item, user, "k", untilCommitted...))
		only(t, []purchase{b}, "201")
		return b
	}
	paid, cancelled := buy("paid"), buy("cancelled")
	backup := s.snapshot()
	if err := s.rdb.FlushAll(t.Context()).Err(); err != nil { // increases the epoch
		t.Fatal(err)
	}
	if a := c.send(paid.Order.ID, "payment", "psp", auth.RoleService, rightPayment); a.Status != 200 {
		t.Fatalf("pay: %s", a.verdict())
	}
	eventually(t, "the order is cancelled", soon, func() (bool, any) {
		a := c.send(cancelled.Order.ID, "cancel", "cancelled", auth.RoleBuyer, "")
		return a.Status == 200, a.verdict()
	})
	lost := []purchase{buy("lost-1"), buy("lost-2")}
	eventually(t, "the item is restocked", soon, func() (bool, any) {
		a, err := c.do("POST", "/v1/admin/items/"+item+"/restock", c.token("root", auth.RoleAdmin), `{"quantity":2,"reason":"r"}`,
			"Content-Type", "application/json", "Idempotency-Key", "more")
		return err == nil && a.Status == 200, a.verdict()
	})
	lost = append(lost, buy("lost-3"))
	p.Stop()
	w.Stop()
	s.putBack(backup)
	s.worker()
	p = s.unreadyAPI()
	c = dial(t, p)
	s.unready(c, "database")
	list := filepath.Join(s.dir, "orders.jsonl")
	wantCode(t, 0, s.run("recover", "--from", "redis", "--list", list), "5 (was 3)")
	got := listed(t, list)
	if len(got["recreated"]) != 3 || len(got["cancelled"]) != 1 || len(got) != 2 || got["cancelled"][0] != cancelled.Order.ID {
		t.Errorf("listed %v, want 3 recreated and %s cancelled", got, cancelled.Order.ID)
	}
	eventually(t, "the service is ready", soon, func() (bool, any) {
		a := c.get("/readyz", "u")
		return a.Status == 200, a.Body
	})
	last := c.settle(item, c.buy(item, "last", "k", untilCommitted...))
	only(t, []purchase{last, c.buy(item, "too-late", "k", untilCommitted...)}, "201", "202", "409 sold_out")
	for _, b := range lost {
		if again := c.settle(item, c.buy(item, b.user, "k", untilCommitted...)); again.Order.ID != b.Order.ID || !again.replayed() {
			t.Errorf("%s repeats: %s, order %s, want %s", b.user, again.verdict(), again.Order.ID, b.Order.ID)
		}
	}
	if a := c.send(paid.Order.ID, "payment", "psp", auth.RoleService, rightPayment); a.Status != 200 {
		t.Errorf("the provider repeats the payment: %s", a.verdict())
	}
	if l := s.ledger(c, item); l.Initial != 3 || l.Restocked != 2 || l.Left != 0 || l.Held != 4 || l.Sold != 1 {
		t.Errorf("ledger %+v, want 3 + 2 = 0 + 4 + 1", l)
	}
	wantCode(t, 0, s.run("reconcile", "--server", p.URL()))
}
