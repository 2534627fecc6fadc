package auth

import (
	"strings"
	"sync/atomic"

	"flashsale/handler/strictjson"
)

// header is what a token says about its signature.
type header struct {
	alg    string
	kid    string
	hasKID bool
}

// headerCache remembers the headers read last. One issuer writes one header
// (one per key), so nearly every token begins with bytes seen before. Headers
// of refused tokens are kept as well: reading one depends on nothing else.
type headerCache struct {
	slots [16]atomic.Pointer[cachedHeader]
}

type cachedHeader struct {
	raw    string
	header header
	err    error
}

// maxCachedHeader bounds what the cache holds; longer headers are read anew.
const maxCachedHeader = 512

func (c *headerCache) read(raw string) (header, error) {
	// The last bytes differ most between headers that carry a key id.
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

// readHeader decodes a header and refuses what no key could make good.
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
		// An extension that must be understood, and none is.
		return header{}, ErrMalformed
	}
	return h, nil
}

// validKeyID keeps paths, queries and other surprises away from the key set.
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
