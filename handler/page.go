package handler

import (
	"bytes"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"flashsale/handler/pages"
	"flashsale/handler/problem"
	"flashsale/handler/request"
)

// frame returns what a page shows around its content.
func (s *sessions) frame(q *call) pages.Frame {
	f := frameOf(q)
	f.Development = s.signToken != nil
	return f
}

// frameOf returns what every page shows around its content, also a refusal. It stores a language that
// the reader chooses. The dashboard has only the default language.
func frameOf(q *call) pages.Frame {
	r := q.c.Request
	f := pages.Frame{Language: pages.LanguageOf(r), Path: pageOf(r), Query: url.Values{}}
	if r.URL.RawQuery != "" { // a refused request has not read its query
		if l := pages.LanguageNamed(request.PickQuery(r, []string{"lang"}).Get("lang")); l != nil {
			f.Language = l
			http.SetCookie(q.c.Writer, &http.Cookie{Name: pages.LanguageCookie, Value: l.Code, Path: "/", HttpOnly: true,
				SameSite: http.SameSiteLaxMode, MaxAge: 365 * 24 * 3600})
		}
	}
	for _, name := range q.route.Query {
		if name != "lang" && q.query.Has(name) {
			f.Query.Set(name, q.query.Get(name))
		}
	}
	if strings.HasPrefix(q.route.Path, "/admin") {
		f.Language, f.Admin = pages.Languages()[0], q.identity.Subject
	} else {
		f.Buyer = q.identity.Subject
	}
	return f
}

// pageOf returns the path of the page that a request shows, or for a form's request that of the
// form's page: /items/x for /items/x/buy. It is never one that begins with //: as a link, that would
// lead to another host.
func pageOf(r *http.Request) string {
	path := r.URL.Path
	if strings.HasPrefix(path, "//") {
		return "/"
	}
	if r.Method == http.MethodGet || r.Method == http.MethodHead || strings.HasSuffix(path, "/login") {
		return path
	}
	return parentOf(path)
}

// parentOf returns a path without its last segment: of a form's path, that of its page.
func parentOf(path string) string { return path[:max(1, strings.LastIndexByte(path, '/'))] }

// formPath reports whether a path is that of a form of the shop's pages.
func formPath(path string) bool {
	for _, action := range []string{"/buy", "/pay", "/cancel"} {
		if strings.HasSuffix(path, action) {
			return true
		}
	}
	return false
}

// page writes a page as the answer.
func (q *call) page(status int, name string, content any) error {
	return q.html(status, func(w io.Writer) error { return pages.Render(w, name, content) })
}

// html writes a page as the answer.
func (q *call) html(status int, render func(w io.Writer) error) error {
	b := bytes.NewBuffer(q.out[:0])
	if err := render(b); err != nil {
		return err
	}
	q.out = b.Bytes()
	h := q.c.Writer.Header()
	pages.SetHeaders(h)
	h["Content-Length"] = []string{strconv.Itoa(len(q.out))}
	q.c.Writer.WriteHeader(status)
	if _, err := q.c.Writer.Write(q.out); err != nil {
		return errClientGone
	}
	return nil
}

// redirect leads the browser to another page of this site, by GET.
func (q *call) redirect(to string) error {
	h := q.c.Writer.Header()
	h["Location"] = []string{to}
	h["Cache-Control"] = headerNoStore
	q.c.Writer.WriteHeader(http.StatusSeeOther)
	q.c.Writer.WriteHeaderNow()
	return nil
}

// refusalPage writes a refusal for a reader. A request without a valid session leads to the login
// form, and from there to the page that it came from.
func (q *call) refusalPage(p *problem.Problem) error {
	r := q.c.Request
	admin := strings.HasPrefix(q.route.Path, "/admin")
	if p.Status == http.StatusUnauthorized {
		next := pageOf(r)
		if next == r.URL.Path {
			next = r.URL.RequestURI()
		}
		form := "/login"
		if admin {
			form = "/admin/login"
		}
		h := q.c.Writer.Header()
		h.Del("Www-Authenticate")
		h.Del("Content-Type")
		return q.redirect(form + "?next=" + url.QueryEscape(next))
	}
	if q.showRefusal != nil {
		return q.showRefusal(p)
	}
	page := pages.ErrorPage{Frame: frameOf(q), Status: p.Status, Back: "/", Repeat: q.repeatOf(p)}
	switch {
	case admin:
		page.Back = "/admin"
	case page.Path != r.URL.Path:
		page.Back = page.Path
	}
	page.Title, page.Notice = page.ProblemTitle(p.Code, p.Param, p.Title), noticeOf(page.Frame, p, q.requestID())
	q.c.Writer.Header()["Cache-Control"] = headerNoStore
	return q.page(p.Status, "shop/error", &page)
}

// repeatOf returns the form of a buyer's refused request if a repeat may succeed; otherwise nil. A
// request that was refused for lack of capacity has not read its form yet.
func (q *call) repeatOf(p *problem.Problem) *pages.Repeat {
	r := q.route
	if r.Body != bodyForm || len(r.Roles) == 0 || p.RetryAfter() == 0 && p.Status < http.StatusInternalServerError {
		return nil
	}
	if q.form == nil {
		in := q.c.Request
		if request.CheckForm(in.Header) != nil {
			return nil
		}
		var err error
		if q.in, err = request.ReadBody(q.c.Writer, in, q.in[:0], r.MaxBody); err != nil || q.readForm() != nil {
			return nil
		}
	}
	repeat := &pages.Repeat{Action: q.c.Request.URL.Path}
	for _, name := range []string{"key", "quantity", "buyer"} {
		value := q.form.Get(name)
		switch {
		case request.VisibleASCII(value, maxKeyLength):
			repeat.Fields = append(repeat.Fields, pages.Field{Name: name, Value: value})
		case r.Gated && name != "buyer":
			return nil // a purchase needs both
		}
	}
	return repeat
}

// noticeOf describes a refusal in the reader's language, or in English if it is one that readers of
// pages do not meet.
func noticeOf(f pages.Frame, p *problem.Problem, requestID string) *pages.Notice {
	return &pages.Notice{Code: p.Code, Title: f.ProblemTitle(p.Code, p.Param, p.Title), Text: f.ProblemText(p.Code, p.Param, p.Detail),
		RetryAfter: p.RetryAfter(), RequestID: requestID}
}
