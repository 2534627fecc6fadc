package handler

import (
	"crypto/rand"
	"encoding/hex"
	"net/http"
	"strconv"
	"sync/atomic"
)

// requestIDs names requests. A name is the process's random prefix and a
// number, so it is unique without a random number per request.
type requestIDs struct {
	prefix string
	last   *atomic.Uint64
}

func newRequestIDs() requestIDs {
	var random [6]byte
	if _, err := rand.Read(random[:]); err != nil {
		panic(err) // documented never to happen
	}
	return requestIDs{prefix: hex.EncodeToString(random[:]) + "-", last: new(atomic.Uint64)}
}

// of returns the request's own id when it is harmless, and a new one otherwise,
// in the form of a header's value.
func (g *requestIDs) of(r *http.Request) []string {
	if own := r.Header["X-Request-Id"]; len(own) == 1 && validRequestID(own[0]) {
		return own
	}
	return []string{g.mint()}
}

// mint makes a new id.
func (g *requestIDs) mint() string {
	var buf [40]byte
	b := append(buf[:0], g.prefix...)
	b = strconv.AppendUint(b, g.last.Add(1), 36)
	return string(b)
}

// validRequestID keeps ids to what can stand in a header, a log and a JSON
// string as it is.
func validRequestID(id string) bool {
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
