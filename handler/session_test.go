package handler

import (
	"context"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"flashsale/handler/auth"
	"flashsale/handler/pages"
	"flashsale/order"
)

// A browser's session is a cookie, and which one counts depends on the route and on the header of the
// page's script. The Authorization header has priority.
func TestSession_Cookies(t *testing.T) {
	t.Parallel()
	s := open(t)
	buyer, admin := sessionCookie(t, buyerCookie, auth.RoleBuyer), sessionCookie(t, adminCookie, auth.RoleAdmin)
	const none = ""
	cancel := "/v1/orders/" + someOrderID + "/cancel"
	for name, tc := range map[string]struct {
		method, path string
		cookies      string
		header       []string
		code         string
	}{
		"read as a buyer":             {"GET", "/v1/orders", buyer, nil, none},
		"read as an admin":            {"GET", "/v1/admin/items/thing", admin, nil, none},
		"both cookies, buyer's route": {"GET", "/v1/orders", admin + "; " + buyer, nil, none},
		"both cookies, admin's route": {"GET", "/v1/admin/items/thing", buyer + "; " + admin, nil, none},
		"buyer on an admin's route":   {"GET", "/v1/admin/items/thing", buyer, nil, "auth_missing"},
		"buyer's token as an admin's": {"GET", "/v1/admin/items/thing", strings.Replace(buyer, buyerCookie, cookieName(adminCookie, false), 1), nil, "forbidden"},
		"named session":               {"GET", "/v1/orders?user_id=bob", admin + "; " + buyer, []string{sessionHeader, "admin"}, none},
		"unknown session":             {"GET", "/v1/orders", buyer, []string{sessionHeader, "root"}, "auth_missing"},
		"named session, no cookie":    {"GET", "/v1/orders", buyer, []string{sessionHeader, "admin"}, "auth_missing"},
		"change without a name":       {"POST", cancel, buyer, nil, "auth_missing"},
		"change":                      {"POST", cancel, buyer, []string{sessionHeader, "buyer"}, "order_not_found"},
		"change of this origin":       {"POST", cancel, buyer, []string{sessionHeader, "buyer", "Sec-Fetch-Site", "same-origin"}, "order_not_found"},
		"change of another site":      {"POST", cancel, buyer, []string{sessionHeader, "buyer", "Sec-Fetch-Site", "cross-site"}, "forbidden"},
		"change of a sibling host":    {"POST", cancel, buyer, []string{sessionHeader, "buyer", "Sec-Fetch-Site", "same-site"}, "forbidden"},
		"change of another origin":    {"POST", cancel, buyer, []string{sessionHeader, "buyer", "Origin", "https://evil.example"}, "forbidden"},
		"page of the same buyer":      {"POST", cancel, buyer, []string{sessionHeader, "buyer", buyerHeader, "alice"}, "order_not_found"},
		"page of another buyer":       {"POST", cancel, buyer, []string{sessionHeader, "buyer", buyerHeader, "bob"}, "auth_missing"},
		"another, expired cookie":     {"GET", "/v1/orders", buyerCookie + "=abc; " + buyer, nil, none},
		"without its prefix":          {"GET", "/v1/admin/items/thing", strings.TrimPrefix(admin, "__Host-"), nil, "auth_missing"},
		"malformed token":             {"GET", "/v1/orders", buyerCookie + "=abc", nil, "token_malformed"},
		"empty token":                 {"GET", "/v1/orders", buyerCookie + "=", nil, "auth_missing"},
		"another cookie":              {"GET", "/v1/orders", "theme=dark", nil, "auth_missing"},
		"header before cookie":        {"GET", "/v1/orders", buyer, []string{"Authorization", "Bearer x"}, "token_malformed"},
	} {
		t.Run(name, func(t *testing.T) {
			r := httptest.NewRequest(tc.method, tc.path, http.NoBody)
			r.Header.Set("Cookie", tc.cookies)
			for i := 0; i < len(tc.header); i += 2 {
				r.Header.Set(tc.header[i], tc.header[i+1])
			}
			w := s.do(r)
			if code := codeIn(t, w); code != tc.code {
				t.Errorf("%d with code %q, want %q", w.Code, code, tc.code)
			}
		})
	}
}

