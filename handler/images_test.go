package handler

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"flashsale/handler/auth"
	"flashsale/handler/placeholder"
)

// TestImageURL: which paths of images are accepted, and what the refusals advise.
func TestImageURL(t *testing.T) {
	t.Parallel()
	const long = "/images/"
	longest := long + strings.Repeat("ä", maxImageURL-len(long))
	for path, advice := range map[string]string{
		"/": "", "/a": "", "/images/drop-1.jpg?v=2&w=640": "", "/a//b/../c": "", "/größe.png": "", "/a%20b%2f": "", "/:a@b": "", longest: "",

		"images/a.jpg":           "exactly one /",
		"//example.com/a.jpg":    "exactly one /",
		"///a.jpg":               "exactly one /",
		"http://h/a.jpg":         "exactly one /",
		"data:image/svg+xml,a":   "exactly one /",
		"javascript:alert(1)":    "exactly one /",
		" /a.jpg":                "exactly one /",
		"?a":                     "exactly one /",
		`\\h\a.jpg`:              "exactly one /",
		`/\example.com/a.jpg`:    "backslash; use /",
		`/a\b`:                   "backslash; use /",
		"/a.jpg#top":             "no fragment; remove #",
		"/a b.jpg":               "U+0020, a space; percent-encode",
		"/a\u00a0b":              "U+00A0, a space",
		"/a\u3000b":              "U+3000, a space",
		"/\t/example.com/a.jpg":  "U+0009",
		"/a.jpg\n":               "U+000A",
		"/\x00":                  "U+0000",
		"/a\x7f":                 "U+007F",
		"/a\u0085b":              "U+0085",
		"/a\u202eb":              "U+202E",
		"/a\u200bb":              "U+200B",
		"/100%":                  "two hexadecimal digits",
		"/a?width=100%&height=1": "two hexadecimal digits",
		"/%zz":                   "two hexadecimal digits",
		longest + "a":            "at most 512 characters",
	} {
		s := open(t)
		w := s.post(t, "/v1/admin/items", "root", auth.RoleAdmin,
			fmt.Sprintf(`{"id":"a","name":"A","price_minor":1,"currency":"EUR","stock":1,"image_url":%s}`, quoted(path)))
		if advice == "" {
			if w.Code != 201 || s.sales.created[0].ImageURL != path || decodeBody(t, w.Body)["image_url"] != path {
				t.Errorf("%q: %d %s, created %+v", path, w.Code, w.Body, s.sales.created)
			}
			continue
		}
		got := wantProblem(t, w.Result(), 422, "field_range")
		if detail, ok := got["detail"].(string); !ok || got["param"] != "image_url" || !strings.HasPrefix(detail, "image_url ") || !strings.Contains(detail, advice) {
			t.Errorf("%q: %v, want the advice %q", path, got, advice)
		}
		if len(s.sales.created) != 0 {
			t.Errorf("%q: created %+v", path, s.sales.created)
		}
	}
}

// TestImageURL_None: an empty path and null mean no image, and the JSON of an item without one has
// no such member.
func TestImageURL_None(t *testing.T) {
	t.Parallel()
	for _, none := range []string{"", `,"image_url":""`, `,"image_url":null`} {
		s := open(t)
		w := s.post(t, "/v1/admin/items", "root", auth.RoleAdmin, `{"id":"a","name":"A","price_minor":1,"currency":"EUR","stock":1`+none+`}`)
		if w.Code != 201 || s.sales.created[0].ImageURL != "" || strings.Contains(w.Body.String(), "image") {
			t.Errorf("%s: %d %s, created %+v", none, w.Code, w.Body, s.sales.created)
		}
	}
}

// TestImageURL_Shown: an item's image is in all its representations.
func TestImageURL_Shown(t *testing.T) {
	t.Parallel()
	item := someItem()
	item.ImageURL = `/images/"<a>&.jpg`
	text, err := json.Marshal(item.ImageURL)
	if err != nil {
		t.Fatal(err)
	}
	want := `"description":"a \u003cthing\u003e","image_url":` + string(text) + `,"price_minor":990,`
	s := open(t, func(c *Config) { c.Items = fakeItems{item.ID: item} })
	for _, path := range []string{"/v1/items/thing", "/v1/items"} {
		if w := s.get(t, path, "", ""); w.Code != 200 || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: %d %s, want %s", path, w.Code, w.Body, want)
		}
	}
}

func TestPlaceholder(t *testing.T) {
	t.Parallel()
	s := open(t)
	for _, id := range []string{"thing", "no-such-item", "9", strings.Repeat("z", 64)} {
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			r := httptest.NewRequest(method, "/items/"+id+"/image.svg?v=1", http.NoBody)
			r.Header.Set("Accept", "text/html") // the header is ignored
			w := s.do(r)
			want := placeholder.SVG(id)
			for name, value := range map[string]string{
				"Content-Type": "image/svg+xml", "Cache-Control": "public, max-age=86400, immutable", "X-Content-Type-Options": "nosniff",
				"Content-Security-Policy": "default-src 'none'", "Content-Length": strconv.Itoa(len(want)),
			} {
				if got := w.Header().Get(name); got != value {
					t.Errorf("%s %s: %s is %q, want %q", method, id, name, got, value)
				}
			}
			if w.Code != 200 || method == http.MethodGet && !bytes.Equal(w.Body.Bytes(), want) {
				t.Errorf("%s %s: %d %s", method, id, w.Code, w.Body)
			}
		}
	}
	for _, id := range []string{"NOPE", "-a", "a_b", strings.Repeat("z", 65), "a%2Fb", "%3Csvg"} {
		w := s.get(t, "/items/"+id+"/image.svg", "", "")
		wantProblem(t, w.Result(), 400, "id_invalid")
		if got := w.Header().Get("Cache-Control"); got != "no-store" {
			t.Errorf("%s: the refusal has Cache-Control %q", id, got)
		}
	}
	wantProblem(t, s.get(t, "/items/thing/image.png", "", "").Result(), 404, "route_not_found")
}
