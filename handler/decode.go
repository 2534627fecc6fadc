package handler

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"flashsale/handler/strictjson"
)

// The largest bodies, in bytes.
const (
	maxSmallBody = 4 << 10
	maxAdminBody = 16 << 10
	// maxDrain is how much of a body that is too large is read in search of its end. If the end
	// is reached, the connection can be reused, and the client gets the answer instead of a
	// reset.
	maxDrain = 64 << 10
)

// readBody reads the whole body into q.in.
func (q *call) readBody(limit int) error {
	r := q.c.Request
	if cap(q.in) < limit+1 {
		q.in = make([]byte, 0, limit+1)
	}
	q.in = q.in[:0]
	for len(q.in) <= limit {
		n, err := r.Body.Read(q.in[len(q.in) : limit+1])
		q.in = q.in[:len(q.in)+n]
		if errors.Is(err, io.EOF) {
			if len(q.in) > limit {
				break
			}
			return nil
		}
		if err != nil {
			return bodyError(err)
		}
	}
	q.drain(len(q.in))
	// A body that is too large is refused regardless of its content, with one exception:
	// nesting meant to exhaust a parser is reported as invalid JSON.
	doc := strictjson.Read(q.in)
	for doc.Next() {
	}
	if errors.Is(doc.Err(), strictjson.ErrTooDeep) {
		return problemJSONInvalid
	}
	return problemBodyTooLarge
}

// drain reads the rest of the body, up to maxDrain bytes in all. If the end is further away,
// the connection is closed after the answer.
func (q *call) drain(read int) {
	r := q.c.Request
	if r.ContentLength <= maxDrain {
		// One byte is left for the limit reader below.
		if _, err := io.CopyN(io.Discard, r.Body, int64(maxDrain-1-read)); errors.Is(err, io.EOF) {
			return
		}
	}
	q.c.Writer.Header()["Connection"] = headerClose
	// The server itself would read another 256 KiB in search of the end. With an expired
	// deadline it stops immediately, and because the limit reader has cut the body, it lingers
	// until the client has the answer.
	var raw http.ResponseWriter = q.c.Writer
	if wrapped, ok := raw.(interface{ Unwrap() http.ResponseWriter }); ok {
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
		return problemTimeout
	}
	return problemBodyCut
}

// readNothing reads the body of a route without input: it must be empty, or an object without
// members.
func (q *call) readNothing() error {
	if err := q.readBody(q.route.MaxBody); err != nil {
		return err
	}
	if len(q.in) == 0 {
		return nil
	}
	if err := checkContent(q.c.Request.Header); err != nil {
		return err
	}
	return newFields(q.in).done()
}

// fields reads the members of a body by name, and keeps the first fault. A syntax error
// precedes a fault of a field, an unknown field precedes a wrong type, and a wrong type
// precedes a missing field.
type fields struct {
	values  map[string]strictjson.Value
	known   map[string]bool
	near    nearNames // of fields that the route does not take; nil: none
	err     error     // a syntax error
	badType *problem
	missing *problem
}

func newFields(body []byte) *fields {
	f := &fields{values: make(map[string]strictjson.Value), known: make(map[string]bool)}
	r := strictjson.Read(body)
	for r.Next() {
		f.values[string(r.Name())] = r.Value()
	}
	f.err = r.Err()
	return f
}

// take returns the member's value if it is present and of the kind.
func (f *fields) take(name string, kind strictjson.Kind, required bool, want string) (strictjson.Value, bool) {
	f.known[name] = true
	v, present := f.values[name]
	switch {
	case !present && required && f.missing == nil:
		f.missing = problemFieldMissing.with(name, name+" is required: "+want+".")
	case present && v.Kind() != kind && f.badType == nil:
		f.badType = problemFieldType.with(name, name+" must be "+want+".")
	}
	return v, present && v.Kind() == kind
}

func (f *fields) text(name string, required bool) string {
	v, ok := f.take(name, strictjson.String, required, "a string")
	if !ok {
		return ""
	}
	return string(v.Text())
}

