package handler

import (
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// maxHeader bounds the headers of a request, in bytes as they are sent.
const maxHeader = 16 << 10

func headersTooLarge(r *http.Request) bool {
	size := len(r.Host) // the server has taken it out of the others
	for name, values := range r.Header {
		for _, v := range values {
			size += len(name) + len(": ") + len(v) + len("\r\n")
		}
	}
	return size > maxHeader
}

// single returns the value of a header that may be sent once. The name is in
// canonical form.
func single(h http.Header, name string) (value string, present bool, err error) {
	switch values := h[name]; len(values) {
	case 0:
		return "", false, nil
	case 1:
		return values[0], true, nil
	default:
		return "", true, problemHeaderDuplicate.with(name, name+" was sent more than once; send it once.")
	}
}

// checkContent refuses a body that is not plain JSON.
func checkContent(h http.Header) error {
	if encoding, present, err := single(h, "Content-Encoding"); err != nil {
		return err
	} else if present && !strings.EqualFold(encoding, "identity") {
		return problemContentEncoding
	}
	value, _, err := single(h, "Content-Type")
	if err != nil {
		return err
	}
	if value == "application/json" {
		return nil
	}
	media, params, err := mime.ParseMediaType(value)
	if err != nil || media != "application/json" {
		return problemContentType
	}
	if charset, stated := params["charset"]; stated && !strings.EqualFold(charset, "utf-8") {
		return problemContentType
	}
	return nil
}

// media is a type of response.
type media struct {
	name, group string
	refusal     *problem // of a request whose Accept header excludes it
}

// The types of response.
var (
	mediaJSON   = media{"application/json", "application/*", problemNotAcceptable}
	mediaEvents = media{"text/event-stream", "text/*", problemEventsNotAcceptable}
	mediaHTML   = media{"text/html", "text/*", problemDocsNotAcceptable}
)

// accepted refuses a request whose Accept header excludes the type; nil: any.
func (m *media) accepted(h http.Header) error {
	values := h["Accept"]
	if m == nil || len(values) == 0 {
		return nil
	}
	if v := values[0]; len(values) == 1 && (v == "*/*" || v == m.name) {
		return nil
	}
	if accepts(strings.Join(values, ","), m.name, m.group) {
		return nil
	}
	return m.refusal
}

// accepts reads an Accept header for a media type and its group. The most
// specific range that matches decides; asking for problem+json alone is taken
// too, since that is what a refusal is.
func accepts(accept, media, group string) bool {
	if strings.TrimSpace(accept) == "" {
		return true
	}
	best, takes, problemToo := 0, false, false
	for one := range strings.SplitSeq(accept, ",") {
		given, params, _ := strings.Cut(one, ";")
		specific := 0
		switch strings.ToLower(strings.TrimSpace(given)) {
		case media:
			specific = 3
		case group:
			specific = 2
		case "*/*":
			specific = 1
		case "application/problem+json":
			problemToo = problemToo || !weightZero(params)
		}
		if specific > best {
			best, takes = specific, !weightZero(params)
		}
	}
	return takes || problemToo
}

// weightZero reports whether the parameters say q=0: not acceptable.
func weightZero(params string) bool {
	for one := range strings.SplitSeq(params, ";") {
		name, value, _ := strings.Cut(one, "=")
		if strings.EqualFold(strings.TrimSpace(name), "q") {
			q, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			return err != nil || q <= 0
		}
	}
	return false
}

// idempotencyKey returns the key, 1 to 255 visible ASCII characters.
func idempotencyKey(h http.Header) (string, error) {
	key, present, err := single(h, "Idempotency-Key")
	switch {
	case err != nil:
		return "", err
	case !present:
		return "", problemKeyMissing
	case len(key) == 0 || len(key) > 255:
		return "", problemKeyInvalid
	}
	for i := range len(key) {
		if key[i] <= ' ' || key[i] > '~' {
			return "", problemKeyInvalid
		}
	}
	return key, nil
}

// preference is what the Prefer header asks of a purchase.
type preference struct {
	wait  time.Duration
	async bool
	asked bool // a wait was asked for, and wait holds it
}

// readPrefer reads `respond-async` and `wait=n` (seconds). A wait is cut to
// most; what makes no sense is ignored, as RFC 7240 wants.
func readPrefer(h http.Header, usual, most time.Duration) preference {
	p := preference{wait: usual}
	values := h["Prefer"]
	if len(values) == 0 {
		return p
	}
	if len(values) == 1 && values[0] == "respond-async" {
		return preference{async: true}
	}
	for _, value := range values {
		for one := range strings.SplitSeq(value, ",") {
			one, _, _ = strings.Cut(one, ";")
			name, argument, _ := strings.Cut(one, "=")
			switch strings.ToLower(strings.TrimSpace(name)) {
			case "respond-async":
				p.async = true
			case "wait":
				if wait, ok := readWait(argument, most); ok && !p.asked {
					p.wait, p.asked = wait, true
				}
			}
		}
	}
	if p.async && !p.asked {
		p.wait = 0
	}
	return p
}

func readWait(argument string, most time.Duration) (time.Duration, bool) {
	argument = strings.Trim(strings.TrimSpace(argument), `"`)
	if argument == "" {
		return 0, false
	}
	var wait time.Duration
	for i := range len(argument) {
		if argument[i] < '0' || argument[i] > '9' {
			return 0, false
		}
		// Cutting at every digit keeps the number from overflowing.
		wait = min(wait*10+time.Duration(argument[i]-'0')*time.Second, 10*most)
	}
	return min(wait, most), true
}

var asyncApplied = []string{"respond-async"}

// applied returns the Preference-Applied header that goes with an answer, or
// nil when no preference was honoured.
func (p preference) applied(queued bool) []string {
	async := p.async && queued
	switch {
	case async && !p.asked:
		return asyncApplied
	case !p.asked:
		return nil
	}
	value := "wait=" + strconv.FormatInt(int64(p.wait/time.Second), 10)
	if async {
		value = "respond-async, " + value
	}
	return []string{value}
}
