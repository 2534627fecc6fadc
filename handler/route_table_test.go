package handler

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"flashsale/handler/apidocs"
	"flashsale/handler/auth"
	"flashsale/handler/metrics"
	"flashsale/handler/pages"
	"flashsale/order"
)

// fullTable is the table with every route present.
func fullTable(t testing.TB) []route {
	t.Helper()
	m, err := metrics.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	table := newFeatures(&Config{}, m, zerolog.Nop()).routes()
	for i := range table {
		table[i].Absent = false
	}
	return table
}

// apiTable is the table without the pages for browsers, which the contract does not describe.
func apiTable(t *testing.T) []route {
	t.Helper()
	return slices.DeleteFunc(fullTable(t), func(r route) bool { return !inContract(&r) })
}

// inContract reports whether the contract describes the route.
func inContract(r *route) bool {
	return !r.Page && !strings.HasPrefix(r.Path, pages.AssetPrefix)
}

// shownInBrowser returns a function that reports whether the table has only pages at a path.
func shownInBrowser(tb testing.TB) func(path string) bool {
	tb.Helper()
	table := fullTable(tb)
	return func(path string) bool {
		shown := false
		for i := range table {
			if matches(table[i].Path, path) {
				if inContract(&table[i]) {
					return false
				}
				shown = true
			}
		}
		return shown
	}
}

// matches reports whether a path belongs to a route.
func matches(pattern, path string) bool {
	want, got := strings.Split(pattern, "/"), strings.Split(path, "/")
	return slices.EqualFunc(want, got, func(w, g string) bool { return w == g || strings.HasPrefix(w, ":") })
}

// somePath returns the route's path with valid parameters.
func (r *route) somePath() string {
	return strings.NewReplacer(":item", "thing", ":order", someOrderID, ":user", "alice", ":payment", "41", ":task", "t1",
		":webhook", "we_"+strings.Repeat("0", 32), ":event", "msg_"+strings.Repeat("0", 32),
		":asset", apidocs.AssetNames()[0],
		":build", strings.Split(pages.Asset("icon.svg"), "/")[2], ":file", "icon.svg").Replace(r.Path)
}

func TestRoutes_TableIsConsistent(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, r := range fullTable(t) {
		name := r.Method + " " + r.Path
		if seen[name] {
			t.Errorf("%s is in the table twice", name)
		}
		seen[name] = true
		if got, want := len(r.params()), strings.Count(r.Path, "/:"); got != want {
			t.Errorf("%s: %d of %d parameters are checked", name, got, want)
		}
		if (r.Body == bodyIgnored) != (r.MaxBody == 0) {
			t.Errorf("%s: body %d with a bound of %d bytes", name, r.Body, r.MaxBody)
		}
		if r.Handle == nil {
			t.Errorf("%s has no handler", name)
		}
		if r.Rate == rateNone && slices.Contains(r.Roles, auth.RoleBuyer) {
			t.Errorf("%s is open to buyers without a rate limit", name)
		}
		if strings.HasPrefix(r.Path, "/v1/admin/") && !slices.Equal(r.Roles, []auth.Role{auth.RoleAdmin}) {
			t.Errorf("%s is open to %v", name, r.Roles)
		}
	}
}

// sender makes requests to a shop with all routes, including those that need more than the
// fakes.
func sender(t *testing.T) func(r *route, method string, role auth.Role, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	s := open(t, func(c *Config) {
		c.Tasks, c.Webhooks, c.Timelines, c.System = &fakeTasks{}, &fakeWebhooks{}, &fakeTimelines{}, &fakeSystem{}
		c.Charge = func(context.Context, order.Order) error { return nil }
		c.Reconciler, c.Streams.Feed, c.Streams.Figures = fakeReconciler(nil), &fakeFeed{}, newFakeFigures()
	})
	return func(r *route, method string, role auth.Role, header ...string) *httptest.ResponseRecorder {
		req := httptest.NewRequest(method, r.somePath(), http.NoBody)
		if role != "" {
			req.Header.Set("Authorization", bearer(t, "alice", role))
		}
		for i := 0; i < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		return s.do(req)
	}
}