// integer returns the member's value, or usual if it is missing.
func (f *fields) integer(name string, required bool, usual int64) int64 {
	v, ok := f.take(name, strictjson.Integer, required, "a whole number, without quotes, point or exponent")
	if !ok {
		return usual
	}
	return v.Int()
}

// optionalText is like text, for a member that may also be null, which means the same as
// omitting it.
func (f *fields) optionalText(name string) (string, bool) {
	if v, present := f.values[name]; present && v.Kind() == strictjson.Null {
		f.known[name] = true
		return "", false
	}
	return f.text(name, false), f.has(name)
}

// textIfStated is like text, for a member that may be omitted. Omitting it differs from any
// value.
func (f *fields) textIfStated(name string) *string {
	v := f.text(name, false)
	if !f.has(name) {
		return nil
	}
	return &v
}

// integerIfStated is like integer, for a member that may be omitted. Omitting it differs from
// any value.
func (f *fields) integerIfStated(name string) *int64 {
	v := f.integer(name, false, 0)
	if !f.has(name) {
		return nil
	}
	return &v
}

// has reports whether the body has the member.
func (f *fields) has(name string) bool {
	_, present := f.values[name]
	return present
}

// done returns the body's first fault, once every field has been read.
func (f *fields) done() error {
	if f.err != nil {
		return f.err
	}
	if p := f.unknown(); p != nil {
		return p
	}
	if f.badType != nil {
		return f.badType
	}
	if f.missing != nil {
		return f.missing
	}
	return nil
}

// unknown returns the refusal of an unknown field, of several the alphabetically first; nil if
// there is none.
func (f *fields) unknown() *problem {
	first := ""
	found := false
	for name := range f.values {
		if !f.known[name] && (!found || name < first) {
			first, found = name, true
		}
	}
	if !found {
		return nil
	}
	var fault fieldFault
	fault.unknown([]byte(first))
	if hint := f.near.hint(first, f.known); hint != "" {
		return fault.problem.with(fault.problem.param, "The route takes no field of this name. "+hint)
	}
	return fault.problem
}

// nearNames map an unknown field to the field that was probably meant.
type nearNames map[string]string

const (
	useStock   = "At creation the units on sale are named stock; afterwards the item has stock_total and stock_left."
	useRestock = "Stock does not change here; use POST /v1/admin/items/{item}/restock with the units to add as quantity."
	readOnly   = "The service sets this field; omit it."
)

// near are the hints for both the creation and the change of an item.
var near = nearNames{
	"price":          "Use price_minor, in the currency's minor unit (cents).",
	"limit":          "Use per_user_limit.",
	"payment_window": "Use payment_window_seconds.",
	"server_time":    readOnly,
}

// nearCreate and nearChange add the differences between the two.
var (
	nearCreate = near.and(nearNames{
		"stock_total": useStock, "stock_left": useStock, "quantity": useStock, "version": readOnly,
		"state": "The state follows from opens_at, closes_at and the stock; omit it.",
	})
	nearChange = near.and(nearNames{
		"stock_total": useRestock, "stock_left": useRestock, "quantity": useRestock,
		"version": "Send the version as If-Match: the ETag of GET /v1/admin/items/{item}.",
		"state":   "Use POST /v1/admin/items/{item}/pause, /resume or /close.",
	})
)

func (n nearNames) and(more nearNames) nearNames {
	all := make(nearNames, len(n)+len(more))
	maps.Copy(all, n)
	maps.Copy(all, more)
	return all
}

// hint returns the field to use instead of an unknown one, or "".
func (n nearNames) hint(unknown string, known map[string]bool) string {
	if hint := n[unknown]; hint != "" {
		return hint
	}
	plain := plainName(unknown)
	for name := range known {
		if plainName(name) == plain {
			return "Use " + name + ", in lower case with underscores."
		}
	}
	return ""
}

// plainName is a name in lower case, without underscores and hyphens.
func plainName(name string) string {
	return strings.NewReplacer("_", "", "-", "").Replace(strings.ToLower(name))
}

