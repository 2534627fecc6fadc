//go:build unix

package main_test

import (
	"fmt"
	"strings"
	"testing"
)

// TestBuckets sells an item whose stock is divided. Outside it is one item.
func TestBuckets(t *testing.T) {
	needProcesses(t)
	s := newShop(t)
	p := s.serve()
	c := dial(t, p)
	const item, buyers = "drop-1", 24
	wantCode(t, 0, s.run("item", "create", "--id", item, "--name", "Drop", "--price-minor", "100", "--stock", fmt.Sprint(buyers),
		"--buckets", "8", "--payment-window", "15m", "--server", p.URL()), item, "open", fmt.Sprint(buyers))
	var last string
	for i := range buyers {
		buyer := fmt.Sprintf("buyer-%d", i)
		b := c.settle(item, c.buy(item, buyer, "k", untilCommitted...))
		if b.Status != 201 || !strings.Contains(b.Body, `"item_id":"`+item+`"`) {
			t.Fatalf("%s: %s %s", buyer, b.verdict(), b.Body)
		}
		last = strings.TrimPrefix(b.Header["Location"], "/v1/orders/")
	}
	if b := c.settle(item, c.buy(item, "late", "k")); b.verdict() != "409 sold_out" {
		t.Errorf("after the last unit: %s", b.verdict())
	}
	for path, want := range map[string]string{
		"/v1/admin/items/" + item:                    fmt.Sprintf(`"stock_total":%d,"stock_left":0,`, buyers),
		"/v1/items":                                  `"buckets":8,"state":"sold_out"`,
		"/v1/admin/items/" + item + "/ledger":        fmt.Sprintf(`{"initial":%d,"restocked":0,"left":0,"held":%d,"sold":0,"balanced":true}`, buyers, buyers),
		"/v1/orders?limit=100&item_id=" + item:       `"item_id":"` + item + `"`,
		"/v1/orders?user_id=buyer-7&item_id=" + item: `"user_id":"buyer-7"`,
		"/v1/admin/audit?limit=100&item_id=" + item:  `"action":"item.create"`,
		"/v1/admin/buyers/buyer-7":                   `"item_id":"` + item + `"`,
		"/v1/orders/" + last:                         `"item_id":"` + item + `"`,
		"/v1/admin/orders/" + last + "/timeline":     `"item_id":"` + item + `"`,
	} {
		a := c.admin("GET", path, nil)
		if a.Status != 200 || !strings.Contains(a.Body, want) || strings.Contains(a.Body, item+".") {
			t.Errorf("GET %s: %d %s, want %s", path, a.Status, a.Body, want)
		}
	}
	if n := strings.Count(c.admin("GET", "/v1/orders?limit=100&item_id="+item, nil).Body, `"id":`); n != buyers {
		t.Errorf("%d orders are listed, want %d", n, buyers)
	}
	a := c.admin("POST", "/v1/admin/reconcile?item_id="+item, nil)
	if a.Status != 200 || !strings.Contains(a.Body, `"balanced":true`) || !strings.Contains(a.Body, `"item_id":"`+item+`","bucket":7,`) {
		t.Errorf("reconcile: %d %s", a.Status, a.Body)
	}
	// A unit that one bucket gets back is for any buyer.
	if a := c.admin("POST", "/v1/orders/"+last+"/cancel", nil); a.Status != 200 {
		t.Fatalf("cancel: %d %s", a.Status, a.Body)
	}
	if b := c.settle(item, c.buy(item, "later", "k", untilCommitted...)); b.Status != 201 {
		t.Errorf("after the cancel: %s", b.verdict())
	}
	wantCode(t, 0, s.run("item", "restock", item, "--quantity", "16", "--reason", "more", "--server", p.URL()), " 40 ")
	wantCode(t, 0, s.run("item", "restock", item, "--quantity", "-15", "--reason", "less", "--server", p.URL()), " 25 ")
	wantCode(t, 0, s.run("item", "close", item, "--server", p.URL()), "closed")
	if b := c.settle(item, c.buy(item, "too-late", "k")); b.verdict() != "409 sale_closed" {
		t.Errorf("after the close: %s", b.verdict())
	}
	wantCode(t, 0, s.run("reconcile", "--server", p.URL()), "\n1 item, 0 different, 0 repairs, 0 not examined\n")
	wantCode(t, 2, s.run("item", "create", "--id", "drop-2", "--name", "Drop", "--price-minor", "100", "--stock", "65", "--buckets", "65",
		"--payment-window", "15m", "--server", p.URL()), "field_range", "buckets")
}
