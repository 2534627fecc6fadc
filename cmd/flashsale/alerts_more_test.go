//go:build unix

package main_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"flashsale/handler/auth"
	"flashsale/internal/testing/disktest"
	"flashsale/internal/testing/redistest"
	"flashsale/queue"
)

// alertsPoison enqueues a task that cannot be read.
func alertsPoison(t *testing.T) {
	s := newRedisShop(t)
	api, worker := s.api(often...), s.worker()
	w := s.watch(api, worker)
	w.calm()
	status, err := s.tasks.Enqueue(t.Context(), queue.Task{ID: "poison", Payload: []byte("garbage")})
	if err != nil || status[0] != queue.StatusOK {
		t.Fatalf("enqueue: %v, %v", status, err)
	}
	w.fire(nil, "FlashsaleDeadLetters orders-0")
	wantCode(t, 0, s.run("queue", "dead", "--server", api.URL()), "poison")
	wantCode(t, 0, s.run("queue", "retry", "--all", "--server", api.URL()), "1 dead letter done")
	eventually(t, "it fails again", soon, func() (bool, any) {
		r := s.run("queue", "discard", "poison", "--server", api.URL())
		return r.Code == 0, r.Output
	})
	w.end()
}

// alertsLedgerDamaged changes the database's count of sold units.
func alertsLedgerDamaged(t *testing.T) {
	s := newRedisShop(t)
	api, worker := s.api(often...), s.worker()
	c := dial(t, api)
	item := s.newItem(c, 9, 1)
	only(t, []purchase{c.buy(item, "alice", "k", untilCommitted...)}, "201")
	w := s.watch(api, worker)
	w.calm()
	s.write("UPDATE items SET sold = 3 WHERE id = ?1", item)
	w.fire(nil, "FlashsaleLedgerDiffers")
	if text := api.Log(); !strings.Contains(text, "Redis and database differ") || !strings.Contains(text, item) {
		t.Errorf("the log of the API:\n%s", text)
	}
	wantCode(t, 1, s.run("reconcile", "--server", api.URL()), item+": sold: expected 1, found 3")
	wantCode(t, 0, s.run("reconcile", "--repair", "--server", api.URL()), "repaired")
	w.end()
	wantCode(t, 0, s.run("reconcile", "--server", api.URL()))
}

// alertsSaleOverwritten overwrites the sale of one of two items with a value of another type.
func alertsSaleOverwritten(t *testing.T) {
	s := newRedisShop(t)
	api, worker := s.api(often...), s.worker()
	c := dial(t, api)
	item, other := s.newItem(c, 9, 1), s.newItem(c, 8, 1)
	only(t, []purchase{c.buy(item, "alice", "k", untilCommitted...), c.buy(other, "alice", "k", untilCommitted...)}, "201")
	w := s.watch(api, worker)
	w.calm()
	sale := "fs:{p0}:sale:" + item
	if err := s.rdb.Set(t.Context(), sale, "junk", 0).Err(); err != nil {
		t.Fatal(err)
	}
	w.fire(nil, "FlashsaleReconcileStalled "+api.Spec().OpsAddr)
	if text := api.Log(); !strings.Contains(text, "item not reconciled") || !strings.Contains(text, "WRONGTYPE") {
		t.Errorf("the log of the API:\n%s", text)
	}
	wantCode(t, 1, s.run("reconcile", "--server", api.URL()), "1 not examined")
	if err := s.rdb.Del(t.Context(), sale).Err(); err != nil {
		t.Fatal(err)
	}
	w.end()
	wantCode(t, 0, s.run("reconcile", "--server", api.URL()), "0 not examined")
}

// alertsMismatch reports a payment of the wrong amount.
func alertsMismatch(t *testing.T) {
	s := newRedisShop(t)
	api, worker := s.api(often...), s.worker()
	c := dial(t, api)
	item := s.newHeldItem(c, 2, 3600)
	bought := c.buy(item, "alice", "k", untilCommitted...)
	only(t, []purchase{bought}, "201")
	w := s.watch(api, worker)
	w.calm()
	if a := c.send(bought.Order.ID, "payment", "psp", auth.RoleService, `{"reference":"short","amount_minor":1,"currency":"EUR"}`); a.verdict() != "409 amount_mismatch" {
		t.Fatalf("pay: %s", a.verdict())
	}
	w.fire(nil, "FlashsaleRefundsWaiting")
	list := s.run("payment", "list", "--needs-refund", "--server", api.URL())
	wantCode(t, 0, list, "short", bought.Order.ID)
	for line := range strings.Lines(list.Output) {
		if f := strings.Fields(line); strings.Contains(line, " short ") {
			wantCode(t, 0, s.run("payment", "refunded", f[0], "--server", api.URL()))
		}
	}
	w.end()
	if r := s.run("payment", "list", "--needs-refund", "--server", api.URL()); strings.Contains(r.Output, "short") {
		t.Errorf("still to be refunded:\n%s", r.Output)
	}
}

