package contract

import (
	"bytes"
	"fmt"
	"io"
	"mime"
	"net/http"
)

// Transport checks the exchanges of a client. base sends the requests; it must not decompress
// responses. report gets each difference, and must be safe for concurrent use.
// Responses are read completely before the client gets them, except for streams of events.
func (c *Contract) Transport(base http.RoundTripper, report func(error)) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		e := &Exchange{Method: r.Method, URL: r.URL, Request: r.Header}
		if r.Body != nil && r.Body != http.NoBody {
			sent, err := io.ReadAll(r.Body)
			if err != nil {
				return nil, fmt.Errorf("contract: read request: %w", err)
			}
			if err := r.Body.Close(); err != nil {
				return nil, fmt.Errorf("contract: read request: %w", err)
			}
			e.Sent = sent
			again := *r // a RoundTripper must not change its request
			again.Body = io.NopCloser(bytes.NewReader(sent))
			r = &again
		}
		resp, err := base.RoundTrip(r)
		if err != nil {
			return nil, err
		}
		e.Status, e.Header = resp.StatusCode, resp.Header
		if kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type")); err == nil && kind == eventsType {
			c.follow(e, resp, report)
			return resp, nil
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close() // it has been read, or reading it has failed
		if err != nil {
			resp.Body = io.NopCloser(io.MultiReader(bytes.NewReader(body), failure{err}))
			return resp, nil //nolint:nilerr // the client finds the failure in the body; an incomplete response is no difference
		}
		resp.Body = io.NopCloser(bytes.NewReader(body))
		e.Body = body
		if err := c.Check(e); err != nil {
			report(err)
		}
		return resp, nil
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// failure is a reader that fails.
type failure struct{ err error }

func (f failure) Read([]byte) (int, error) { return 0, f.err }

// follow checks the head of a stream now, and its events as the client reads them.
func (c *Contract) follow(e *Exchange, resp *http.Response, report func(error)) {
	if err := c.Check(e); err != nil {
		report(err)
		return
	}
	_, op, _ := c.find(e.Method, e.URL)
	if op == nil {
		return
	}
	for _, r := range op.documented(e.Status) {
		if m := r.content[eventsType]; m != nil {
			resp.Body = &stream{ReadCloser: resp.Body, check: events{media: m}, report: func(err error) {
				report(fmt.Errorf("%s %s: %d: %w", e.Method, e.URL.RequestURI(), e.Status, err))
			}}
			return
		}
	}
}

// stream checks the events of a response while they are read.
type stream struct {
	io.ReadCloser
	check  events
	failed bool
	report func(error)
}

func (s *stream) Read(b []byte) (int, error) {
	n, err := s.ReadCloser.Read(b)
	if !s.failed {
		if wrong := s.check.add(b[:n]); wrong != nil {
			s.failed = true
			s.report(wrong)
		}
	}
	return n, err
}

// Handler checks the exchanges of a server. report gets each difference, and must be safe for
// concurrent use. Nothing is held back: the handler writes to the connection directly, and may
// take it over; data sent after that is not checked.
func (c *Contract) Handler(h http.Handler, report func(error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent := &copied{ReadCloser: r.Body}
		seen := *r
		if r.Body != nil && r.Body != http.NoBody {
			seen.Body = sent
		}
		rec := &recorder{ResponseWriter: w}
		method, u, request := r.Method, *r.URL, r.Header.Clone()
		h.ServeHTTP(rec, &seen)
		// Without a panic: an aborted response is not checked.
		rec.begin(http.StatusOK)
		e := &Exchange{Method: method, URL: &u, Request: request, Sent: sent.Bytes(), Status: rec.status, Header: rec.header, Body: rec.body.Bytes()}
		if err := c.Check(e); err != nil {
			report(err)
		}
	})
}

// copied keeps what is read of a body.
type copied struct {
	io.ReadCloser
	bytes.Buffer
}

func (c *copied) Read(b []byte) (int, error) {
	n, err := c.ReadCloser.Read(b)
	c.Write(b[:n])
	return n, err
}

// recorder keeps a copy of what a handler writes.
type recorder struct {
	http.ResponseWriter
	status int // 0: not begun
	header http.Header
	body   bytes.Buffer
}

// begin keeps the status and the headers, once.
func (r *recorder) begin(status int) {
	if r.status == 0 {
		r.status, r.header = status, r.Header().Clone()
	}
}

func (r *recorder) WriteHeader(status int) {
	r.begin(status)
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(b []byte) (int, error) {
	r.begin(http.StatusOK)
	n, err := r.ResponseWriter.Write(b)
	r.body.Write(b[:n])
	return n, err
}

// Unwrap returns the writer behind this one, for http.ResponseController.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
