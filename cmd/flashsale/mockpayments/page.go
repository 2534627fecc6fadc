package mockpayments

import (
	"bytes"
	_ "embed" // the page and its style
	"html/template"
	"net/http"
	"time"
)

// shownCharges bounds the charges on the page.
const shownCharges = 100

// policy is the page's content security policy: it has a style and nothing else.
const policy = "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

var (
	//go:embed page.html
	pageText string
	//go:embed style.css
	style string

	page = template.Must(template.New("page").Funcs(template.FuncMap{
		"utc": func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000") },
	}).Parse(pageText))
)

// pageData are the values of the page.
type pageData struct {
	Charges           []charge
	Events            []event
	Repeats, Unsigned int
	Registered        bool
}

// servePage answers GET /.
func (p *Provider) servePage(w http.ResponseWriter, _ *http.Request) {
	data := pageData{Charges: p.charges.latest(shownCharges), Registered: p.inbox.verifier != nil}
	data.Events, data.Repeats, data.Unsigned = p.inbox.latest()
	var b bytes.Buffer
	if err := page.Execute(&b, data); err != nil {
		p.cfg.OnError(err)
		http.Error(w, "the page cannot be shown", http.StatusInternalServerError)
		return
	}
	serveText(w, "text/html; charset=utf-8", b.Bytes())
}

// serveStyle answers GET /style.css.
func serveStyle(w http.ResponseWriter, _ *http.Request) {
	serveText(w, "text/css; charset=utf-8", []byte(style))
}

func serveText(w http.ResponseWriter, kind string, text []byte) {
	h := w.Header()
	h.Set("Content-Type", kind)
	h.Set("Content-Security-Policy", policy)
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
	w.Write(text)
}
