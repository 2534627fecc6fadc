//go:build unix

package main_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"flashsale/internal/testing/process"
	"flashsale/inventory"
)

// page is an item's page as a browser gets it, without a token.
type page struct {
	status int
	header http.Header
	item   struct {
		ID         string
		Name       string
		StockLeft  int64 `json:"stock_left"`
		StockTotal int64 `json:"stock_total"`
		PriceMinor int64 `json:"price_minor"`
		State      string
		Version    int64
	}
}

func readPage(t *testing.T, p *process.P, path string, headers ...string) page {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.URL()+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := (&http.Client{Transport: underContract(t, &http.Transport{DisableKeepAlives: true, DisableCompression: true})}).Do(req)
	if err != nil {
		t.Fatalf("GET %s: %v", path, err)
	}
	defer res.Body.Close()
	got := page{status: res.StatusCode, header: res.Header}
	if res.StatusCode == 200 {
		if err := json.NewDecoder(res.Body).Decode(&got.item); err != nil {
			t.Fatalf("GET %s: %v", path, err)
		}
	}
	return got
}

// counted reads one metric of a process.
func counted(t *testing.T, p *process.P, line string) float64 {
	t.Helper()
	metrics, err := dialAddr(t, p.OpsURL()).do("GET", "/metrics", "", "")
	if err != nil {
		t.Fatal(err)
	}
	for one := range strings.Lines(metrics.Body) {
		var v float64
		if rest, ok := strings.CutPrefix(one, line+" "); ok {
			if _, err := fmt.Sscan(rest, &v); err != nil {
				t.Fatalf("metric %s: %v", one, err)
			}
			return v
		}
	}
	t.Fatalf("no metric %s in\n%s", line, grep(metrics.Body, "catalog"))
	return 0
}

// With four processes, each sees an item as soon as another has created, changed, restocked or
// paused it, even if it was requested there before. Many page readers cause almost no load on
// the database.
func TestCatalog_ChangesReachEveryProcess(t *testing.T) {
	needProcesses(t)
	s := newRedisShop(t)
	s.worker()
	var apis []*process.P
	for range 4 {
		apis = append(apis, s.api(noLimit...))
	}
	c := dial(t, apis[0])
	seen := func(what, path string, ok func(page) bool) {
		t.Helper()
		for i, p := range apis {
			eventually(t, fmt.Sprintf("process %d shows %s", i, what), soon, func() (bool, any) {
				got := readPage(t, p, path)
				return ok(got), got
			})
		}
	}
	for n := range 3 {
		id := fmt.Sprintf("drop-%d", n)
		path := "/v1/items/" + id
		for _, p := range apis {
			if got := readPage(t, p, path); got.status != 404 {
				t.Fatalf("before its creation: %d", got.status)
			}
		}
		if a := c.admin("POST", "/v1/admin/items", map[string]any{
			"id": id, "name": "Thing", "price_minor": 990, "currency": "EUR", "stock": 10, "per_user_limit": 10,
		}); a.Status != 201 {
			t.Fatalf("create: %d %s", a.Status, a.Body)
		}
		seen("the new item", path, func(p page) bool { return p.status == 200 && p.item.StockLeft == 10 })
		if a := c.insist("PATCH", "/v1/admin/items/"+id, map[string]any{"price_minor": 5}, "If-Match", "*"); a.Status != 200 {
			t.Fatalf("change: %s", a.verdict())
		}
		seen("the new price", path, func(p page) bool { return p.item.PriceMinor == 5 && p.item.Version == 2 })
		if a := c.restock(id, "r", 7); a.Status != 200 {
			t.Fatalf("restock: %s", a.verdict())
		}
		seen("the restock", path, func(p page) bool { return p.item.StockLeft == 17 && p.item.StockTotal == 17 })
		if b := c.settle(id, c.buyMany(id, "alice", "k", 3, untilCommitted...)); b.Status != 201 {
			t.Fatalf("buy: %s", b.verdict())
		}
		seen("what is left", path, func(p page) bool { return p.item.StockLeft == 14 })
		if a := c.insist("POST", "/v1/admin/items/"+id+"/pause", nil); a.Status != 200 {
			t.Fatalf("pause: %s", a.verdict())
		}
		seen("the pause", path, func(p page) bool { return p.item.State == "paused" })
	}
	before := make([]float64, len(apis))
	for i, p := range apis {
		before[i] = counted(t, p, "flashsale_catalog_database_queries_total")
	}
	const readers, pages = 32, 100
	began := time.Now()
	var wg sync.WaitGroup
	for i := range readers {
		wg.Go(func() {
			for range pages {
				if got := readPage(t, apis[i%len(apis)], "/v1/items/drop-0"); got.status != 200 {
					t.Errorf("item: %d", got.status)
				}
			}
		})
	}
	wg.Wait()
	asked := 0.0
	for i, p := range apis {
		asked += counted(t, p, "flashsale_catalog_database_queries_total") - before[i]
	}
	// Cached items are also refreshed by time, a few times per second. The readers may only add
	// a few queries.
	byClock := 10 * float64(len(apis)) * time.Since(began).Seconds()
	if asked > readers*pages/20+byClock {
		t.Errorf("%d pages caused %g database queries", readers*pages, asked)
	}
}

