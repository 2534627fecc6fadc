package handler

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"flashsale/catalog"
	"flashsale/handler/auth"
	"flashsale/handler/encode"
)

// shownItems returns the test's items.
type shownItems struct {
	fakeItems
	view *catalog.View
	list *catalog.ListView
}

func (s *shownItems) View(context.Context, string) (*catalog.View, error) { return s.view, nil }
func (s *shownItems) List(context.Context) (*catalog.ListView, error)     { return s.list, nil }

// openPages makes a shop with the test's items, and a clock that the test sets.
func openPages(t *testing.T, s *shownItems) (*shop, *time.Time) {
	t.Helper()
	now := someTime
	return open(t, func(c *Config) {
		c.Items, c.Now = s, func() time.Time { return now }
	}), &now
}

func getPage(s *shop, path string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, path, http.NoBody)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	return s.do(r)
}

func wantHeader(t *testing.T, w *httptest.ResponseRecorder, name, want string) {
	t.Helper()
	if got := strings.Join(w.Header().Values(name), "|"); got != want {
		t.Errorf("%s is %q, want %q", name, got, want)
	}
}

// A page has caching headers, and a client that already has it gets 304.
func TestPages_CachesMayRevalidate(t *testing.T) {
	t.Parallel()
	item := someItem()
	shown := &shownItems{view: &catalog.View{Item: item}, list: &catalog.ListView{Items: []catalog.Item{item}}}
	s, now := openPages(t, shown)
	for _, path := range []string{"/v1/items/thing", "/v1/items"} {
		first := getPage(s, path)
		tag := first.Header().Get("Etag")
		wantHeader(t, first, "Cache-Control", "public, max-age=1, stale-while-revalidate=2, stale-if-error=60")
		wantHeader(t, first, "Vary", "Accept-Encoding")
		wantHeader(t, first, "Age", "")
		wantHeader(t, first, "Warning", "")
		if !strings.HasPrefix(tag, `W/"`) {
			t.Fatalf("%s: ETag %q, want a weak one", path, tag)
		}
		for _, known := range []string{tag, strings.TrimPrefix(tag, "W/"), `"x", ` + tag, "*"} {
			w := getPage(s, path, "If-None-Match", known)
			if w.Code != 304 || w.Body.Len() != 0 {
				t.Errorf("%s: If-None-Match %s: %d %s", path, known, w.Code, w.Body)
			}
			wantHeader(t, w, "Etag", tag)
			wantHeader(t, w, "Content-Type", "")
		}
		if w := getPage(s, path, "If-None-Match", `"x"`, "If-None-Match", `W/"y"`); w.Code != 200 {
			t.Errorf("%s: another tag: %d", path, w.Code)
		}
		*now = now.Add(time.Second)
		later := getPage(s, path)
		wantHeader(t, later, "Etag", tag) // the time is not part of the content
		if later.Body.String() == first.Body.String() || !strings.Contains(later.Body.String(), `"server_time":"2030-01-02T03:04:0`) {
			t.Errorf("%s: a second later: %s", path, later.Body)
		}
	}
	before := getPage(s, "/v1/items/thing").Header().Get("Etag")
	list := getPage(s, "/v1/items").Header().Get("Etag")
	item.StockLeft--
	shown.view, shown.list = &catalog.View{Item: item}, &catalog.ListView{Items: []catalog.Item{item}}
	if getPage(s, "/v1/items/thing").Header().Get("Etag") == before || getPage(s, "/v1/items").Header().Get("Etag") == list {
		t.Error("the tag is the same with another stock")
	}
}

