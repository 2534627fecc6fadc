package server_test

import (
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"flashsale/handler/handlertest"
	"flashsale/handler/problem"
	"flashsale/handler/request"
)

// shop answers a purchase and a page like the service, as far as a server can tell.
type shop struct {
	ids    request.IDs
	bought atomic.Int64
}

func newShop() *shop { return &shop{ids: request.NewIDs("")} }

var (
	errNoRoute = problem.New(404, "no_route_in_tests", "No such route", "Nothing is here.")
	errMethod  = problem.New(405, "no_method_in_tests", "Method not allowed", "Use another one.")
)

func (s *shop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id := s.ids.Of(r)[0]
	w.Header().Set("X-Request-Id", id)
	var p *problem.Problem
	if errors.As(s.serve(w, r), &p) {
		p.SetHeaders(w.Header())
		w.WriteHeader(p.Status)
		w.Write(p.AppendBody(nil, id))
	}
}

func (s *shop) serve(w http.ResponseWriter, r *http.Request) error {
	switch {
	case request.HeadersTooLarge(r):
		return request.ErrHeaderTooLarge
	case r.URL.Path == "/page" && (r.Method == http.MethodGet || r.Method == http.MethodHead):
		return nil
	case r.URL.Path != "/buy":
		return errNoRoute
	case r.Method != http.MethodPost:
		return errMethod
	}
	body, err := request.ReadBody(w, r, nil, 4<<10)
	if err != nil {
		return err
	}
	f := request.ReadFields(body)
	f.Integer("quantity", true, 0)
	if err := f.Done(); err != nil {
		return err
	}
	s.bought.Add(1)
	w.WriteHeader(http.StatusCreated)
	return nil
}

// open connects to a new shop with long limits.
func open(t *testing.T) (*handlertest.Conn, *shop) {
	t.Helper()
	s := newShop()
	return handlertest.Dial(t, handlertest.Serve(t, s, handlertest.ReadWithin(20*time.Second))), s
}

const wireBody = `{"quantity":1}`

// rawPurchase is a purchase as text; extra are header lines with their line ends.
func rawPurchase(extra, body string) string {
	return "POST /buy HTTP/1.1\r\nHost: shop\r\nContent-Type: application/json\r\nIdempotency-Key: k\r\n" + extra + "\r\n" + body
}

func withLength(body string) string { return fmt.Sprintf("Content-Length: %d\r\n", len(body)) }

func chunked(body string) string { return fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(body), body) }

const smuggled = "GET /page HTTP/1.1\r\nHost: shop\r\n\r\n"
