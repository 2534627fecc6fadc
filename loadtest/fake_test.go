package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

const (
	fakeSecret = "a-secret-of-the-tests-with-more-than-32-bytes"
	fakeAdmin  = "the-admin-token"
)

// fake is a service that implements the contract on a real SQLite file. Its fields select the
// promise that it breaks; the zero value breaks none.
type fake struct {
	oversell    int64 // units sold beyond the stock
	loseEvery   int   // acknowledges each nth order without writing it
	rejectEvery int   // acknowledges each nth order and then rejects it
	twoRows     bool  // writes a second row for each key
	twoIDs      bool  // forgets keys: a repeat makes another order
	noLimit     bool  // ignores the limit
	stopAt      int64 // answers sold_out after so many units, if not 0
	badLedger   bool  // returns a ledger that does not add up
	wrongBuyer  bool  // answers with another buyer's order
	refuseAgain bool  // answers a repeat of a key with sold_out
	devTokens   bool  // answers POST /dev/tokens
	first       int   // status of the answer to the first request of each key, if not 0
	cutFirst    bool  // cuts the connection after the first purchase of each key
	queued      bool  // answers 202
	slowLedger  int   // returns so many ledgers that lag behind
	late        bool  // writes rows some time after the answer, as a worker does
	tooSlow     bool  // opens a little later than it states
	noPage      bool  // answers readers of the item's page 503 once it is open
	hostile     bool  // refuses with a code that is HTML
	mute        bool  // cuts the connection of each buyer for whom nothing is left
	forbid      bool  // refuses with 403 if nothing is left
	cheap       bool  // answers with another price
	cheapRows   bool  // writes another price

	t       testing.TB
	db      *sql.DB
	workers sync.WaitGroup
	// dsn is the --db that reads the file.
	dsn string
	url string
	mux *http.ServeMux

	mu      sync.Mutex
	item    struct{ ID string }
	opens   time.Time
	stock   int64
	limit   int64
	sold    int64
	byKey   map[string]map[string]any
	byBuyer map[string]int64
	seen    map[string]int
	orders  int
	pages   int
	prefer  map[string]int
}

// hostileCode ends a script, an attribute and an element if it is not escaped.
const hostileCode = `</script><script>alert(1)</script>'><b x=`

// serve starts the fake, without what it sold before.
func (f *fake) serve(t testing.TB) *fake {
	t.Helper()
	f.workers.Wait()
	f.t, f.sold, f.orders, f.pages = t, 0, 0, 0
	f.byKey, f.byBuyer = map[string]map[string]any{}, map[string]int64{}
	f.seen, f.prefer = map[string]int{}, map[string]int{}
	path := filepath.Join(t.TempDir(), "a shop?.db") // a name that must be escaped in a DSN
	f.dsn = "sqlite:" + path
	db, err := sql.Open("sqlite3", "file:"+strings.ReplaceAll(strings.ReplaceAll(path, "?", "%3F"), " ", "%20")+"?_journal_mode=WAL&_synchronous=OFF&_busy_timeout=5000")
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	f.db = db
	// No unique index on the idempotency key, because some fakes store a key twice.
	if _, err := db.ExecContext(t.Context(), `CREATE TABLE orders (id TEXT PRIMARY KEY, item_id TEXT NOT NULL, user_id TEXT NOT NULL,
		quantity INTEGER NOT NULL, unit_price_minor INTEGER NOT NULL, status TEXT NOT NULL, idempotency_key TEXT NOT NULL)`); err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/admin/items", f.admin(f.create))
	mux.HandleFunc("GET /v1/items/{item}", f.show)
	mux.HandleFunc("GET /v1/items", f.items)
	mux.HandleFunc("GET /v1/admin/queue", f.admin(f.queue))
	mux.HandleFunc("POST /v1/items/{item}/orders", f.buy)
	mux.HandleFunc("GET /v1/admin/items/{item}/ledger", f.admin(f.ledger))
	mux.HandleFunc("GET /v1/orders", f.admin(f.list))
	mux.HandleFunc("POST /dev/tokens", f.token)
	srv := httptest.NewServer(mux)
	f.url, f.mux = srv.URL, mux
	t.Cleanup(func() {
		srv.Close()
		f.workers.Wait()
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

func (f *fake) answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(v); err != nil {
		f.t.Errorf("fake: write answer: %v", err)
	}
}

func (f *fake) problem(w http.ResponseWriter, status int, code string) {
	f.answer(w, status, map[string]any{"title": "no", "status": status, "code": code})
}

func (f *fake) admin(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "); token != fakeAdmin && token != "dev:admin:loadtest-admin" {
			f.problem(w, 403, "forbidden")
			return
		}
		next(w, r)
	}
}