// Caches must not store that an item does not exist or cannot be read.
func TestPages_RefusalsAreNotCached(t *testing.T) {
	t.Parallel()
	s := open(t)
	for path, status := range map[string]int{"/v1/items/nope": 404, "/v1/items/NOPE": 400} {
		w := getPage(s, path)
		if w.Code != status {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
		wantHeader(t, w, "Cache-Control", "no-store")
	}
	w := getPage(s, "/v1/items", "Accept", "text/html")
	if w.Code != 406 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	wantHeader(t, w, "Cache-Control", "no-store")
}

// Without this header a cache may store a 404 or a 405 of any route, also of a buyer's order.
func TestRefusals_OfReadsAreNotCached(t *testing.T) {
	t.Parallel()
	s := open(t)
	for path, status := range map[string]int{
		"/v1/orders/" + someOrderID: 404, "/v1/orders/" + someOrderID + "/cancel": 405, "/v1/nothing": 404, "/v1/orders?limit=0": 400, "/v1/admin/audit": 403,
	} {
		w := s.get(t, path, "alice", auth.RoleBuyer)
		if w.Code != status {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
		wantHeader(t, w, "Cache-Control", "no-store")
	}
}

// A page has the time of its answer, and the list has a slightly older one at most, even if the
// encoded page is reused.
func TestPages_ServerTimeIsThatOfTheAnswer(t *testing.T) {
	t.Parallel()
	shown := &shownItems{view: &catalog.View{Item: someItem()}, list: &catalog.ListView{Items: []catalog.Item{someItem()}}}
	s, now := openPages(t, shown)
	for range 100 {
		*now = now.Add(100 * time.Millisecond)
		for path, oldest := range map[string]time.Duration{"/v1/items/thing": time.Millisecond, "/v1/items": listLife} {
			var got struct {
				ServerTime time.Time `json:"server_time"`
				Items      []struct {
					ServerTime time.Time `json:"server_time"`
				}
			}
			if err := json.Unmarshal(getPage(s, path).Body.Bytes(), &got); err != nil {
				t.Fatal(err)
			}
			if len(got.Items) > 0 {
				got.ServerTime = got.Items[0].ServerTime
			}
			if age := now.Sub(got.ServerTime); age < 0 || age >= oldest {
				t.Fatalf("%s: server_time is %v old", path, age)
			}
		}
	}
}

// A sale opens and closes on time, in its page too.
func TestPages_SalesOpenAndCloseOnTime(t *testing.T) {
	t.Parallel()
	item := someItem()
	item.OpensAt, item.ClosesAt = someTime.Add(100*time.Millisecond), someTime.Add(300*time.Millisecond)
	shown := &shownItems{view: &catalog.View{Item: item}, list: &catalog.ListView{Items: []catalog.Item{item}}}
	s, now := openPages(t, shown)
	tags := map[string]string{}
	for _, q := range []struct {
		after time.Duration
		state string
	}{
		{0, "scheduled"}, {99 * time.Millisecond, "scheduled"}, {100 * time.Millisecond, "open"},
		{299 * time.Millisecond, "open"}, {300 * time.Millisecond, "closed"}, {10 * time.Second, "closed"},
	} {
		*now = someTime.Add(q.after)
		for _, path := range []string{"/v1/items/thing", "/v1/items"} {
			w := getPage(s, path)
			if !strings.Contains(w.Body.String(), `"state":"`+q.state+`"`) {
				t.Errorf("%s after %v: %s, want %s", path, q.after, w.Body, q.state)
			}
			tag := w.Header().Get("Etag")
			if was := tags[path+q.state]; was != "" && was != tag {
				t.Errorf("%s after %v: another tag in the same state", path, q.after)
			}
			tags[path+q.state] = tag
		}
	}
	if tags["/v1/itemsopen"] == tags["/v1/itemsclosed"] {
		t.Error("the same tag in another state")
	}
}

// An item's state, server_time and tag use the clock of its sale, even when that is set; the
// age of a page uses the host's.
func TestPages_StateFollowsTheSaleClock(t *testing.T) {
	t.Parallel()
	thing, other := someItem(), someItem()
	thing.OpensAt, thing.ClosesAt = someTime.Add(5*time.Minute), someTime.Add(10*time.Minute)
	other.ID = "other"
	shown := &shownItems{
		view: &catalog.View{Item: thing, Stale: true, LoadedAt: someTime.Add(-7 * time.Second)},
		list: &catalog.ListView{Items: []catalog.Item{other, thing}},
	}
	now, sale := someTime, someTime
	s := open(t, func(c *Config) {
		c.Items, c.Now = shown, func() time.Time { return now }
		c.ItemNow = func(item string) time.Time {
			if item == "other" {
				return now
			}
			return sale
		}
	})
	tags := map[string]string{} // by path and state
	for _, q := range []struct {
		at    time.Duration
		state string
	}{
		{0, "scheduled"}, {5 * time.Minute, "open"}, {10 * time.Minute, "closed"},
		{9 * time.Minute, "open"}, {-time.Minute, "scheduled"}, {time.Hour, "closed"}, {4 * time.Minute, "scheduled"},
	} {
		now, sale = now.Add(listLife), someTime.Add(q.at) // the list follows a clock that was set within listLife
		want := string(encode.TimeField([]byte(`"state":"`+q.state+`","version":4`), `,"server_time":`, sale))
		others := string(encode.TimeField([]byte(`"state":"open","version":4`), `,"server_time":`, now))
		for _, path := range []string{"/v1/items/thing", "/v1/items"} {
			w := getPage(s, path)
			if !strings.Contains(w.Body.String(), want) || path == "/v1/items" && !strings.Contains(w.Body.String(), others) {
				t.Fatalf("%s after %v: %s, want %s and %s", path, q.at, w.Body, want, others)
			}
			tag := w.Header().Get("Etag")
			for state, had := range tags {
				if on, was, _ := strings.Cut(state, " "); on == path && (was == q.state) != (had == tag) {
					t.Errorf("%s: tag %s when %s, and %s when %s", path, tag, q.state, had, was)
				}
			}
			tags[path+" "+q.state] = tag
		}
		wantHeader(t, getPage(s, "/v1/items/thing"), "Age", strconv.Itoa(int(now.Sub(shown.view.LoadedAt)/time.Second)))
	}
	// Within listLife, with millisecond precision.
	for state, at := range map[string]time.Duration{"open": 5 * time.Minute, "closed": 10 * time.Minute} {
		now, sale = now.Add(listLife), someTime.Add(at-listLife/2)
		getPage(s, "/v1/items")
		now, sale = now.Add(listLife/2), someTime.Add(at)
		if w := getPage(s, "/v1/items"); !strings.Contains(w.Body.String(), `"state":"`+state+`","version":4,"server_time":"2030-01-02T03:`+sale.Format("04:05.000")) {
			t.Errorf("the list at the instant it is %s: %s", state, w.Body)
		}
	}
}

// A long page is compressed for clients that accept it, and has the same content.
func TestPages_GzipHasTheSameContent(t *testing.T) {
	t.Parallel()
	long := someItem()
	long.Description = strings.Repeat("A thing that nobody needs, at a price that everybody pays. ", 50)
	var many []catalog.Item
	for i := range 100 {
		many = append(many, someItem())
		many[i].ID = fmt.Sprintf("thing-%d", i)
	}
	shown := &shownItems{view: &catalog.View{Item: long}, list: &catalog.ListView{Items: many}}
	s, now := openPages(t, shown)
	for _, path := range []string{"/v1/items/thing", "/v1/items"} {
		for range 3 {
			*now = now.Add(time.Second)
			plain := getPage(s, path)
			wantHeader(t, plain, "Content-Encoding", "")
			packed := getPage(s, path, "Accept-Encoding", "br, gzip")
			wantHeader(t, packed, "Content-Encoding", "gzip")
			wantHeader(t, packed, "Etag", plain.Header().Get("Etag"))
			if packed.Body.Len() > plain.Body.Len()/2 {
				t.Errorf("%s: %d bytes packed, %d plain", path, packed.Body.Len(), plain.Body.Len())
			}
			r, err := gzip.NewReader(packed.Body)
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(r) // it checks the checksum and the length
			if want := plain.Body.String() + "\n"; err != nil || string(text) != want {
				t.Errorf("%s: %v, unpacked %q\nwant %q", path, err, text, want)
			}
		}
	}
	shown.view = &catalog.View{Item: someItem()}
	wantHeader(t, getPage(s, "/v1/items/thing", "Accept-Encoding", "gzip"), "Content-Encoding", "") // not worth it
}

// A page shown while the database is unavailable says so and has its age.
func TestPages_StaleContentHasItsAge(t *testing.T) {
	t.Parallel()
	loaded := someTime.Add(-90500 * time.Millisecond)
	shown := &shownItems{
		view: &catalog.View{Item: someItem(), LoadedAt: loaded, Stale: true},
		list: &catalog.ListView{Items: []catalog.Item{someItem()}, LoadedAt: loaded, Stale: true},
	}
	s, _ := openPages(t, shown)
	for _, path := range []string{"/v1/items/thing", "/v1/items"} {
		w := getPage(s, path)
		if w.Code != 200 {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
		wantHeader(t, w, "Age", "90")
		wantHeader(t, w, "Warning", `110 - "Response is Stale"`)
	}
}

// An item's page is encoded once, and each answer only allocates its headers.
func TestPages_Allocations(t *testing.T) {
	v := &catalog.View{Item: someItem()}
	p := itemPage(v, someTime)
	if itemPage(v, someTime.Add(time.Hour)) != p {
		t.Error("the page was made again")
	}
	buf := make([]byte, 0, 4096)
	if n := testing.AllocsPerRun(100, func() { buf = itemPage(v, someTime).Plain(buf, someTime) }); n != 0 {
		t.Errorf("%v allocations for a page that is there", n)
	}
}

func TestWarmItem(t *testing.T) {
	t.Parallel()
	s := open(t)
	warm := func(item, sub string, role auth.Role) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodPost, "/v1/admin/items/"+item, http.NoBody)
		if sub != "" {
			r.Header.Set("Authorization", bearer(t, sub, role))
		}
		return s.do(r)
	}
	w := warm("thing/warm", "root", auth.RoleAdmin)
	if body := decodeBody(t, w.Body); w.Code != 200 || body["id"] != "thing" || w.Header().Get("Etag") != `"4"` {
		t.Errorf("warm: %d %v", w.Code, body)
	}
	wantProblem(t, warm("nope/warm", "root", auth.RoleAdmin).Result(), 404, "item_not_found")
	wantProblem(t, warm("NOPE/warm", "root", auth.RoleAdmin).Result(), 400, "id_invalid")
	wantProblem(t, warm("thing/warm", "alice", auth.RoleBuyer).Result(), 403, "forbidden")
	wantProblem(t, warm("thing/warm", "", "").Result(), 401, "auth_missing")
	wantProblem(t, warm("thing/warm?at=noon", "root", auth.RoleAdmin).Result(), 400, "unknown_parameter")
}
