package request

import (
	"errors"
	"io"
	"net"
	"net/http"
	"time"

	"flashsale/handler/strictjson"
)

// maxDrain is how much of a body that is too large is read in search of its end. If the end is
// reached, the connection can be reused, and the client gets the answer instead of a reset.
const maxDrain = 64 << 10

// ReadBody reads the whole body of at most limit bytes into buf, which it replaces by a larger
// buffer if necessary. w is the writer of the answer.
func ReadBody(w http.ResponseWriter, r *http.Request, buf []byte, limit int) ([]byte, error) {
	if cap(buf) < limit+1 {
		buf = make([]byte, 0, limit+1)
	}
	buf = buf[:0]
	for len(buf) <= limit {
		n, err := r.Body.Read(buf[len(buf) : limit+1])
		buf = buf[:len(buf)+n]
		if errors.Is(err, io.EOF) {
			if len(buf) > limit {
				break
			}
			return buf, nil
		}
		if err != nil {
			return buf, bodyError(err)
		}
	}
	drain(w, r, len(buf))
	// A body that is too large is refused regardless of its content, with one exception:
	// nesting meant to exhaust a parser is reported as invalid JSON.
	doc := strictjson.Read(buf)
	for doc.Next() {
	}
	if errors.Is(doc.Err(), strictjson.ErrTooDeep) {
		return buf, errJSONInvalid
	}
	return buf, tooLarge(limit)
}

// drain reads the rest of the body, up to maxDrain bytes in all. If the end is further away,
// the connection is closed after the answer.
func drain(w http.ResponseWriter, r *http.Request, read int) {
	if r.ContentLength <= maxDrain {
		// One byte is left for the limit reader below.
		if _, err := io.CopyN(io.Discard, r.Body, int64(maxDrain-1-read)); errors.Is(err, io.EOF) {
			return
		}
	}
	w.Header().Set("Connection", "close")
	// The server itself would read another 256 KiB in search of the end. With an expired
	// deadline it stops immediately, and because the limit reader has cut the body, it lingers
	// until the client has the answer.
	raw := w
	for {
		wrapped, ok := raw.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			break
		}
		raw = wrapped.Unwrap()
	}
	if _, err := http.MaxBytesReader(raw, r.Body, 0).Read(make([]byte, 1)); err != nil {
		stopReading(raw)
	}
}

func stopReading(raw http.ResponseWriter) {
	if err := http.NewResponseController(raw).SetReadDeadline(time.Unix(1, 0)); err != nil {
		return // a recorder in a test has no deadline, and no connection to protect
	}
}

// bodyError distinguishes a slow client from one that breaks the framing.
func bodyError(err error) error {
	var slow net.Error
	if errors.As(err, &slow) && slow.Timeout() {
		return ErrTimeout
	}
	return errBodyCut
}

// CheckEmpty checks the body of a route without input: it must be empty, or an object without
// members.
func CheckEmpty(h http.Header, body []byte) error {
	if len(body) == 0 {
		return nil
	}
	if err := CheckContent(h); err != nil {
		return err
	}
	return ReadFields(body).Done()
}
