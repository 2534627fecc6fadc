package browser_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"flashsale/internal/testing/browser"
)

// judged is a test whose failures are recorded.
type judged struct {
	testing.TB
	cleanups []func()
	errors   []string
}

func (j *judged) Helper()                   {}
func (j *judged) Cleanup(f func())          { j.cleanups = append(j.cleanups, f) }
func (j *judged) Failed() bool              { return false }
func (j *judged) Errorf(s string, a ...any) { j.errors = append(j.errors, fmt.Sprintf(s, a...)) }
func (j *judged) Fatalf(s string, a ...any) { panic(fmt.Sprintf(s, a...)) }

// failure runs f as a test and returns the message that ended it.
func (j *judged) failure(f func()) (message string) {
	defer func() { message = fmt.Sprint(recover()) }()
	f()
	return ""
}

func (j *judged) end() {
	for i := len(j.cleanups) - 1; i >= 0; i-- {
		j.cleanups[i]()
	}
}

// faulty serves a page with a script and a policy, and answers other paths with the status in them.
func faulty(t *testing.T, script string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/":
			w.Header().Set("Content-Security-Policy", "default-src 'self'; img-src * data:; require-trusted-types-for 'script'")
			w.Header().Set("Content-Security-Policy-Report-Only", "frame-src 'none'")
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprint(w, `<!doctype html><link rel="icon" href="data:,"><script src="/script.js"></script><p>The text.</p>`)
		case "/script.js":
			w.Header().Set("Content-Type", "text/javascript")
			fmt.Fprint(w, script)
		case "/409":
			w.WriteHeader(http.StatusConflict)
		default:
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func TestPage_Findings(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		script string
		want   []string
	}{
		"nothing":    {`console.log("fine"); console.warn("fine")`, nil},
		"console":    {`console.error("broken:", 7, {a: 1}, new Error("why"))`, []string{"console: [error] broken: 7 Object Error: why"}},
		"exception":  {`null.x`, []string{"TypeError: Cannot read properties of null"}},
		"rejection":  {`Promise.reject(new Error("late"))`, []string{"(in promise) Error: late"}},
		"refusal":    {`fetch("/409")`, []string{"status of 409"}},
		"failure":    {`fetch("/503")`, []string{"was answered with the status of 503", "status of 503"}},
		"host":       {`new Image().src = "http://foreign.example/x.png"`, []string{"request to a foreign host: http://foreign.example/x.png", "ERR_NAME_NOT_RESOLVED"}},
		"port":       {`fetch("http://127.0.0.1:1/x", {mode: "no-cors"}).catch(() => 0)`, []string{"content security policy: connect-src", "Connecting to", "Fetch API cannot load"}},
		"socket":     {`new WebSocket("ws://foreign.example/")`, []string{"content security policy: connect-src", "Connecting to"}},
		"inline":     {`document.head.append(Object.assign(document.createElement("style"), {textContent: "p {color: red}"}))`, []string{"content security policy: style-src-elem", "Applying inline style"}},
		"sink":       {`try { document.head.innerHTML = "<b>"; } catch {}`, []string{"content security policy: require-trusted-types-for, kTrustedTypesSinkViolation", "TrustedHTML"}},
		"reportonly": {`addEventListener("load", () => document.body.append(Object.assign(document.createElement("iframe"), {src: "/409"})))`, []string{"(report only)", "violates the following report-only", "status of 409"}},
		"dialog":     {`confirm("Really?")`, []string{"dialog (confirm): Really?"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := &judged{TB: t}
			p := browser.New(j, browser.Options{})
			p.Goto(faulty(t, c.script))
			for _, want := range c.want {
				p.AwaitFinding(want)
			}
			j.end()
			for _, finding := range j.errors {
				if !slices.ContainsFunc(c.want, func(want string) bool { return strings.Contains(finding, want) }) {
					t.Errorf("unexpected finding: %s", finding)
				}
			}
		})
	}
}

// Expect allows findings before and after they occur; dialogs can be accepted.
func TestPage_Expect(t *testing.T) {
	t.Parallel()
	j := &judged{TB: t}
	p := browser.New(j, browser.Options{Hosts: []string{"foreign.example"}})
	p.AcceptDialogs()
	p.Expect("status of 503")
	p.Goto(faulty(t, `fetch("/503"); console.error("own"); new Image().src = "http://foreign.example/"; if (!confirm("Really?")) console.error("no")`))
	p.AwaitFinding("status of 503")
	p.AwaitFinding("ERR_NAME_NOT_RESOLVED")
	p.Expect("own", "ERR_NAME_NOT_RESOLVED")
	j.end()
	if len(j.errors) != 0 {
		t.Errorf("findings: %q", j.errors)
	}
}

// A wait that fails shows the page.
func TestPage_ErrWait(t *testing.T) {
	t.Parallel()
	j := &judged{TB: t}
	p := browser.New(j, browser.Options{})
	defer j.end()
	url := faulty(t, `console.log("a line")`)
	p.Goto(url)
	for want, f := range map[string]func(){
		`the text "other"`:           func() { p.Hurry(func() { p.WaitText("p", "other") }) },
		"no element matches":         func() { p.Hurry(func() { p.Click("button") }) },
		"not a form field":           func() { p.Hurry(func() { p.Fill("p", "x") }) },
		"1 === 2":                    func() { p.Hurry(func() { p.WaitTrue("1 === 2") }) },
		"net::ERR_UNSAFE_PORT":       func() { p.Goto("http://127.0.0.1:1/") },
		"ReferenceError: missing is": func() { p.Eval("missing", nil) },
	} {
		message := j.failure(f)
		for _, part := range []string{want, "visible text:", "console:"} {
			if !strings.Contains(message, part) {
				t.Errorf("the message of %q does not contain %q:\n%s", want, part, message)
			}
		}
		if p.Goto(url); want == `the text "other"` && (!strings.Contains(message, "The text.") || !strings.Contains(message, url) || !strings.Contains(message, "[log] a line")) {
			t.Errorf("the message does not show the page:\n%s", message)
		}
	}
	p.Expect("ERR_")
}
