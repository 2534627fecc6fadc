//go:build chaos && unix

package chaos

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"flashsale/internal/testing/disktest"
	"flashsale/internal/verify/history"
)

func init() {
	register(fault{
		ID: "F12a", Name: "database locked", DB: "sqlite", Lasts: lockHeld + 2*time.Second,
		Strike: lockDatabase, Expect: expectDatabase,
	})
	var disk *disktest.Disk
	register(fault{
		ID: "F12b", Name: "database disk full", DB: "sqlite", Lasts: 6 * time.Second,
		Folder: func(t *testing.T) string {
			disk = disktest.New(t, databaseDisk)
			return disk.Path()
		},
		Strike: func(ctx context.Context, r *run) { fillDatabaseDisk(ctx, r, disk) },
		Expect: func(ctx context.Context, r *run) {
			r.logged("disk is full")
			expectDatabase(ctx, r)
		},
	})
	register(fault{
		ID: "F12c", Name: "database read-only", DB: "sqlite", Lasts: 6 * time.Second,
		Strike: denyDatabase,
		Expect: func(ctx context.Context, r *run) {
			r.logged("disk I/O error", "readonly")
			expectDatabase(ctx, r)
		},
	})
}

const (
	// lockHeld is twice as long as a statement waits for the lock.
	lockHeld = 10 * time.Second
	// databaseDisk is enough for twice the largest sale, in bytes.
	databaseDisk = 96 << 20
	// brokenFor is how long the database cannot be written to in the other faults.
	brokenFor = 4 * time.Second
)

// lockDatabase holds the database's exclusive lock with its own connection.
func lockDatabase(ctx context.Context, r *run) {
	conn := r.shop.store.stranger(ctx, r.t)
	if _, err := conn.ExecContext(ctx, "BEGIN EXCLUSIVE"); err != nil {
		r.t.Fatalf("lock database: %v", err)
	}
	s := r.broken(ctx, "database locked", lockHeld)
	if _, err := conn.ExecContext(ctx, "ROLLBACK"); err != nil {
		r.t.Fatalf("unlock database: %v", err)
	}
	r.writable(ctx, s)
}

// fillDatabaseDisk fills the disk of the database and then frees it.
func fillDatabaseDisk(ctx context.Context, r *run, disk *disktest.Disk) {
	// SQLite would overwrite an existing WAL from its beginning, which needs no space. An empty
	// one must grow.
	conn := r.shop.store.stranger(ctx, r.t)
	if _, err := conn.ExecContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)"); err != nil {
		r.t.Fatalf("empty the database's log: %v", err)
	}
	disk.Fill()
	s := r.broken(ctx, "database disk full", brokenFor)
	disk.Free()
	r.writable(ctx, s)
}

// denyDatabase makes the database's files refuse writes for a while.
func denyDatabase(ctx context.Context, r *run) {
	path := r.shop.store.path
	allow := disktest.Deny(r.t, path, path+"-wal")
	s := r.broken(ctx, "database read-only", brokenFor)
	allow()
	r.writable(ctx, s)
}

// broken records that the database refuses writes from now on, and meanwhile tests the routes
// that use it.
func (r *run) broken(ctx context.Context, how string, lasts time.Duration) *span {
	r.t.Helper()
	return r.obstructed(ctx, how, lasts, func(ctx context.Context) { r.unready(ctx, how) })
}

// obstructed is broken for a database that refuses or delays some writes. The check of readiness
// may not meet them.
func (r *run) obstructed(ctx context.Context, how string, lasts time.Duration, also func(ctx context.Context)) *span {
	r.t.Helper()
	r.struck(how)
	s := r.measure(how)
	ctx, cancel := context.WithTimeout(ctx, lasts)
	defer cancel()
	r.tryRoutes(context.WithoutCancel(ctx), how)
	if also != nil {
		also(ctx)
	}
	<-ctx.Done()
	return s
}

// unready waits until every API process reports that it is not ready, with the reason.
func (r *run) unready(ctx context.Context, how string) {
	r.t.Helper()
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for _, url := range r.shop.urls() {
		var said string
		err := r.await(ctx, patience, func() bool {
			said = readiness(ctx, client, url)
			return strings.HasPrefix(said, "503 ") && strings.Contains(said, `"database"`)
		})
		if err != nil {
			r.failf("%s: %s/readyz does not name the database: %s", how, url, said)
		}
	}
}

// readiness returns the status and the body of /readyz.
func readiness(ctx context.Context, client *http.Client, url string) string {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/readyz", http.NoBody)
	if err != nil {
		return err.Error()
	}
	resp, err := client.Do(q)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprint(resp.StatusCode, " ", string(body))
}

