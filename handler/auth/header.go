package auth

import (
	"strings"
	"sync/atomic"

	"flashsale/handler/strictjson"
)

// header is the decoded header of a token.
type header struct {
	alg    string
	kid    string
	hasKID bool
}

// headerCache caches recently read headers. An issuer writes one header per key, so nearly
// every token begins with a cached one. Headers of refused tokens are cached too, because
// reading a header does not depend on the rest.
type headerCache struct {
	slots [16]atomic.Pointer[cachedHeader]
}

type cachedHeader struct {
	raw    string
	header header
	err    error
}

// maxCachedHeader bounds the size of a cached header; longer ones are decoded each time.
const maxCachedHeader = 512

func (c *headerCache) read(raw string) (header, error) {
	// Headers with a key id differ most in their last bytes.
	var slot uint32
	for i := max(0, len(raw)-8); i < len(raw); i++ {
		slot = slot*31 + uint32(raw[i])
	}
	at := &c.slots[slot%uint32(len(c.slots))]
	if known := at.Load(); known != nil && known.raw == raw {
		return known.header, known.err
	}
	h, err := readHeader(raw)
	if len(raw) <= maxCachedHeader {
		at.Store(&cachedHeader{raw: strings.Clone(raw), header: h, err: err})
	}
	return h, err
}

// readHeader decodes a header and refuses those that no key could make valid.
func readHeader(raw string) (header, error) {
	if raw == "" {
		return header{}, ErrMalformed
	}
	_, document, err := decodeSegment(nil, raw)
	if err != nil {
		return header{}, err
	}
	var h header
	var ownKey, badKID, critical bool
	r := strictjson.Read(document)
	for r.Next() {
		switch string(r.Name()) {
		case "alg":
			h.alg = string(r.Value().Text())
		case "kid":
			h.hasKID = true
			h.kid = string(r.Value().Text())
			badKID = r.Value().Kind() != strictjson.String || !validKeyID(h.kid)
		case "jwk", "jku", "x5u", "x5c":
			ownKey = true
		case "crit", "b64", "zip":
			critical = true
		}
	}
	switch {
	case r.Err() != nil:
		return header{}, ErrMalformed
	case h.alg == "" || strings.EqualFold(h.alg, "none"):
		return header{}, ErrAlgorithm
	case ownKey, badKID:
		return header{}, ErrKey
	case critical:
		// A critical extension must be understood, and none is supported.
		return header{}, ErrMalformed
	}
	return h, nil
}

// validKeyID prevents paths, queries and other unexpected text from reaching the key set.
func validKeyID(kid string) bool {
	if len(kid) == 0 || len(kid) > 128 {
		return false
	}
	for i := range len(kid) {
		c := kid[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case strings.IndexByte("._-~:+=@", c) >= 0:
		default:
			return false
		}
	}
	return true
}