// alertsReceiverFails lets the shop's server refuse a webhook.
func alertsReceiverFails(t *testing.T) {
	s := newRedisShop(t)
	api, worker := s.api(append(allowLocal, often...)...), s.worker(allowLocal...)
	c := dial(t, api)
	in := newInbox(t, 500)
	h := c.newHook(in, "order.confirmed")
	item := s.newItem(c, 2, 1)
	w := s.watch(api, worker)
	w.calm()
	only(t, []purchase{c.buy(item, "alice", "k", untilCommitted...)}, "201")
	w.fire(nil, "FlashsaleWebhooksFailing")
	in.mu.Lock()
	in.status = 200
	in.mu.Unlock()
	list := c.admin("GET", "/v1/admin/webhooks/"+h.ID+"/deliveries?status=pending", nil)
	var pending struct {
		Deliveries []struct {
			Event     string
			LastError string `json:"last_error"`
		}
	}
	if err := json.Unmarshal([]byte(list.Body), &pending); err != nil || len(pending.Deliveries) != 1 || pending.Deliveries[0].LastError == "" {
		t.Fatalf("pending: %s, %v", list.Body, err)
	}
	if a := c.admin("POST", "/v1/admin/webhooks/"+h.ID+"/deliveries/"+pending.Deliveries[0].Event+"/redeliver", nil); a.Status != 202 {
		t.Fatalf("redeliver: %s", a.Body)
	}
	w.end()
}

// alertsRestored restores a backup that lacks two orders.
func alertsRestored(t *testing.T) {
	needSQLite(t)
	s := newRedisShop(t)
	s.letGo()
	api, worker := s.api(often...), s.worker()
	c := dial(t, api)
	item := s.newItem(c, 3, 1)
	kept := c.buy(item, "u1", "k", untilCommitted...)
	file := filepath.Join(t.TempDir(), "copy.db")
	wantCode(t, 0, s.run("backup", file))
	lost := []purchase{c.buy(item, "u2", "k", untilCommitted...), c.buy(item, "u3", "k", untilCommitted...)}
	only(t, append(lost, kept), "201")
	api.Stop()
	worker.Stop()
	wantCode(t, 0, s.run("restore", file))
	api, worker = s.unreadyAPI(often...), s.worker()
	w := s.watch(api, worker)
	w.fire(nil, "FlashsaleSalesStopped", "FlashsaleNotReady "+api.Spec().OpsAddr+" database")
	wantCode(t, 1, s.run("doctor"), "it is older than Redis", item)
	wantCode(t, 0, s.run("recover", "--from", "redis", "--list", filepath.Join(s.dir, "orders.jsonl")))
	w.end()
	c = dial(t, api)
	s.audit(c, item, 1, append(lost, kept))
	wantCode(t, 0, s.run("reconcile", "--server", api.URL()))
	if !strings.Contains(api.Log(), "the database has caught up with Redis: no sale is stopped") {
		t.Errorf("the log of the API:\n%s", api.Log())
	}
}

// alertsTableLost takes a table of the database away.
func alertsTableLost(t *testing.T) {
	s := newRedisShop(t)
	api, worker := s.api(often...), s.worker()
	c := dial(t, api)
	w := s.watch(api, worker)
	w.calm()
	s.write("ALTER TABLE audit RENAME TO audit_gone")
	w.fire(func() {
		if a := c.admin("GET", "/v1/admin/audit", nil); a.verdict() != "500 internal" {
			t.Fatalf("read the audit log: %s", a.verdict())
		}
	}, "FlashsaleServerErrors")
	if !strings.Contains(api.Log(), `"message":"request failed"`) {
		t.Errorf("the log of the API:\n%s", api.Log())
	}
	s.write("ALTER TABLE audit_gone RENAME TO audit")
	w.end()
}

// alertsRedisFull lowers Redis's memory limit to almost what it uses.
func alertsRedisFull(t *testing.T) {
	s := newShopOn(t, redistest.Real(t, "--appendfsync", "everysec", "--maxmemory", "1gb"))
	api, worker := s.api(often...), s.worker()
	w := s.watch(api, worker)
	w.calm()
	limit := func(share float64) {
		t.Helper()
		info, err := s.rdb.InfoMap(t.Context(), "memory").Result()
		if err != nil {
			t.Fatal(err)
		}
		used, err := strconv.ParseFloat(info["Memory"]["used_memory"], 64)
		if err == nil {
			err = s.rdb.ConfigSet(t.Context(), "maxmemory", fmt.Sprintf("%.0f", used/share)).Err()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	limit(0.95)
	w.fire(nil, "FlashsaleRedisMemory")
	limit(0.2)
	w.end()
}

// alertsDiskFull fills the database's disk, and then keeps a read open while the write-ahead log
// grows.
func alertsDiskFull(t *testing.T) {
	needSQLite(t)
	disk := disktest.New(t, 128<<20)
	s := newShopOn(t, redistest.Real(t, "--appendfsync", "everysec"))
	s.dbPath = filepath.Join(disk.Path(), "shop.db")
	wantCode(t, 0, s.run("migrate", "up"))
	api, worker := s.api(often...), s.worker()
	c := dial(t, api)
	item := s.newItem(c, 100, 1)
	w := s.watch(api, worker)
	w.calm()
	wantCode(t, 0, squeezed(s.run("doctor")), "warn database", "MiB are free beside it")
	disk.Fill()
	w.fire(nil, "FlashsaleDatabaseDisk")
	wantCode(t, 1, squeezed(s.run("doctor")), "fix database", "MiB are free beside it")
	disk.Free()
	w.end()
	s.write("UPDATE items SET description = hex(zeroblob(1000000)) WHERE id = ?1", item)
	w.fire(nil, "FlashsaleDatabaseDisk")
	s.write("UPDATE items SET description = '' WHERE id = ?1", item)
	s.write("PRAGMA wal_checkpoint(TRUNCATE)")
	w.end()
	only(t, []purchase{c.settle(item, c.buy(item, "alice", "k", untilCommitted...))}, "201")
}
