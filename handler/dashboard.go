package handler

import (
	"net/http"
	"slices"

	"flashsale/handler/auth"
	"flashsale/handler/pages"
	"flashsale/handler/problem"
	"flashsale/handler/request"
)

// dashboardRoutes are the admin's pages. Each is a frame; its module reads and changes everything
// through the API.
type dashboardRoutes struct{ sessions }

// dashboardPages are the paths of the dashboard's pages and the templates that they show.
var dashboardPages = []struct{ path, page string }{
	{"/admin", "overview"},
	{"/admin/items", "items"},
	{"/admin/items/:item", "item"},
	{"/admin/orders", "orders"},
	{"/admin/orders/:order", "order"},
	{"/admin/payments", "payments"},
	{"/admin/dead", "dead"},
	{"/admin/webhooks", "webhooks"},
	{"/admin/webhooks/:webhook", "webhook"},
	{"/admin/reconcile", "reconcile"},
	{"/admin/audit", "audit"},
}

// dashboardTable has the routes of the admin's pages.
func (f *features) dashboardTable() []route {
	d := &f.dashboard
	all := []route{
		{Method: http.MethodGet, Path: "/admin/login", Page: true, Produces: request.MediaHTML, Query: []string{"next"}, Handle: d.login},
		{Method: http.MethodPost, Path: "/admin/login", Page: true, Produces: request.MediaHTML, Query: noQuery,
			Body: bodyForm, MaxBody: maxForm, Handle: d.logIn},
		{Method: http.MethodPost, Path: "/admin/logout", Page: true, Produces: request.MediaHTML, Query: noQuery,
			Body: bodyForm, MaxBody: maxForm, Handle: d.logOut},
	}
	for _, p := range dashboardPages {
		all = append(all, route{Method: http.MethodGet, Path: p.path, Page: true, Roles: admins, Produces: request.MediaHTML,
			Handle: d.show(p.page)})
	}
	return all
}

// show returns the endpoint of a page.
func (rs *dashboardRoutes) show(page string) endpoint {
	if !slices.Contains(pages.AdminPages(), page) {
		panic("handler: the dashboard has no page " + page)
	}
	return func(q *call) error {
		q.c.Writer.Header()["Cache-Control"] = headerNoStore
		return q.page(http.StatusOK, "admin/"+page, pages.Admin{Frame: rs.frame(q), Page: page})
	}
}

// login answers GET /admin/login.
func (rs *dashboardRoutes) login(q *call) error {
	return rs.showLogin(q, http.StatusOK, q.query.Get("next"), nil)
}

func (rs *dashboardRoutes) showLogin(q *call, status int, next string, refusal *problem.Problem) error {
	page := pages.Login{Frame: rs.frame(q), Next: localPath(next, "/admin")}
	if refusal != nil {
		page.Notice = noticeOf(page.Frame, refusal, q.requestID())
	}
	q.c.Writer.Header()["Cache-Control"] = headerNoStore
	return q.page(status, "admin/login", page)
}

// logIn answers POST /admin/login with an admin's token.
func (rs *dashboardRoutes) logIn(q *call) error {
	next := localPath(q.form.Get("next"), "/admin")
	if err := rs.start(q, adminCookie, q.form.Get("token"), auth.RoleAdmin); err != nil {
		p := lookUp(err)
		if p == nil {
			return err
		}
		return rs.showLogin(q, http.StatusForbidden, next, p)
	}
	return q.redirect(next)
}

// logOut answers POST /admin/logout.
func (rs *dashboardRoutes) logOut(q *call) error {
	rs.end(q, adminCookie)
	q.c.Writer.Header()["Clear-Site-Data"] = []string{`"cache"`}
	return q.redirect("/admin/login")
}