// sessionCookie returns a Cookie header with a token.
func sessionCookie(t *testing.T, name string, role auth.Role) string {
	t.Helper()
	return cookieName(name, false) + "=" + strings.TrimPrefix(bearer(t, "alice", role), "Bearer ")
}

// codeIn returns the code of a refusal; "" for an answer to an admitted request. An admitted change
// finds no order.
func codeIn(t *testing.T, w *httptest.ResponseRecorder) string {
	t.Helper()
	if w.Code == http.StatusOK {
		return ""
	}
	code, ok := decodeBody(t, w.Body)["code"].(string)
	if !ok {
		t.Fatalf("%d without a code", w.Code)
	}
	return code
}

// A form leads back only to this site.
func TestLocalPath(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"/items/a?x=1": "/items/a?x=1", "/": "/",
		"": "/home", "items": "/home", "//evil.example": "/home", "/\\evil.example": "/home", "https://evil.example/": "/home",
		"javascript:alert(1)": "/home", "/a\nb": "/home", "/%zz": "/home", "///evil.example": "/home",
	} {
		if got := localPath(path, "/home"); got != want {
			t.Errorf("%q leads to %q, want %q", path, got, want)
		}
	}
}

func TestWithNext(t *testing.T) {
	t.Parallel()
	for login, want := range map[string]string{
		"https://shop.example/login":     "https://shop.example/login?next=%2Fitems%2Fa",
		"https://shop.example/login?a=b": "https://shop.example/login?a=b&next=%2Fitems%2Fa",
		"/account":                       "/account?next=%2Fitems%2Fa",
	} {
		if got := withNext(login, "/items/a"); got != want {
			t.Errorf("%s becomes %s, want %s", login, got, want)
		}
	}
}

// Pages for which a session is needed lead to the login form, and from there back.
func TestPages_WithoutSession(t *testing.T) {
	t.Parallel()
	send := sender(t)
	for _, r := range fullTable(t) {
		if !r.Page || len(r.Roles) == 0 {
			continue
		}
		var header []string
		if r.Body == bodyForm {
			header = []string{"Content-Type", "application/x-www-form-urlencoded"}
		}
		w := send(&r, r.Method, "", header...)
		form := "/login?next=%2F"
		if strings.HasPrefix(r.Path, "/admin") {
			form = "/admin/login?next=%2Fadmin"
		}
		if to := w.Header().Get("Location"); w.Code != http.StatusSeeOther || !strings.HasPrefix(to, form) {
			t.Errorf("%s %s: %d, leads to %q", r.Method, r.Path, w.Code, to)
		}
	}
}

// A browser gets a page at an address that does not exist, and is led from the address of a form to
// the form's page; a program gets a problem.
func TestPages_Unserved(t *testing.T) {
	t.Parallel()
	s := open(t, func(c *Config) { c.Charge = func(context.Context, order.Order) error { return nil } })
	browser := []string{"Accept", "text/html,application/xhtml+xml,*/*;q=0.8"}
	for path, status := range map[string]int{"/nothing": 404, "/items/thing/": 404, "/admin/nope": 404, "/logout": 405} {
		w := getPage(s, path, browser...)
		if w.Code != status || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/html") {
			t.Errorf("%s: %d, %s", path, w.Code, w.Header().Get("Content-Type"))
		}
	}
	for path, page := range map[string]string{
		"/items/thing/buy": "/items/thing", "/orders/" + someOrderID + "/pay": "/orders/" + someOrderID, "/orders/" + someOrderID + "/cancel": "/orders/" + someOrderID,
		"/items/a%0D%0Ab/buy": "/items/a%0D%0Ab", "/items/%2F..%2Fx/buy": "/items/%2F..%2Fx",
	} {
		if w := getPage(s, path, browser...); w.Code != http.StatusSeeOther || w.Header().Get("Location") != page {
			t.Errorf("%s: %d to %q", path, w.Code, w.Header().Get("Location"))
		}
	}
	wantProblem(t, getPage(s, "/v1/nothing", browser...).Result(), 404, "route_not_found")
	wantProblem(t, getPage(s, "/nothing").Result(), 404, "route_not_found")
	// A client that takes no HTML gets none.
	wantProblem(t, getPage(s, "/items/thing", "Accept", "application/json").Result(), 406, "not_acceptable")
}

