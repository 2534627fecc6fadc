// Package server is the HTTP server that the routes are served on: net/http with bounds on time
// and size (server.go), and connections that check the raw bytes where net/http is lenient
// (conn.go). Refusals that net/http writes itself become problems of the API (refusals.go).
package server

import (
	"bytes"
	"context"
	stdlog "log"
	"net"
	"net/http"
	"time"

	"github.com/rs/zerolog"
)

// The time limits of a server.
const (
	// readTimeout bounds the time from a request's first byte to the last byte of its body,
	// which limits how long a slow client can hold a connection.
	readTimeout = 4 * time.Second
	// WriteTimeout bounds the time from the headers to the end of the answer, including a
	// purchase's wait for its commit. Streams set their own limit.
	WriteTimeout = 30 * time.Second
	// idleTimeout is how long a connection may be idle between requests.
	idleTimeout = 2 * time.Minute
)

// New returns a server for routes, with bounds on time and size. Its fields can be changed until
// it serves. Serve it on a StrictListener, and set its ErrorLog (see ErrorLog).
func New(h http.Handler) *http.Server {
	return &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if mustClose(r) {
				w.Header()["Connection"] = headerClose
			}
			h.ServeHTTP(w, r)
		}),
		ReadHeaderTimeout: readTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      WriteTimeout,
		IdleTimeout:       idleTimeout,
		// The routes refuse headers above 16 KiB, and a strictConn refuses longer request
		// lines. The server's own limit applies to heads that do not end.
		MaxHeaderBytes: 256 << 10,
		// Disables the server's own answer to `OPTIONS *`.
		DisableGeneralOptionsHandler: true,

		ErrorLog: ErrorLog(zerolog.Nop()),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			if strict, ok := c.(*strictConn); ok {
				return context.WithValue(ctx, strictConnKey{}, strict)
			}
			return ctx
		},
		ConnState: func(c net.Conn, state http.ConnState) {
			if strict, ok := c.(*strictConn); ok {
				strict.enter(state)
			}
		},
	}
}

// ErrorLog returns a logger for http.Server.ErrorLog that writes to log at debug level,
// because clients cause most of a server's errors.
func ErrorLog(log zerolog.Logger) *stdlog.Logger { //nolint:forbidigo // net/http takes no other logger; this one writes to ours
	return stdlog.New(logWriter{log}, "", 0) //nolint:forbidigo // the same
}

// logWriter converts the lines of the standard logger to events.
type logWriter struct{ log zerolog.Logger }

func (w logWriter) Write(line []byte) (int, error) {
	w.log.Debug().Str("from", "net/http").Msg(string(bytes.TrimSpace(line)))
	return len(line), nil
}

// headerClose is shared by all answers, and never changed.
var headerClose = []string{"close"}

// mustClose reports whether the connection must be closed after this answer, because the server
// and a proxy may disagree about the end of the request. It only costs the client a connection:
//   - HTTP/1.0 has no chunks. The server ignores a Transfer-Encoding there, and would treat
//     the body as the next request.
//   - Chunked bodies are legal, but one that came with a Content-Length as well can no longer
//     be distinguished.
func mustClose(r *http.Request) bool {
	if !r.ProtoAtLeast(1, 1) || len(r.TransferEncoding) > 0 {
		return true
	}
	strict, ok := r.Context().Value(strictConnKey{}).(*strictConn)
	return ok && strict.suspect()
}
