package handler

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"flashsale/catalog"
	"flashsale/handler/auth"
	"flashsale/handler/request"
	"flashsale/order"
)

// manyItems are n items, by id.
func manyItems(n int) []catalog.Item {
	items := make([]catalog.Item, n)
	for i := range items {
		items[i] = someItem()
		items[i].ID = fmt.Sprintf("thing-%05d", 2*i)
	}
	return items
}

// listedPage is a page as decoded by a client.
type listedPage struct {
	Items []struct{ ID string }
	Next  string `json:"next_cursor"`
}

func readList(t *testing.T, w *httptest.ResponseRecorder) (p listedPage) {
	t.Helper()
	if w.Code != 200 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
		t.Fatal(err)
	}
	return p
}

// A client that follows the cursors gets each item once, by id, and no page exceeds the
// requested length.
func TestListItems_Pages(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		items int
		query string
		limit int
		pages int
	}{
		{0, "", 20, 1}, {1, "", 20, 1}, {20, "", 20, 1}, {21, "", 20, 2}, {250, "", 20, 13}, {200, "", 20, 10},
		{250, "limit=100", 100, 3}, {200, "limit=100", 100, 2}, {250, "limit=7", 7, 36}, {3, "limit=1", 1, 3},
	} {
		t.Run(fmt.Sprintf("%d items, %s", tt.items, tt.query), func(t *testing.T) {
			t.Parallel()
			all := manyItems(tt.items)
			s, _ := openPages(t, &shownItems{list: &catalog.ListView{Items: all}})
			got, query, pages := []string{}, tt.query, 0
			for {
				p := readList(t, getPage(s, "/v1/items?"+query))
				if pages++; len(p.Items) > tt.limit || pages > tt.pages {
					t.Fatalf("page %d has %d items", pages, len(p.Items))
				}
				for _, i := range p.Items {
					got = append(got, i.ID)
				}
				if p.Next == "" {
					break
				}
				query = tt.query + "&cursor=" + p.Next
			}
			want := []string{}
			for i := range all {
				want = append(want, all[i].ID)
			}
			if pages != tt.pages || !slices.Equal(got, want) {
				t.Errorf("%d pages with %d items, want %d with %d", pages, len(got), tt.pages, len(want))
			}
		})
	}
}

// The answer does not grow with the number of items.
func TestListItems_AnswerIsBounded(t *testing.T) {
	t.Parallel()
	s, _ := openPages(t, &shownItems{list: &catalog.ListView{Items: manyItems(3000)}})
	few, _ := openPages(t, &shownItems{list: &catalog.ListView{Items: manyItems(request.DefaultPage + 1)}})
	if n, want := getPage(s, "/v1/items").Body.Len(), getPage(few, "/v1/items").Body.Len(); n != want {
		t.Errorf("the page of 3000 items has %d bytes, that of %d has %d", n, request.DefaultPage+1, want)
	}
}

// A cursor continues after its item, even if the item's index has changed.
func TestListItems_CursorSurvivesNewItems(t *testing.T) {
	t.Parallel()
	shown := &shownItems{list: &catalog.ListView{Items: manyItems(50)}}
	s, _ := openPages(t, shown)
	first := readList(t, getPage(s, "/v1/items"))
	more := manyItems(50)
	early, late := someItem(), someItem()
	early.ID, late.ID = "thing-00001", "thing-00041"
	shown.list = &catalog.ListView{Items: slices.Insert(slices.Insert(more, 21, late), 1, early)}
	second := readList(t, getPage(s, "/v1/items?cursor="+first.Next))
	if len(second.Items) != request.DefaultPage || second.Items[0].ID != "thing-00040" || second.Items[1].ID != "thing-00041" {
		t.Errorf("the second page begins %+v", second.Items[:2])
	}
	shown.list = &catalog.ListView{}
	if p := readList(t, getPage(s, "/v1/items?cursor="+first.Next)); len(p.Items) != 0 || p.Next != "" {
		t.Errorf("after the last: %+v", p)
	}
}

func TestListItems_BadRequests(t *testing.T) {
	t.Parallel()
	s, _ := openPages(t, &shownItems{list: &catalog.ListView{Items: manyItems(50)}})
	cursor := readList(t, getPage(s, "/v1/items")).Next
	s.orders.list = func(order.Filter) ([]order.Order, string, error) {
		return []order.Order{someOrder(order.Purchase{ItemID: "thing", UserID: "alice", Quantity: 1})}, someOrderID, nil
	}
	ofOrders, ok := decodeBody(t, s.get(t, "/v1/orders", "alice", auth.RoleBuyer).Body)["next_cursor"].(string)
	if !ok || ofOrders == "" {
		t.Fatal("no cursor of orders")
	}
	for query, want := range map[string]string{
		"limit=0": "limit_range", "limit=101": "limit_range", "limit=-1": "limit_range", "limit=": "limit_range", "limit=x": "limit_range",
		"limit=%2B1": "limit_range", "limit=01": "limit_range",
		"cursor=": "cursor_invalid", "cursor=thing-00002": "cursor_invalid", "cursor=" + cursor + "A": "cursor_invalid",
		"cursor=" + cursor[1:]: "cursor_invalid", "cursor=" + ofOrders: "cursor_invalid",
		"cursor=" + cursor + "%0A": "cursor_invalid", "cursor=" + strings.Repeat("A", 4096): "cursor_invalid",
		"limit=1&limit=2": "parameter_invalid", "limit=%zz": "parameter_invalid",
		"state=open": "unknown_parameter", "Limit=1": "unknown_parameter",
	} {
		w := getPage(s, "/v1/items?"+query)
		wantProblem(t, w.Result(), 400, want)
		wantHeader(t, w, "Cache-Control", "no-store")
	}
}