// checkText checks a text for people: its length in characters, and that it has no hidden
// characters. lines allows line breaks and tabs.
func checkText(field, value string, least, most int, lines bool) error {
	if n := utf8.RuneCountInString(value); n < least || n > most {
		must := field + " must have "
		if least > 0 {
			must += strconv.Itoa(least) + " to "
		} else {
			must += "at most "
		}
		return problemFieldRange.with(field, must+strconv.Itoa(most)+" characters.")
	}
	r, hidden := hiddenRune(value, lines)
	if !hidden {
		return nil
	}
	fix := "; remove it."
	if lines {
		fix = "; remove it. Line breaks and tabs are allowed."
	}
	return problemFieldRange.with(field, fmt.Sprintf("%s contains U+%04X, a control or invisible character%s", field, r, fix))
}

// hiddenRune returns the first character of a text that is invisible or acts on other text: one
// that controls a terminal, changes the direction of the following text, or breaks a line where
// a reader of logs expects none. Such a character could make a text look like a different one.
//
// Two kinds of invisible characters are part of ordinary text, but only in their proper places:
//   - The joiners U+200C and U+200D, between two characters of a script that uses
//     them (Arabic, Persian, the scripts of India, …) or between two emoji.
//   - One variation selector after a visible character.
func hiddenRune(text string, lines bool) (rune, bool) {
	var before, joiner rune // 0: none
	for _, r := range text {
		switch {
		case joiner != 0 && !joins(r):
			return joiner, true
		case r == '\n' || r == '\r' || r == '\t':
			if !lines {
				return r, true
			}
		case r == zeroWidthNonJoiner || r == zeroWidthJoiner:
			if !joins(before) {
				return r, true
			}
			joiner, before = r, r
			continue
		case unicode.Is(unicode.Variation_Selector, r):
			if before <= ' ' || unicode.IsSpace(before) || unicode.Is(unicode.Variation_Selector, before) {
				return r, true
			}
		case unicode.In(r, neverShown...) && !unicode.Is(unicode.Prepended_Concatenation_Mark, r):
			return r, true
		}
		joiner, before = 0, r
	}
	return joiner, joiner != 0
}

const (
	zeroWidthNonJoiner = '\u200c'
	zeroWidthJoiner    = '\u200d'
)

// neverShown are control and format characters, line and paragraph separators, and invisible
// letters and marks. Some format characters are visible signs of Arabic and Syriac:
// Prepended_Concatenation_Mark.
var neverShown = []*unicode.RangeTable{unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Other_Default_Ignorable_Code_Point}

// joins reports whether a joiner next to a character can have a meaning. It has none in
// European scripts, where it would only make a word look like another.
func joins(r rune) bool {
	return r > unicode.MaxASCII && unicode.In(r, unicode.L, unicode.M, unicode.S) &&
		!unicode.In(r, unicode.Latin, unicode.Greek, unicode.Cyrillic)
}

// currencies are the current codes of ISO 4217, without funds, metals, testing codes and
// withdrawn ones.
const currencies = " AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BHD BIF BMD BND BOB BRL BSD BTN BWP BYN BZD" +
	" CAD CDF CHF CLP CNY COP CRC CUP CVE CZK DJF DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GNF" +
	" GTQ GYD HKD HNL HTG HUF IDR ILS INR IQD IRR ISK JMD JOD JPY KES KGS KHR KMF KPW KRW KWD KYD KZT LAK LBP" +
	" LKR LRD LSL LYD MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MYR MZN NAD NGN NIO NOK NPR NZD OMR PAB" +
	" PEN PGK PHP PKR PLN PYG QAR RON RSD RUB RWF SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP SZL" +
	" THB TJS TMT TND TOP TRY TTD TWD TZS UAH UGX USD UYU UZS VED VES VND VUV WST XAF XCD XCG XOF XPF YER ZAR" +
	" ZMW ZWG "

// knownCurrency reports whether code is one of them, in upper case.
func knownCurrency(code string) bool {
	return len(code) == 3 && !strings.Contains(code, " ") && strings.Contains(currencies, " "+code+" ")
}
