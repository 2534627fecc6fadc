package handler

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
	// readTimeout bounds the time from a request's first byte to the last one
	// of its body: a client that trickles holds a connection no longer.
	readTimeout = 4 * time.Second
	// writeTimeout bounds the time from the headers to the end of the answer.
	// A purchase may wait for its commit in between; a route that streams sets
	// a limit of its own.
	writeTimeout = 30 * time.Second
	// idleTimeout is how long a connection may rest between requests.
	idleTimeout = 2 * time.Minute
)

// NewServer returns a server for the routes of New or NewOps, with bounds on
// time and size; its fields can be changed until it serves. Serve it on a
// StrictListener, and set ErrorLog (see ServerLog) to learn what it complains of.
func NewServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if mustClose(r) {
				w.Header()["Connection"] = headerClose
			}
			h.ServeHTTP(w, r)
		}),
		ReadHeaderTimeout: readTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		// The routes refuse headers above 16 KiB, and a strictConn refuses longer
		// request lines. The server's own limit is for heads that do not end.
		MaxHeaderBytes: 256 << 10,
		// `OPTIONS *` gets no answer of the server's own either.
		DisableGeneralOptionsHandler: true,

		ErrorLog: ServerLog(zerolog.Nop()),
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

// ServerLog makes a logger for http.Server.ErrorLog that writes to log at debug
// level: most of what a server complains of is the doing of clients.
func ServerLog(log zerolog.Logger) *stdlog.Logger { //nolint:forbidigo // net/http takes no other logger; this one writes to ours
	return stdlog.New(logWriter{log}, "", 0) //nolint:forbidigo // the same
}

// logWriter turns the lines of the standard logger into events.
type logWriter struct{ log zerolog.Logger }

func (w logWriter) Write(line []byte) (int, error) {
	w.log.Debug().Str("from", "net/http").Msg(string(bytes.TrimSpace(line)))
	return len(line), nil
}

// mustClose reports whether the connection has to end with this answer, because
// the server may have seen the request end elsewhere than another reader on the
// way did. Neither case costs a client of this service more than a connection:
//   - HTTP/1.0 has no chunks. The server drops a Transfer-Encoding there, and
//     would answer the body as the next request.
//   - Chunked bodies are legal, but one that came with a Content-Length as well
//     looks the same by now.
func mustClose(r *http.Request) bool {
	if !r.ProtoAtLeast(1, 1) || len(r.TransferEncoding) > 0 {
		return true
	}
	strict, ok := r.Context().Value(strictConnKey{}).(*strictConn)
	return ok && strict.suspect()
}