func (f *fake) create(w http.ResponseWriter, r *http.Request) {
	var item struct {
		ID           string
		Stock        int64
		PerUserLimit int64     `json:"per_user_limit"`
		Opens        time.Time `json:"opens_at"`
	}
	if err := json.NewDecoder(r.Body).Decode(&item); err != nil {
		f.problem(w, 400, "json_invalid")
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.item.ID, f.stock, f.limit, f.opens = item.ID, item.Stock, item.PerUserLimit, item.Opens
	f.answer(w, 201, f.page())
}

// page is the item as readers see it. The fake's lock is held.
func (f *fake) page() map[string]any {
	now := time.Now()
	state := "open"
	if now.Before(f.opens) {
		state = "scheduled"
	}
	return map[string]any{"id": f.item.ID, "state": state, "stock_left": f.stock - f.sold, "opens_at": f.opens, "server_time": now}
}

func (f *fake) show(w http.ResponseWriter, _ *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pages++
	if f.noPage && f.pages > 1 { // the first one is read before the start
		f.problem(w, 503, "unavailable")
		return
	}
	f.answer(w, 200, f.page())
}

func (f *fake) items(w http.ResponseWriter, _ *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer(w, 200, map[string]any{"items": []any{f.page()}, "next_cursor": ""})
}

func (f *fake) queue(w http.ResponseWriter, _ *http.Request) {
	f.answer(w, 200, map[string]any{"queues": []any{
		map[string]any{"name": "orders-0", "orders": 3, "oldest_age_ms": 1.5},
		map[string]any{"name": "orders-1", "orders": 4, "oldest_age_ms": 2.5},
		map[string]any{"name": "expiries-0", "orders": 100, "oldest_age_ms": 9000},
	}})
}

func (f *fake) token(w http.ResponseWriter, r *http.Request) {
	if !f.devTokens {
		f.problem(w, 404, "route_not_found")
		return
	}
	var body struct{ Sub, Role string }
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		f.problem(w, 400, "json_invalid")
		return
	}
	f.answer(w, 200, map[string]any{"token": "dev:" + body.Role + ":" + body.Sub})
}

// buyer reads the identity from a token of either kind.
func (f *fake) buyer(r *http.Request) string {
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	if sub, ok := strings.CutPrefix(token, "dev:buyer:"); ok && f.devTokens {
		return sub
	}
	claims := jwt.MapClaims{}
	if _, err := jwt.ParseWithClaims(token, claims, func(*jwt.Token) (any, error) { return []byte(fakeSecret), nil },
		jwt.WithValidMethods([]string{"HS256"}), jwt.WithAudience("flashsale"), jwt.WithExpirationRequired()); err != nil || claims["role"] != "buyer" {
		return ""
	}
	sub, err := claims.GetSubject()
	if err != nil {
		return ""
	}
	return sub
}

