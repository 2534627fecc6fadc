package apidocs

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// get requests a file, or the page for an empty name.
func get(t *testing.T, name string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, "/docs", http.NoBody)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	var err error
	if name == "" {
		err = New(false).Serve(w, r)
	} else {
		err = ServeAsset(w, r, name)
	}
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// all are the page and its files.
func all() []string { return append(AssetNames(), "") }

func TestServe_Encodings(t *testing.T) {
	t.Parallel()
	for _, name := range all() {
		packed, plain := get(t, name, "Accept-Encoding", "br, gzip"), get(t, name, "Accept-Encoding", "gzip;q=0")
		if got := packed.Header().Get("Content-Encoding"); got != "gzip" {
			t.Errorf("%s: Content-Encoding %q", name, got)
		}
		if got := plain.Header().Get("Content-Encoding"); got != "" {
			t.Errorf("%s without gzip: Content-Encoding %q", name, got)
		}
		for _, w := range []*httptest.ResponseRecorder{packed, plain} {
			if got := w.Header().Get("Content-Length"); w.Code != 200 || got != strconv.Itoa(w.Body.Len()) {
				t.Errorf("%s: %d, Content-Length %s, body %d", name, w.Code, got, w.Body.Len())
			}
			if w.Header().Get("Vary") != "Accept-Encoding" || w.Header().Get("X-Content-Type-Options") != "nosniff" {
				t.Errorf("%s: %v", name, w.Header())
			}
		}
		r, err := gzip.NewReader(packed.Body)
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil || !bytes.Equal(content, plain.Body.Bytes()) {
			t.Errorf("%s differs between its encodings: %v", name, err)
		}
	}
}

func TestServe_Revalidates(t *testing.T) {
	t.Parallel()
	for _, name := range all() {
		plain := get(t, name).Header().Get("Etag")
		packed := get(t, name, "Accept-Encoding", "gzip").Header().Get("Etag")
		if plain == "" || plain == packed {
			t.Errorf("%s: tags %s and %s", name, plain, packed)
		}
		w := get(t, name, "Accept-Encoding", "gzip", "If-None-Match", `"other", `+packed)
		if w.Code != http.StatusNotModified || w.Body.Len() != 0 || w.Header().Get("Etag") != packed {
			t.Errorf("%s: %d %v", name, w.Code, w.Header())
		}
		if w := get(t, name, "If-None-Match", packed); w.Code != 200 {
			t.Errorf("%s in another encoding: %d", name, w.Code)
		}
		want := "public, max-age=31536000, immutable"
		if name == "" {
			want = "no-cache"
		}
		if got := w.Header().Get("Cache-Control"); got != want {
			t.Errorf("%s: Cache-Control %q", name, got)
		}
	}
}

// The page loads its own files only, and contains no code.
func TestPage_LoadsOwnFiles(t *testing.T) {
	t.Parallel()
	page := get(t, "").Body.String()
	for _, name := range AssetNames() {
		if strings.Count(page, `="`+Prefix+name+`"`) != 1 || !HasAsset(name) {
			t.Errorf("the page does not load %s", name)
		}
	}
	for _, m := range regexp.MustCompile(`(?:src|href|data-spec)="([^"]*)"`).FindAllStringSubmatch(page, -1) {
		name, own := strings.CutPrefix(m[1], Prefix)
		if own && HasAsset(name) || strings.HasPrefix(m[1], "#") || m[1] == "/openapi.yaml" || m[1] == "data:," {
			continue
		}
		t.Errorf("the page refers to %s", m[1])
	}
	if found := regexp.MustCompile(`(?i)<style| style=| on[a-z]+=|<script(?: type="module")?>`).FindString(page); found != "" {
		t.Errorf("the page contains %s", found)
	}
	if HasAsset("docs.js") || HasAsset("") {
		t.Error("a file without its hash is served")
	}
}

// Requests can be sent from the page in development mode only.
func TestNew_Try(t *testing.T) {
	t.Parallel()
	for try, want := range map[bool]int{false: 0, true: 1} {
		w := httptest.NewRecorder()
		if err := New(try).Serve(w, httptest.NewRequest(http.MethodGet, "/docs", http.NoBody)); err != nil {
			t.Fatal(err)
		}
		for _, mark := range []string{" data-try", `<form id="token"`} {
			if got := strings.Count(w.Body.String(), mark); got != want {
				t.Errorf("New(%t): %d times %q", try, got, mark)
			}
		}
	}
}

func TestReadProblems(t *testing.T) {
	t.Parallel()
	p := readProblems("# A\n\nOne `<a>` & [two](#b_c).\n\n## b_c\n\n409. See [x](y.md)\nand `[z](#z)`.\n\nMore.\n\n## d\n\n409. D.\n\n## e\n\n503. E.\n")
	if len(p.Intro) != 1 || p.Intro[0] != `One <code>&lt;a&gt;</code> &amp; <a href="#b_c">two</a>.` {
		t.Errorf("intro %q", p.Intro)
	}
	if len(p.Problems) != 3 || p.Problems[0].Code != "b_c" || p.Problems[0].Status != 409 {
		t.Fatalf("problems %+v", p.Problems)
	}
	if text := p.Problems[0].Text; len(text) != 2 || text[0] != "See x\nand <code>[z](#z)</code>." || text[1] != "More." {
		t.Errorf("text %q", text)
	}
	if len(p.Index) != 2 || strings.Join(p.Index[0].Codes, " ") != "b_c d" || p.Index[1].Name != "Service Unavailable" {
		t.Errorf("index %+v", p.Index)
	}
}