// The page of an address that begins like that of another host has no link to that host.
func TestPages_UnservedLinksStayHere(t *testing.T) {
	t.Parallel()
	s := open(t)
	elsewhere := regexp.MustCompile(`(?:href|action|src)="(?://|/\\|[a-z]+:)[^"]*"`)
	for _, path := range []string{"//evil.example/", "//evil.example/items", "/%5Cevil.example/", "///evil.example"} {
		for _, form := range []string{"", "x=1"} {
			w := s.visit(t, path, form, "")
			if w.Code != http.StatusNotFound {
				t.Errorf("%s: %d", path, w.Code)
			}
			if links := elsewhere.FindAllString(w.Body.String(), -1); links != nil {
				t.Errorf("%s %q: the page has the links %q", path, form, links)
			}
		}
	}
}

// A page of another version of the assets, from another process during an upgrade, gets the file of
// this one, which no cache keeps.
func TestPages_Assets(t *testing.T) {
	t.Parallel()
	s := open(t)
	own := pages.Asset("icon.svg")
	for path, caching := range map[string]string{own: "public, max-age=31536000, immutable", "/assets/0123456789ab/icon.svg": "no-store"} {
		w := getPage(s, path)
		if got := w.Header().Get("Cache-Control"); w.Code != http.StatusOK || got != caching {
			t.Errorf("%s: %d, Cache-Control %q, want %q", path, w.Code, got, caching)
		}
	}
	for _, path := range []string{"/assets/0123456789ab/none.js", "/assets/none/icon.svg"} {
		w := getPage(s, path)
		if got := w.Header().Get("Cache-Control"); w.Code != http.StatusNotFound || got != "no-store" {
			t.Errorf("%s: %d, Cache-Control %q", path, w.Code, got)
		}
	}
}

// A login is refused for a host name that may point here by its owner's will, and for a token that no
// browser would keep; logging out makes the browser forget the pages.
func TestSession_LogIn(t *testing.T) {
	t.Parallel()
	s := open(t, developing)
	r := httptest.NewRequest(http.MethodPost, "/login", strings.NewReader("name=alice"))
	r.Host = "evil.example"
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	w := s.do(r)
	wantPage(t, w, http.StatusForbidden, `data-code="forbidden"`, "localhost")
	if len(w.Result().Cookies()) > 0 {
		t.Errorf("another host: cookies %v", w.Result().Cookies())
	}
	w = s.visit(t, "/login", "token="+strings.Repeat("a", maxCookie), "")
	wantPage(t, w, http.StatusForbidden, `data-code="field_range"`, "too long for a browser")
	for _, path := range []string{"/logout", "/admin/logout"} {
		w := s.visit(t, path, "x=", "")
		if got := w.Header().Get("Clear-Site-Data"); w.Code != http.StatusSeeOther || got != `"cache"` {
			t.Errorf("%s: %d, Clear-Site-Data %q", path, w.Code, got)
		}
	}
}

// A refused login to the dashboard is explained in the dashboard's language, whatever the reader of the shop
// has chosen.
func TestSession_DashboardLanguage(t *testing.T) {
	t.Parallel()
	s := open(t)
	buyer := strings.TrimPrefix(bearer(t, "alice", auth.RoleBuyer), "Bearer ")
	english := pages.LanguageNamed("en")
	for token, code := range map[string]string{"abc": "token_malformed", buyer: "forbidden"} {
		w := s.visit(t, "/admin/login", "token="+token, pages.LanguageCookie+"=zh", "Accept-Language", "zh-CN")
		wantPage(t, w, http.StatusForbidden, `<html lang="en">`, english.T("problem."+code))
	}
	// A page of the shop's layout.
	w := s.visit(t, "/admin/login", "token=abc", pages.LanguageCookie+"=zh", "Sec-Fetch-Site", "cross-site")
	wantPage(t, w, http.StatusForbidden, `<html lang="en">`, english.T("problem.forbidden.title"))
}
