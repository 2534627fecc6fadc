package service

import (
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
)

// banner is what a start prints once everything is built. A field that the process has
// no value for stays empty, and its line is left out.
type banner struct {
	shop, dashboard    string // addresses
	api, docs, metrics string
	payments           string // of the mock payment service, in development mode
	database, engine   string // what they make durable
	mode, admin        string // of development only: what it is, and a token
}

// write writes the banner in one piece.
func (b *banner) write(out io.Writer) {
	var text strings.Builder
	for _, line := range []struct{ name, value string }{
		{"shop", b.shop}, {"dashboard", b.dashboard}, {"api", b.api}, {"docs", b.docs}, {"metrics", b.metrics},
		{"payments", b.payments}, {"database", b.database}, {"engine", b.engine}, {"mode", b.mode}, {"admin", b.admin},
	} {
		if line.value != "" {
			fmt.Fprintf(&text, "%-9s %s\n", line.name, line.value)
		}
	}
	fmt.Fprint(out, text.String())
}

// reachable returns the host and port at which a client on this machine reaches a listener. One that listens on all
// addresses has none that a browser can open.
func reachable(a net.Addr) string {
	if t, ok := a.(*net.TCPAddr); ok && t.IP.IsUnspecified() {
		return net.JoinHostPort("localhost", strconv.Itoa(t.Port))
	}
	return a.String()
}