// TestCatalog_PagesHaveCachingHeaders checks the headers on which browsers and caches rely,
// with a real server.
func TestCatalog_PagesHaveCachingHeaders(t *testing.T) {
	needProcesses(t)
	engines(t, noLimit, func(t *testing.T, s *shop, c *client) {
		for i := range 30 {
			if a := c.admin("POST", "/v1/admin/items", map[string]any{
				"id": fmt.Sprintf("i-%d", i), "name": "Thing", "price_minor": 990, "currency": "EUR", "stock": 10,
			}); a.Status != 201 {
				t.Fatalf("create: %d %s", a.Status, a.Body)
			}
		}
		for _, path := range []string{"/v1/items/i-3", "/v1/items"} {
			var tag string
			eventually(t, "the page and its tag", soon, func() (bool, any) {
				a, err := c.do("GET", path, "", "")
				if err != nil {
					t.Fatal(err)
				}
				tag = a.Header["Etag"]
				b, err := c.do("GET", path, "", "", "If-None-Match", tag)
				if err != nil {
					t.Fatal(err)
				}
				return a.Status == 200 && b.Status == 304 && b.Body == "" && b.Header["Etag"] == tag, fmt.Sprint(a, b)
			})
			head, err := c.do("HEAD", path, "", "", "If-None-Match", `"another"`)
			if err != nil || head.Status != 200 || head.Body != "" || !strings.HasPrefix(head.Header["Cache-Control"], "public, max-age=1") {
				t.Errorf("HEAD %s: %v %+v", path, err, head)
			}
		}
		packed, err := c.do("GET", "/v1/items", "", "", "Accept-Encoding", "gzip")
		if err != nil || packed.Header["Content-Encoding"] != "gzip" || len(packed.Body) > 2500 {
			t.Errorf("packed list: %v, %d bytes, %v", err, len(packed.Body), packed.Header)
		}
	})
}

// TestCommand_ItemWarm warms items with the command: a sale that Redis has lost is loaded
// before its first purchase, and a loaded one is left unchanged.
func TestCommand_ItemWarm(t *testing.T) {
	needProcesses(t)
	s := newRedisShop(t)
	p := s.api(noLimit...)
	s.worker()
	c := dial(t, p)
	running, lost := s.newItem(c, 5, 5), s.newItem(c, 6, 1)
	if b := c.settle(running, c.buyMany(running, "alice", "k", 2, untilCommitted...)); b.Status != 201 {
		t.Fatalf("buy: %s", b.verdict())
	}
	saleOf := func(item string) string {
		return strings.TrimSuffix(inventory.QueuePrefix(0, 1), "q:orders:") + "sale:" + item
	}
	was, err := s.rdb.HGet(t.Context(), saleOf(running), "fence").Result()
	if err != nil {
		t.Fatal(err)
	}
	if n, err := s.rdb.Del(t.Context(), saleOf(lost)).Result(); err != nil || n != 1 {
		t.Fatalf("lose a sale: %d, %v", n, err)
	}
	wantCode(t, 0, s.run("item", "warm", running, lost, "--server", p.URL()), running, " 3 ", lost, " 6 ")
	if now, err := s.rdb.HGet(t.Context(), saleOf(running), "fence").Result(); err != nil || now != was {
		t.Errorf("the running sale was reloaded: fence %s, %v, before %s", now, err, was)
	}
	if left, err := s.rdb.HGet(t.Context(), saleOf(lost), "left").Result(); err != nil || left != "6" {
		t.Errorf("the lost sale has %q left, %v, want 6", left, err)
	}
	wantCode(t, 0, s.run("item", "warm", "--server", p.URL()), running, lost)
	wantCode(t, 1, s.run("item", "warm", "none", running, "--server", p.URL()), "item none", "item_not_found", running)
}
