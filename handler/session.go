package handler

import (
	"net/http"
	"net/url"
	"strings"
	"time"

	"flashsale/handler/auth"
	"flashsale/handler/request"
)

// The cookies in which a browser sends the tokens of the shop page and of the dashboard. Scripts
// cannot read them, and other sites' pages cannot send requests with them.
const (
	buyerCookie = "flashsale_buyer"
	adminCookie = "flashsale_admin"
)

// sessionHeader selects the cookie for a request of a page's script: "buyer" or "admin". Other
// sites' pages cannot send it.
const sessionHeader = "X-Flashsale-Session"

// buyerHeader is the buyer who is logged in on the page that sends a request.
const buyerHeader = "X-Flashsale-Buyer"

// maxForm bounds a form, in bytes. A token is at most as long as the headers of a request.
const maxForm = 16 << 10

// sessions log browsers in and out.
type sessions struct {
	verifier  *auth.Verifier
	signToken func(sub, role string, ttl time.Duration) (string, error) // nil: not in development mode
	loginURL  string
	now       func() time.Time
}

// crossOrigin refuses requests that another site's page made a browser send.
var crossOrigin = http.NewCrossOriginProtection()

// authenticateCookie returns the identity of a browser's session.
func (e *edge) authenticateCookie(q *call) (auth.Identity, error) {
	r := q.c.Request
	name := sessionOf(q)
	if name == "" || len(r.Header["Cookie"]) == 0 {
		return auth.Identity{}, problemAuthMissing
	}
	if crossOrigin.Check(r) != nil {
		return auth.Identity{}, problemCrossOrigin
	}
	id, err := auth.Identity{}, error(problemAuthMissing)
	// There may be an expired one as well, which the shop has set for another path or domain.
	for _, cookie := range r.CookiesNamed(cookieName(name, e.DevTokens != nil)) {
		if cookie.Value == "" {
			continue
		}
		if id, err = e.Verifier.Verify(cookie.Value); err == nil {
			break
		}
	}
	// A page that was opened by another buyer must not act for this one.
	if sender := r.Header[buyerHeader]; err == nil && len(sender) > 0 && sender[0] != id.Subject {
		return auth.Identity{}, problemAuthMissing
	}
	return id, err
}

// cookieName returns the name of a session's cookie. The prefix prevents other hosts of the domain from
// setting the admin's; browsers accept it only over HTTPS, which development mode lacks. The buyer's
// may be set by the shop.
func cookieName(session string, development bool) string {
	if session == adminCookie && !development {
		return "__Host-" + adminCookie
	}
	return session
}

// problemCrossOrigin refuses a request that carries a session but was caused by another site.
var problemCrossOrigin = problemForbidden.With("", "The request comes from another site's page; send it from a page of this service.")

// sessionOf returns the name of the cookie that authenticates the request; "" for none. A change
// through the API must name its session, so that the shop page and the dashboard can be used in
// one browser.
func sessionOf(q *call) string {
	r, path := q.c.Request, q.route.Path
	switch named, given := r.Header[sessionHeader]; {
	case given && len(named) == 1 && named[0] == "admin":
		return adminCookie
	case given && len(named) == 1 && named[0] == "buyer":
		return buyerCookie
	case given:
		return ""
	case !q.route.Page && r.Method != http.MethodGet && r.Method != http.MethodHead:
		return ""
	case strings.HasPrefix(path, "/admin") || strings.HasPrefix(path, "/v1/admin/"):
		return adminCookie
	default:
		return buyerCookie
	}
}

// readForm parses the body as a form.
func (q *call) readForm() error {
	if crossOrigin.Check(q.c.Request) != nil {
		return problemCrossOrigin
	}
	form, err := url.ParseQuery(string(q.in))
	if err != nil {
		return request.ErrParameter.With("", "The form is malformed.")
	}
	if sender := form.Get("buyer"); form.Has("buyer") && q.identity.Subject != "" && sender != q.identity.Subject {
		return problemAuthMissing // as for buyerHeader
	}
	q.form = form
	return nil
}

// maxCookie is the length of the longest cookie that browsers keep, with its name, in bytes.
const maxCookie = 4096

// problemLongToken refuses a token that browsers would drop without a word.
var problemLongToken = request.ErrFieldRange.With("token", "The token is too long for a browser's cookie: at most 4,000 bytes.")

// start sets the cookie of a session if the token is valid for the role.
func (s *sessions) start(q *call, name, token string, role auth.Role) error {
	if len(name)+len(token) > maxCookie-len("__Host-=") {
		return problemLongToken
	}
	id, err := s.verifier.Verify(token)
	if err != nil {
		return err
	}
	if id.Role != role {
		return problemForbidden
	}
	c := s.cookie(name, token)
	if !id.Expires.IsZero() {
		c.MaxAge = max(1, int(id.Expires.Sub(s.now())/time.Second))
	}
	http.SetCookie(q.c.Writer, c)
	return nil
}

// end deletes the cookie of a session.
func (s *sessions) end(q *call, name string) {
	c := s.cookie(name, "")
	c.MaxAge = -1
	http.SetCookie(q.c.Writer, c)
}

// cookie returns a cookie that only this site's requests carry. Links from other sites open the shop
// page with its session (Lax), but not the dashboard (Strict). Development mode has no TLS.
func (s *sessions) cookie(name, value string) *http.Cookie {
	c := &http.Cookie{Name: cookieName(name, s.signToken != nil), Value: value, Path: "/", HttpOnly: true, Secure: s.signToken == nil, SameSite: http.SameSiteLaxMode}
	if name == adminCookie {
		c.SameSite = http.SameSiteStrictMode
	}
	return c
}

// localPath returns a path of this site to which a form may lead, or fallback.
func localPath(path, fallback string) string {
	u, err := url.Parse(path)
	if err != nil || u.IsAbs() || u.Host != "" || !strings.HasPrefix(path, "/") || strings.HasPrefix(path, "//") || strings.ContainsAny(path, "\\\r\n\t") {
		return fallback
	}
	return path
}

// withNext returns the URL of a login page with the path to which it may lead back.
func withNext(login, next string) string {
	u, err := url.Parse(login)
	if err != nil {
		return login
	}
	values := u.Query()
	values.Set("next", next)
	u.RawQuery = values.Encode()
	return u.String()
}
