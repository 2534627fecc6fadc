package browser_test

import (
	"fmt"
	"image/png"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"flashsale/internal/testing/browser"
)

func TestMain(m *testing.M) { browser.Main(m) }

// site serves pages: the bodies of HTML documents by their paths.
func site(t *testing.T, pages map[string]string) string {
	t.Helper()
	mux := http.NewServeMux()
	for path, body := range pages {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			fmt.Fprint(w, `<!doctype html><html lang="en"><title>A page</title><link rel="icon" href="data:,"><body><main><h1>Title</h1>`+body+`</main>`)
		})
	}
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

func TestPage_ActsAndWaits(t *testing.T) {
	t.Parallel()
	url := site(t, map[string]string{"/{$}": `
<form onsubmit="event.preventDefault(); setTimeout(() => out.textContent = [n.value, d.value, s.value, a.value].join('  |\n'), 50)">
<input id="n" aria-label="Name" value="old"><input id="d" type="date" aria-label="Day">
<select id="s" aria-label="Size"><option value="1">One</option><option value="2">Number two</option></select>
<textarea id="a" aria-label="Text">old</textarea>
<button type="button" hidden>Send</button><button style="margin-top: 3000px">Send it</button></form><p id="out">nothing</p>`})
	p := browser.New(t, browser.Options{})
	if status := p.Goto(url); status != 200 {
		t.Errorf("status %d", status)
	}
	p.Fill("#n", "alice")
	p.Fill("#d", "2026-11-23")
	p.Fill("#s", "Number two")
	p.Fill("textarea", "")
	p.Click("button >> Send")
	p.WaitText("#out", "alice | 2026-11-23 | 2 |")
	p.Fill("#n", "bob")
	p.Press("Enter")
	p.WaitText("#out", "bob |")
	p.WaitNoText("#out", "alice")
	if got := p.Text("button >> it"); got != "Send it" {
		t.Errorf("text %q", got)
	}
	p.Press("Tab")
	p.WaitTrue("document.activeElement.id === 'd'")
	p.Press("Shift+Tab")
	p.Press("Control+a")
	p.Press("x")
	if got := p.Value("#n"); got != "x" {
		t.Errorf("value %q", got)
	}
	if got, ok := p.Attribute("#d", "type"); got != "date" || !ok {
		t.Errorf("attribute %q, %t", got, ok)
	}
	if n := p.Count("button"); n != 2 {
		t.Errorf("%d buttons", n)
	}
	p.WaitCount("button", 1)
	p.WaitGone("button[hidden]")
}

func TestPage_Navigates(t *testing.T) {
	t.Parallel()
	url := site(t, map[string]string{"/a": `<a href="/b">to b</a>`, "/b": `<p id="b">This is b.</p>`, "/c": `<p>This is c.</p>`})
	p := browser.New(t, browser.Options{})
	p.Goto(url + "/a")
	p.Click("a >> to b")
	p.WaitURL("/b")
	p.WaitText("p", "This is b.")
	if status := p.Reload(); status != 200 {
		t.Errorf("status %d after the reload", status)
	}
	p.Back()
	p.WaitVisible("a")
	p.Forward()
	p.WaitVisible("#b")
	if got := p.URL(); got != url+"/b" {
		t.Errorf("address %s", got)
	}
	p.Expect("status of 404")
	if status := p.Goto(url + "/missing"); status != 404 {
		t.Errorf("status %d", status)
	}
	p.Goto(url + "/c")
	p.Goto(url + "/c#anchor")
	var paths []string
	for _, r := range p.Requests() {
		if strings.HasSuffix(r.URL, "/favicon.ico") {
			continue // of the error page, at some time
		}
		paths = append(paths, r.Method+" "+strings.TrimPrefix(r.URL, url))
	}
	if got := strings.Join(paths, ", "); !strings.HasPrefix(got, "GET /a, GET /b, GET /b, ") || !strings.HasSuffix(got, "GET /missing, GET /c") {
		t.Errorf("requests %s", got)
	}
}

// A page of its own has cookies of its own; a tab shares them.
func TestPage_Cookies(t *testing.T) {
	t.Parallel()
	url := site(t, map[string]string{"/{$}": `<script>document.cookie = "seen=" + (document.cookie ? "again" : "first")</script>`})
	p, other := browser.New(t, browser.Options{}), browser.New(t, browser.Options{})
	p.Goto(url)
	other.Goto(url)
	tab := p.NewTab()
	tab.Goto(url)
	for page, want := range map[*browser.Page]string{p: "again", other: "first"} {
		if c := page.Cookies(); len(c) != 1 || c[0].Value != want {
			t.Errorf("cookies %+v, want %s", c, want)
		}
	}
	p.ClearCookies()
	if c := tab.Cookies(); len(c) != 0 {
		t.Errorf("cookies after their deletion: %+v", c)
	}
}