// tryRoutes calls routes that need the database. Each call must succeed or be answered 503 with
// a Retry-After.
func (r *run) tryRoutes(ctx context.Context, how string) {
	r.t.Helper()
	c, err := r.caller()
	if err != nil {
		r.t.Fatal(err)
	}
	defer c.close()
	item := r.plan.Items[0].ID
	r.chooseOrder(ctx)
	order, user := r.order, r.user
	for _, q := range []struct {
		h                  history.Call
		method, path, role string
		body               string
		headers            []string
	}{
		{history.Call{Op: history.Get, User: user, Order: order}, "GET", "/v1/orders/" + order, "buyer", "", nil},
		{history.Call{Op: history.Get, User: user}, "GET", "/v1/orders", "buyer", "", nil},
		{history.Call{Op: history.Get}, "GET", "/v1/admin/items/" + item, "admin", "", nil},
		{history.Call{Op: history.Get}, "GET", "/v1/admin/items/" + item + "/ledger", "admin", "", nil},
		{history.Call{Op: history.Cancel, User: user, Order: order}, "POST", "/v1/orders/" + order + "/cancel", "buyer", "", nil},
		{
			history.Call{Op: history.Restock, Quantity: 1, Key: "meanwhile"}, "POST", "/v1/admin/items/" + item + "/restock", "admin",
			`{"quantity":1,"reason":"meanwhile"}`, []string{"Idempotency-Key", "meanwhile"},
		},
	} {
		q.h.Client, q.h.Item = stormClients, item
		kept := q.h.Order != "" || q.h.Op == history.Restock // the others do not concern an order
		a := c.call(ctx, r.now, 0, &q.h, q.method, q.path, q.role, q.body, q.headers...)
		if kept {
			r.saw(&q.h)
		}
		switch {
		case a.status == 200:
		case a.status == 503 && a.retryAfter >= 1:
		default:
			r.failf("%s: %s %s: %d %s %s, Retry-After %d", how, q.method, q.path, a.status, q.h.Code, q.h.Err, a.retryAfter)
		}
	}
}

// chooseOrder chooses the order whose routes are tried, unless it has done that before.
func (r *run) chooseOrder(ctx context.Context) {
	r.t.Helper()
	if r.order != "" {
		return
	}
	const first = "SELECT id, user_id FROM orders WHERE item_id = $1 LIMIT 1"
	if err := r.shop.store.db.QueryRowContext(ctx, first, r.plan.Items[0].ID).Scan(&r.order, &r.user); err != nil {
		r.t.Fatalf("read an order: %v", err)
	}
}

// writable records that the database accepts writes again, and waits until the service recovers.
func (r *run) writable(ctx context.Context, s *span) {
	r.t.Helper()
	r.end(s)
	// Transactions in progress when the fault began may have been committed.
	rows := r.rows(ctx)
	r.over()
	since := time.Now()
	r.recovered(ctx)
	r.eventually(ctx, "orders are committed again", func() bool {
		r.load.allow()
		return r.rows(ctx) > rows
	})
	r.notef("committed again after %.2f s", time.Since(since).Seconds())
}

// rows counts the orders in the database.
func (r *run) rows(ctx context.Context) int64 {
	r.t.Helper()
	n, err := r.shop.store.count(ctx)
	if err != nil {
		r.t.Fatalf("count orders: %v", err)
	}
	return n
}

// logged makes the run void unless a process has logged one of these words: otherwise the
// fault had no effect.
func (r *run) logged(words ...string) {
	for _, m := range append(r.shop.workers[:len(r.shop.workers):len(r.shop.workers)], r.shop.apis...) {
		log := m.allLogs()
		for _, w := range words {
			if strings.Contains(log, w) {
				return
			}
		}
	}
	r.voidf("no process has complained of %q", words)
}

// expectDatabase checks the answers given while the database refused writes, and the database
// itself.
func expectDatabase(ctx context.Context, r *run) {
	noDeadLetters(ctx, r)
	for _, s := range r.spans {
		r.report(s)
		r.politely(s)
		for status, n := range s.others {
			r.failf("%s: %d answers %d", s.name, n, status)
		}
		if s.unknown > 0 {
			r.failf("%s: %d purchases were not answered", s.name, s.unknown)
		}
	}
	r.intact(ctx)
}

// intact runs the database's own integrity check.
func (r *run) intact(ctx context.Context) {
	if r.shop.store.server != nil {
		r.intactPostgres(ctx)
		return
	}
	conn := r.shop.store.stranger(ctx, r.t)
	for _, check := range []struct{ pragma, want string }{
		{"PRAGMA integrity_check", "ok"},
		{"PRAGMA foreign_key_check", ""},
	} {
		found, err := texts(ctx, conn, check.pragma)
		if err != nil || found != check.want {
			r.failf("%s: %q, %v", check.pragma, found, err)
		}
	}
}

// texts returns the first column of a statement's result.
func texts(ctx context.Context, conn *sql.Conn, statement string) (string, error) {
	rows, err := conn.QueryContext(ctx, statement)
	if err != nil {
		return "", err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return "", err
	}
	var all []string
	for rows.Next() {
		values := make([]any, len(columns))
		for i := range values {
			values[i] = new(any)
		}
		if err := rows.Scan(values...); err != nil {
			return "", err
		}
		all = append(all, fmt.Sprint(*values[0].(*any)))
	}
	return strings.Join(all, "; "), rows.Err()
}

// count counts the orders in the database.
func (s *store) count(ctx context.Context) (n int64, err error) {
	err = s.db.QueryRowContext(ctx, "SELECT COUNT(*) FROM orders").Scan(&n)
	return n, err
}