// TestRoutes_Policy sends each route the requests that its entry refuses.
func TestRoutes_Policy(t *testing.T) {
	t.Parallel()
	send := sender(t)
	for _, r := range apiTable(t) {
		if r.Loopback {
			continue // only exists in development mode
		}
		t.Run(r.Method+" "+r.Path, func(t *testing.T) {
			role := auth.Role("")
			if len(r.Roles) > 0 {
				role = r.Roles[0]
				wantProblem(t, send(&r, r.Method, "").Result(), 401, "auth_missing")
			}
			for _, other := range []auth.Role{auth.RoleBuyer, auth.RoleAdmin, auth.RoleService} {
				if len(r.Roles) > 0 && !slices.Contains(r.Roles, other) {
					wantProblem(t, send(&r, r.Method, other).Result(), 403, "forbidden")
				}
			}
			if r.Produces != nil {
				wantProblem(t, send(&r, r.Method, role, "Accept", "image/png", "Content-Type", "application/json").Result(), 406, "not_acceptable")
			}
			if r.Body == bodyJSON {
				wantProblem(t, send(&r, r.Method, role, "Content-Type", "text/plain").Result(), 415, "content_type")
			}
			if r.Match == matchRequired {
				wantProblem(t, send(&r, r.Method, role, "Content-Type", "application/json").Result(), 428, "version_required")
			}
			if r.Keyed {
				wantProblem(t, send(&r, r.Method, role, "Content-Type", "application/json").Result(), 400, "idempotency_key_missing")
			}
		})
	}
}

// TestRoutes_OtherMethods: the Allow header of a 405 lists the methods of the table.
func TestRoutes_OtherMethods(t *testing.T) {
	t.Parallel()
	send := sender(t)
	methods := map[string][]string{}
	table := fullTable(t)
	for _, r := range table {
		methods[r.Path] = append(methods[r.Path], r.Method)
		if r.Method == http.MethodGet {
			methods[r.Path] = append(methods[r.Path], http.MethodHead)
		}
	}
	for _, r := range table {
		if r.Loopback {
			continue
		}
		w := send(&r, http.MethodPut, "")
		wantProblem(t, w.Result(), 405, "method_not_allowed")
		got := strings.Split(strings.ReplaceAll(w.Header().Get("Allow"), " ", ""), ",")
		slices.Sort(got)
		want := slices.Clone(methods[r.Path])
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: Allow %v, want %v", r.Path, got, want)
		}
	}
}

// TestRoutes_OrderOfChecks: if there are several faults, the first in the order of the checks
// is reported. Each step fixes the previous fault.
func TestRoutes_OrderOfChecks(t *testing.T) {
	t.Parallel()
	s := open(t)
	r := httptest.NewRequest(http.MethodPost, "/v1/admin/items/Thing/restock?a=b", strings.NewReader("{"))
	r.Header = http.Header{"Content-Type": {"text/plain"}, "Accept": {"image/png"}, "If-Match": {"4"}, "X-Fill": {strings.Repeat("a", 17<<10)}}
	for _, step := range []struct {
		code    string
		correct func()
	}{
		{"header_too_large", func() { r.Header.Del("X-Fill") }},
		{"auth_missing", func() { r.Header.Set("Authorization", bearer(t, "alice", auth.RoleBuyer)) }},
		{"forbidden", func() { r.Header.Set("Authorization", bearer(t, "root", auth.RoleAdmin)) }},
		{"id_invalid", func() { r.URL.Path = "/v1/admin/items/thing/restock" }},
		{"content_type", func() { r.Header.Set("Content-Type", "application/json") }},
		{"not_acceptable", func() { r.Header.Del("Accept") }},
		{"unknown_parameter", func() { r.URL.RawQuery = "" }},
		{"if_match_invalid", func() { r.Header.Set("If-Match", `"4"`) }},
		{"idempotency_key_missing", func() { r.Header.Set("Idempotency-Key", "k") }},
		{"json_invalid", func() {}},
	} {
		if got := decodeBody(t, s.do(r).Body)["code"]; got != step.code {
			t.Errorf("code = %v, want %s", got, step.code)
		}
		step.correct()
	}
}