func TestNew_Options(t *testing.T) {
	t.Parallel()
	url := site(t, map[string]string{"/{$}": `<noscript><p>No script.</p></noscript><p id="s"></p><script>s.textContent = "Script."</script>`})
	const state = `[innerWidth, devicePixelRatio, navigator.language, matchMedia("(prefers-color-scheme: dark)").matches, matchMedia("(pointer: coarse)").matches,
		Intl.DateTimeFormat().resolvedOptions().timeZone, (1234.5).toLocaleString()].join(" ")`
	for want, o := range map[string]browser.Options{
		"1280 1 en-US false false UTC 1,234.5":        {},
		"390 2 de-DE true true Asia/Shanghai 1.234,5": {Mobile: true, Dark: true, Scale: 2, Lang: "de-DE", Timezone: "Asia/Shanghai"},
	} {
		p := browser.New(t, o)
		p.Goto(url)
		var got string
		if p.Eval(state, &got); got != want && !o.Mobile || o.Mobile && !strings.Contains(got, "de-DE true true Asia/Shanghai 1.234,5") {
			t.Errorf("got %s, want %s", got, want)
		}
		p.WaitText("#s", "Script.")
	}
	p := browser.New(t, browser.Options{NoScript: true})
	p.Goto(url)
	p.WaitText("p", "No script.")
	if got := p.Texts("#s"); len(got) != 1 || got[0] != "" {
		t.Errorf("a script ran: %q", got)
	}
	p.CheckAxe()
}

// Pages run in parallel, and none is slowed down because another one is in the foreground.
func TestNew_Parallel(t *testing.T) {
	t.Parallel()
	url := site(t, map[string]string{"/{$}": `<p id="n">0</p><input id="f" aria-label="Field"><script>
const step = () => { n.textContent = Number(n.textContent) + 1; if (n.textContent < 20) requestAnimationFrame(step); };
f.onfocus = () => requestAnimationFrame(step)</script>`})
	for range 4 {
		t.Run("page", func(t *testing.T) {
			t.Parallel()
			p := browser.New(t, browser.Options{})
			p.Goto(url)
			p.Click("#f")
			p.WaitText("#n", "20")
		})
	}
}

func TestPage_Offline(t *testing.T) {
	t.Parallel()
	url := site(t, map[string]string{"/{$}": `<p id="state">start</p><script>
addEventListener("offline", () => state.textContent = "offline"); addEventListener("online", () => state.textContent = "online");
const load = (path) => fetch(path).then((r) => r.status, () => "failed")</script>`, "/x": "", "/y": ""})
	p := browser.New(t, browser.Options{})
	p.Goto(url)
	answer := func(path, want string) {
		t.Helper()
		var got any
		if p.Eval("load('"+path+"').then(String)", &got); got != want {
			t.Errorf("%s: %v, want %s", path, got, want)
		}
	}
	answer("/x", "200")
	p.Offline(true)
	p.WaitText("#state", "offline")
	answer("/x", "failed")
	p.Goto(url + "/y")
	p.Offline(false)
	p.Goto(url)
	p.Block("http://*:*/x*")
	answer("/x?a=b", "failed")
	answer("/y", "200")
	p.Block()
	answer("/x", "200")
}

// Axe runs under a policy that allows no script but the page's own.
func TestPage_Axe(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Security-Policy", "default-src 'none'; img-src data:; require-trusted-types-for 'script'; trusted-types 'none'")
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, `<!doctype html><html lang="en"><title>A page</title><link rel="icon" href="data:,"><main><h1>Title</h1><img id="i" src="data:,"><div id="d"><input id="f"></div></main>`)
	}))
	t.Cleanup(server.Close)
	p := browser.New(t, browser.Options{})
	p.Goto(server.URL)
	var rules []string
	for _, v := range p.Axe() {
		rules = append(rules, v.ID+" "+v.Impact+" "+v.Nodes[0].Target)
	}
	if got := strings.Join(rules, ", "); got != "image-alt critical #i, label critical #f" {
		t.Errorf("violations: %s", got)
	}
	if rest := p.Axe("#i", "#d"); len(rest) != 0 {
		t.Errorf("violations outside of the excluded elements: %+v", rest)
	}
}

func TestPage_Screenshot(t *testing.T) {
	t.Parallel()
	url := site(t, map[string]string{"/{$}": `<p style="background: linear-gradient(90deg, red, blue); height: 300px">Text</p>`})
	p := browser.New(t, browser.Options{Width: 640, Height: 480})
	p.Goto(url)
	path := filepath.Join(t.TempDir(), "page.png")
	p.Screenshot(path)
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	picture, err := png.Decode(f)
	if err != nil {
		t.Fatal(err)
	}
	if size := picture.Bounds().Size(); size.X != 640 || size.Y != 480 {
		t.Errorf("size %v", size)
	}
	if r, _, b, _ := picture.At(40, 200).RGBA(); r < b {
		t.Errorf("the left of the gradient is not red: %d, %d", r, b)
	}
}
