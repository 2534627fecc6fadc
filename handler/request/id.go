package request

import (
	"crypto/rand"
	"encoding/hex"
	"net/http"
	"strconv"
	"sync/atomic"
)

// IDs generates request ids. An id is the process's random name and a number, so it is
// unique without a random number per request, and costs a queued order few bytes: see
// order.Task.
type IDs struct {
	prefix string
	last   *atomic.Uint64
}

// NewIDs returns a generator whose ids begin with the name of this process; empty: with a random
// name.
func NewIDs(process string) IDs {
	if process != "" {
		return IDs{prefix: process + "-", last: new(atomic.Uint64)}
	}
	var random [6]byte
	if _, err := rand.Read(random[:]); err != nil {
		panic(err) // documented never to happen
	}
	return IDs{prefix: hex.EncodeToString(random[:]) + "-", last: new(atomic.Uint64)}
}

// Of returns the request's own id if it is valid, and otherwise a new one, as a header value.
func (g *IDs) Of(r *http.Request) []string {
	if own := r.Header["X-Request-Id"]; len(own) == 1 && validID(own[0]) {
		return own
	}
	return []string{g.New()}
}

// New returns a new id.
func (g *IDs) New() string {
	var buf [40]byte
	b := append(buf[:0], g.prefix...)
	b = strconv.AppendUint(b, g.last.Add(1), 36)
	return string(b)
}

// validID restricts ids to characters that need no escaping in a header, a log or a JSON
// string.
func validID(id string) bool {
	if len(id) == 0 || len(id) > 64 {
		return false
	}
	for i := range len(id) {
		c := id[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}