// Frequently requested pages are encoded once. Whatever limits and cursors are requested, the
// kept pages do not exceed the list.
func TestListItems_FrequentPagesAreEncodedOnce(t *testing.T) {
	t.Parallel()
	const n = 250
	v := &catalog.ListView{Items: manyItems(n)}
	e := &itemRoutes{cursors: sealer{[]byte("a key of the tests")}, itemNow: func(string) time.Time { return someTime }}
	for range 2 {
		for from := range n + 1 {
			for _, limit := range []int{1, 10, request.DefaultPage - 1, request.DefaultPage, request.DefaultPage + 1, 50, request.MaxPage - 1, request.MaxPage} {
				p := e.listPage(v, from, limit, someTime)
				again := e.listPage(v, from, limit, someTime.Add(listLife/2))
				if aligned := (limit == request.DefaultPage || limit == request.MaxPage) && from%limit == 0; aligned != (p == again) || aligned != p.Kept {
					t.Fatalf("%d items from %d: kept %v", limit, from, p == again)
				}
			}
		}
	}
	kept, ok := v.Made().(listPages)
	if !ok {
		t.Fatal("nothing is kept")
	}
	items := 0
	for length, pages := range kept {
		for i := range pages {
			p := pages[i].Load()
			if p == nil {
				continue
			}
			items += strings.Count(string(p.Head), `"server_time"`)
			if later := e.listPage(v, i*length, length, someTime.Add(listLife)); later == p {
				t.Errorf("page %d of %d items is kept beyond its time", i, length)
			}
		}
	}
	if items != 2*n {
		t.Errorf("%d items are encoded in what is kept, want %d", items, 2*n)
	}
}

// Readers of a kept page share its bytes, so that slow ones need no memory for it. Later answers that
// reuse a call's buffer do not change them.
func TestListItems_PagesAreShared(t *testing.T) {
	t.Parallel()
	s, now := openPages(t, &shownItems{list: &catalog.ListView{Items: manyItems(50)}, view: &catalog.View{Item: someItem()}})
	for _, coding := range []string{"identity", "gzip"} {
		page := func() string { return getPage(s, "/v1/items", "Accept-Encoding", coding).Body.String() }
		first := page()
		for range 10 {
			if w := getPage(s, "/v1/items/thing"); w.Code != 200 {
				t.Fatalf("the item: %d %s", w.Code, w.Body)
			}
			if page() != first {
				t.Fatalf("%s: another answer has changed the page", coding)
			}
		}
	}
	list := &catalog.ListView{Items: manyItems(request.DefaultPage)}
	e := &itemRoutes{cursors: sealer{[]byte("a key of the tests")}, itemNow: func(string) time.Time { return *now }}
	p := e.listPage(list, 0, request.DefaultPage, *now)
	for name, read := range map[string]func([]byte, time.Time) []byte{"plain": p.Plain, "packed": p.Packed} {
		if a, b := read(nil, *now), read(nil, *now); &a[0] != &b[0] || len(a) != len(b) {
			t.Errorf("%s: two readers have two copies", name)
		}
	}
}

// A page encoded for a single reader has the tag, the time and the headers of any other, but is
// not compressed.
func TestListItems_OtherPagesAreNotCompressed(t *testing.T) {
	t.Parallel()
	s, now := openPages(t, &shownItems{list: &catalog.ListView{Items: manyItems(50)}})
	const path = "/v1/items?limit=33"
	first := getPage(s, path, "Accept-Encoding", "gzip")
	wantHeader(t, first, "Content-Encoding", "")
	wantHeader(t, first, "Vary", "Accept-Encoding")
	wantHeader(t, first, "Cache-Control", "public, max-age=1, stale-while-revalidate=2, stale-if-error=60")
	tag := first.Header().Get("Etag")
	if w := getPage(s, path, "If-None-Match", tag); w.Code != 304 || w.Body.Len() != 0 {
		t.Errorf("with its own tag: %d %s", w.Code, w.Body)
	}
	if other := getPage(s, "/v1/items?limit=34").Header().Get("Etag"); tag == "" || other == tag {
		t.Errorf("pages of two lengths have the tags %q and %q", tag, other)
	}
	*now = now.Add(time.Second)
	if w := getPage(s, path); w.Header().Get("Etag") != tag || w.Body.String() == first.Body.String() {
		t.Error("a second later: another tag, or the same time")
	}
}