func (f *fake) buy(w http.ResponseWriter, r *http.Request) {
	buyer, key := f.buyer(r), r.Header.Get("Idempotency-Key")
	if buyer == "" {
		f.problem(w, 401, "token_claims")
		return
	}
	body, err := io.ReadAll(r.Body)
	var want struct{ Quantity int64 }
	if err = errors.Join(err, json.Unmarshal(body, &want)); err != nil || key == "" || r.Header.Get("Content-Type") != "application/json" {
		f.problem(w, 400, "json_invalid")
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.prefer[r.Header.Get("Prefer")]++
	f.seen[key]++
	if f.tooSlow && len(f.seen) == 1 && f.seen[key] == 1 {
		f.opens = time.Now().Add(200 * time.Millisecond) // however late the first purchase comes
	}
	if time.Now().Before(f.opens) {
		w.Header().Set("Retry-After", "1")
		f.problem(w, 409, "sale_not_open")
		return
	}
	if f.first > 0 && f.seen[key] == 1 {
		w.Header().Set("Retry-After", "0")
		f.problem(w, f.first, "first")
		return
	}
	if o := f.byKey[key]; o != nil && !f.twoIDs {
		if f.refuseAgain {
			f.problem(w, 409, "sold_out")
			return
		}
		w.Header().Set("Idempotent-Replayed", "true")
		f.answer(w, 201, o)
		return
	}
	f.decide(w, r, buyer, key, want.Quantity)
}

// decide sells or refuses. The fake's lock is held.
func (f *fake) decide(w http.ResponseWriter, r *http.Request, buyer, key string, quantity int64) {
	switch {
	case f.byBuyer[buyer]+quantity > f.limit && !f.noLimit && !f.twoIDs:
		f.problem(w, 409, "user_limit")
		return
	case f.sold+quantity > f.stock+f.oversell, f.stopAt > 0 && f.sold+quantity > f.stopAt:
		f.refuse(w)
		return
	}
	f.sold += quantity
	f.byBuyer[buyer] += quantity
	f.orders++
	o := map[string]any{"id": fmt.Sprintf("order-%d", f.orders), "item_id": r.PathValue("item"), "user_id": buyer, "quantity": quantity,
		"unit_price_minor": priceMinor, "currency": currency, "status": "confirmed"}
	if f.cheap {
		o["unit_price_minor"] = priceMinor - 1
	}
	f.byKey[key] = o
	if f.loseEvery == 0 || f.orders%f.loseEvery != 0 {
		status := "confirmed"
		if f.rejectEvery > 0 && f.orders%f.rejectEvery == 0 {
			status = "rejected"
		}
		if f.late {
			f.workers.Add(1)
			time.AfterFunc(150*time.Millisecond, func() {
				defer f.workers.Done()
				f.insert(o["id"].(string), r.PathValue("item"), buyer, key, status, quantity)
			})
		} else {
			f.insert(o["id"].(string), r.PathValue("item"), buyer, key, status, quantity)
		}
		if f.twoRows {
			f.insert(o["id"].(string)+"-again", r.PathValue("item"), buyer, key, status, quantity)
		}
	}
	if f.cutFirst && f.seen[key] == 1 {
		panic(http.ErrAbortHandler)
	}
	if f.wrongBuyer {
		o = maps.Clone(o)
		o["user_id"] = "somebody"
	}
	if f.queued {
		f.answer(w, 202, o)
		return
	}
	f.answer(w, 201, o)
}

// refuse answers a buyer for whom nothing is left. The fake's lock is held.
func (f *fake) refuse(w http.ResponseWriter) {
	switch {
	case f.mute:
		panic(http.ErrAbortHandler)
	case f.forbid:
		f.problem(w, 403, "forbidden")
	case f.hostile:
		f.problem(w, 409, hostileCode)
	default:
		f.problem(w, 409, "sold_out")
	}
}

func (f *fake) insert(id, item, buyer, key, status string, quantity int64) {
	price := priceMinor
	if f.cheapRows {
		price--
	}
	if _, err := f.db.ExecContext(context.WithoutCancel(f.t.Context()), `INSERT INTO orders VALUES (?, ?, ?, ?, ?, ?, ?)`, id, item, buyer, quantity, price, status, key); err != nil {
		f.t.Errorf("fake: insert: %v", err)
	}
}

func (f *fake) ledger(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var held int64
	if err := f.db.QueryRowContext(r.Context(), `SELECT coalesce(sum(quantity), 0) FROM orders WHERE status <> 'rejected'`).Scan(&held); err != nil {
		f.t.Errorf("fake: ledger: %v", err)
	}
	left := f.stock - held
	if f.badLedger || f.slowLedger > 0 {
		left++
		f.slowLedger--
	}
	f.answer(w, 200, map[string]any{"initial": f.stock, "restocked": 0, "left": left, "held": 0, "sold": held, "balanced": !f.badLedger})
}

// list pages through the orders, a few at a time so that cursors matter.
func (f *fake) list(w http.ResponseWriter, r *http.Request) {
	const page = 7
	rows, err := f.db.QueryContext(r.Context(), `SELECT id, item_id, user_id, quantity, unit_price_minor, status FROM orders WHERE item_id = ? AND id > ? ORDER BY id LIMIT ?`,
		r.URL.Query().Get("item_id"), r.URL.Query().Get("cursor"), page)
	if err != nil {
		f.t.Errorf("fake: list: %v", err)
		return
	}
	defer func() {
		if err := rows.Close(); err != nil {
			f.t.Errorf("fake: list: %v", err)
		}
	}()
	orders := []map[string]any{}
	next := ""
	for rows.Next() {
		var id, item, user, status string
		var quantity, price int64
		if err := rows.Scan(&id, &item, &user, &quantity, &price, &status); err != nil {
			f.t.Errorf("fake: list: %v", err)
			return
		}
		orders = append(orders, map[string]any{"id": id, "item_id": item, "user_id": user, "quantity": quantity, "unit_price_minor": price, "status": status})
		next = id
	}
	if err := rows.Err(); err != nil {
		f.t.Errorf("fake: list: %v", err)
	}
	if len(orders) < page {
		next = ""
	}
	f.answer(w, 200, map[string]any{"orders": orders, "next_cursor": next})
}
