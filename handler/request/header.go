package request

import (
	"mime"
	"net/http"
	"strconv"
	"strings"

	"flashsale/handler/problem"
)

// maxHeader bounds the headers of a request, in bytes as they are sent.
const maxHeader = 16 << 10

// HeadersTooLarge reports whether the headers exceed 16 KiB; the answer is ErrHeaderTooLarge.
func HeadersTooLarge(r *http.Request) bool {
	size := len(r.Host) // the server has removed it from the other headers
	for name, values := range r.Header {
		for _, v := range values {
			size += len(name) + len(": ") + len(v) + len("\r\n")
		}
	}
	return size > maxHeader
}

// Single returns the value of a header that may be sent once. The name is in canonical form.
func Single(h http.Header, name string) (value string, present bool, err error) {
	switch values := h[name]; len(values) {
	case 0:
		return "", false, nil
	case 1:
		return values[0], true, nil
	default:
		return "", true, errHeaderDuplicate.With(name, name+" was sent more than once; send it once.")
	}
}

// CheckContent refuses a body that is not plain JSON.
func CheckContent(h http.Header) error {
	if err := checkEncoding(h); err != nil {
		return err
	}
	value, _, err := Single(h, "Content-Type")
	if err != nil {
		return err
	}
	if value == "application/json" {
		return nil
	}
	media, params, err := mime.ParseMediaType(value)
	if err != nil || media != "application/json" {
		return errContentType
	}
	if charset, stated := params["charset"]; stated && !strings.EqualFold(charset, "utf-8") {
		return errContentType
	}
	return nil
}

// checkEncoding refuses a compressed body.
func checkEncoding(h http.Header) error {
	encoding, present, err := Single(h, "Content-Encoding")
	if err == nil && present && !strings.EqualFold(encoding, "identity") {
		return errContentEncoding
	}
	return err
}

// CheckForm refuses a body that is not a form as browsers send it.
func CheckForm(h http.Header) error {
	if err := checkEncoding(h); err != nil {
		return err
	}
	value, _, err := Single(h, "Content-Type")
	if err != nil {
		return err
	}
	if media, _, err := mime.ParseMediaType(value); err != nil || media != "application/x-www-form-urlencoded" {
		return errFormType
	}
	return nil
}

// Media is a response type.
type Media struct {
	name, group string
	refusal     *problem.Problem // for a request whose Accept header excludes it
}

// The response types.
var (
	MediaJSON   = &Media{"application/json", "application/*", errNotAcceptable}
	MediaEvents = &Media{"text/event-stream", "text/*", errEventsNotAcceptable}
	MediaHTML   = &Media{"text/html", "text/*", errDocsNotAcceptable}
	MediaYAML   = &Media{"application/yaml", "application/*", errYAMLNotAcceptable}
)

// CheckAccept refuses a request whose Accept header excludes the type; nil: any.
func (m *Media) CheckAccept(h http.Header) error {
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

// accepts matches an Accept header against a media type and its group. The most specific
// matching range decides. A client that only accepts problem+json is accepted too, since
// refusals have that type.
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

// IdempotencyKey returns the key, 1 to 255 visible ASCII characters.
func IdempotencyKey(h http.Header) (string, error) {
	key, present, err := Single(h, "Idempotency-Key")
	switch {
	case err != nil:
		return "", err
	case !present:
		return "", errKeyMissing
	case len(key) == 0 || len(key) > 255:
		return "", ErrKeyInvalid
	}
	for i := range len(key) {
		if key[i] <= ' ' || key[i] > '~' {
			return "", ErrKeyInvalid
		}
	}
	return key, nil
}

// HasTag reports whether an If-None-Match header contains the tag, by weak comparison:
// pages with the same tag differ only in their time.
func HasTag(values []string, tag string) bool {
	tag = strings.TrimPrefix(tag, "W/")
	for _, value := range values {
		for one := range strings.SplitSeq(value, ",") {
			one = strings.TrimSpace(one)
			if one == "*" || strings.TrimPrefix(one, "W/") == tag {
				return true
			}
		}
	}
	return false
}

// AcceptsGzip parses an Accept-Encoding header. A coding that it does not name is not used.
func AcceptsGzip(values []string) bool {
	takes, named := false, false
	for _, value := range values {
		for one := range strings.SplitSeq(value, ",") {
			coding, params, _ := strings.Cut(one, ";")
			switch strings.ToLower(strings.TrimSpace(coding)) {
			case "gzip", "x-gzip":
				takes, named = !weightZero(params), true
			case "*":
				takes = named && takes || !named && !weightZero(params)
			}
		}
	}
	return takes
}

// IfMatch parses the If-Match header of RFC 9110: the versions of an item to which a change
// applies; nil: any. Weak tags match no version, and neither do tags that are not versions.
func IfMatch(h http.Header, required bool) (versions []int64, err error) {
	values, stated := h["If-Match"]
	if !stated && required {
		return nil, errMatchMissing
	}
	if !stated {
		return nil, nil
	}
	list := strings.Join(values, ",")
	if strings.Trim(list, " \t") == "*" {
		return nil, nil
	}
	versions = []int64{}
	tags := 0
	for list = strings.TrimLeft(list, " \t,"); list != ""; list = strings.TrimLeft(list, " \t,") {
		opaque, weak := strings.CutPrefix(list, "W/")
		tag, after, ok := cutTag(opaque)
		if !ok {
			return nil, errMatchInvalid
		}
		tags++
		if version, err := strconv.ParseInt(tag, 10, 64); err == nil && !weak && strconv.FormatInt(version, 10) == tag {
			versions = append(versions, version)
		}
		list = strings.TrimLeft(after, " \t")
		if list != "" && list[0] != ',' {
			return nil, errMatchInvalid
		}
	}
	if tags == 0 {
		return nil, errMatchInvalid
	}
	return versions, nil
}

// cutTag removes an opaque tag in quotes from the start of text.
func cutTag(text string) (tag, after string, ok bool) {
	if text == "" || text[0] != '"' {
		return "", "", false
	}
	tag, after, ok = strings.Cut(text[1:], `"`)
	for i := range len(tag) {
		if tag[i] < '!' || tag[i] == 0x7f {
			return "", "", false
		}
	}
	return tag, after, ok
}
