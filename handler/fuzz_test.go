package handler

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"flashsale/catalog"
	"flashsale/handler/auth"
	"flashsale/handler/request"
	"flashsale/order"
)

// referencePurchase reads a purchase's body with the standard library and the simplest form of
// the API's rules: one object, one member, a whole number.
func referencePurchase(body []byte) (quantity int64, ok bool) {
	// The library silently repairs both faults, but a body that has one is invalid.
	if !utf8.Valid(body) || !json.Valid(body) {
		return 0, false
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	var tokens []json.Token
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 0, false
		}
		tokens = append(tokens, token)
	}
	// An object, the name and the value of its only member, and its end.
	if len(tokens) != 4 || tokens[0] != json.Delim('{') || tokens[1] != "quantity" {
		return 0, false
	}
	number, isNumber := tokens[2].(json.Number)
	if !isNumber || strings.ContainsAny(number.String(), ".eE") {
		return 0, false
	}
	n, err := number.Int64()
	switch {
	case err == nil:
		return n, true
	case strings.HasPrefix(number.String(), "-"):
		return math.MinInt64, true
	default:
		return math.MaxInt64, true
	}
}

// FuzzDecodePurchase: a body is accepted if and only if the reference accepts it, with the same
// quantity; plainPurchase agrees with strictPurchase; and each refusal is one of the API's,
// with the field if there is one.
func FuzzDecodePurchase(f *testing.F) {
	for _, body := range []string{
		`{"quantity":1}`, `{"quantity": 12}`, `{"quantity":1}}`, `{"quantity":01}`, `{"quantity":1,"quantity":1}`,
		`{"quantity":99999999999999999999}`, `{"quantity":1.0}`, `{"quantity":" 1"}`, `{"qu\u0061ntity":5}`, `{"Quantity":1}`, "",
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		strict, strictErr := strictPurchase(body)
		got, err := decodePurchase(body)
		if got != strict || (err == nil) != (strictErr == nil) {
			t.Fatalf("%q: got %d, %v; the strict path says %d, %v", body, got, err, strict, strictErr)
		}
		want, accepted := referencePurchase(body)
		if accepted != (err == nil) || accepted && want != got {
			t.Fatalf("%q: got %d, %v; the reference says %d, accepted %t", body, got, err, want, accepted)
		}
		if err == nil {
			return
		}
		p := lookUp(err)
		if p == nil || p.Status != http.StatusBadRequest {
			t.Fatalf("%q: %v has no answer of status 400", body, err)
		}
		switch p.Code {
		case "body_missing":
			if len(bytes.TrimLeft(body, " \t\r\n")) != 0 {
				t.Fatalf("%q: %s", body, p.Code)
			}
		case "json_invalid", "json_trailing", "json_duplicate_key":
		case "field_missing", "field_type":
			if p.Param != "quantity" {
				t.Fatalf("%q: %s names the field %q", body, p.Code, p.Param)
			}
		case "unknown_field":
			if answer := p.AppendBody(nil, "x"); !json.Valid(answer) {
				t.Fatalf("%q: the answer is not JSON: %s", body, answer)
			}
		default:
			t.Fatalf("%q: the answer has the code %s", body, p.Code)
		}
	})
}

// visible matches valid idempotency keys.
var visible = regexp.MustCompile(`^[!-~]{1,255}$`)

// FuzzIdempotencyKey sends a purchase with any header, once or twice: a key is passed on
// unchanged, or refused with its name without a purchase.
func FuzzIdempotencyKey(f *testing.F) {
	for _, key := range []string{
		"k", "", " ", "a b", "k\t", "ключ", "\x7f", "k\x00", strings.Repeat("k", 255), strings.Repeat("k", 256), strings.Repeat("k", 17<<10),
	} {
		f.Add(key, false)
		f.Add(key, true)
	}
	s := open(f)
	token := bearer(f, "alice", auth.RoleBuyer)
	f.Fuzz(func(t *testing.T, key string, twice bool) {
		s.orders.mu.Lock()
		s.orders.placed = nil
		s.orders.mu.Unlock()
		r := purchaseRequest(t, `{"quantity":1}`)
		r.Header.Set("Authorization", token)
		r.Header["Idempotency-Key"] = []string{key}
		if twice {
			r.Header["Idempotency-Key"] = []string{key, key}
		}
		w := s.do(r)
		placed := s.orders.purchases()
		good := visible.MatchString(key) && !twice
		switch {
		case good && (w.Code != 201 || len(placed) != 1 || placed[0].IdempotencyKey != key):
			t.Fatalf("%q: %d, and %+v reached the orders", key, w.Code, placed)
		case !good && len(placed) != 0:
			t.Fatalf("%q, twice %t: refused with %d, and %+v reached the orders", key, twice, w.Code, placed)
		case good:
		case request.HeadersTooLarge(r):
			wantProblem(t, w.Result(), 431, "header_too_large")
		case twice:
			if body := wantProblem(t, w.Result(), 400, "header_duplicate"); body["param"] != "Idempotency-Key" {
				t.Fatalf("%q twice: the answer names %v", key, body["param"])
			}
		default:
			if body := wantProblem(t, w.Result(), 400, "idempotency_key_invalid"); body["param"] != "Idempotency-Key" {
				t.Fatalf("%q: the answer names %v", key, body["param"])
			}
		}
	})
}

// FuzzCursor: a cursor leads to the order after which it was made, and has exactly one form. It
// is refused after a change of any bit and in another list. No other text is a valid cursor.
func FuzzCursor(f *testing.F) {
	e := sealer{[]byte("a key of the tests")}
	raw, ok := packID(someOrderID)
	if !ok {
		f.Fatal("the id cannot be packed")
	}
	f.Add("", raw, "alice", "thing", "paid", uint16(0))
	f.Add(e.makeCursor(order.Filter{}, someOrderID), raw, "", "", "", uint16(343))
	f.Add(strings.Repeat("A", 43), make([]byte, 16), "alice", "", "queued", uint16(9))
	f.Fuzz(func(t *testing.T, text string, raw []byte, user, item, status string, bit uint16) {
		if len(raw) != 16 || strings.Contains(user+item+status, "\x00") {
			return
		}
		list := order.Filter{UserID: user, ItemID: item, Status: order.Status(status)}
		if before, ok := e.readCursor(list, text); ok && e.makeCursor(list, before) != text {
			t.Fatalf("%q is taken for the cursor after %s", text, before)
		}
		id := unpackID(raw)
		made := e.makeCursor(list, id)
		if before, ok := e.readCursor(list, made); !ok || before != id {
			t.Fatalf("the cursor %q after %s leads to %q, %t", made, id, before, ok)
		}
		altered := []byte(made)
		n := int(bit) % (8 * len(altered))
		altered[n/8] ^= 1 << (n % 8)
		if before, ok := e.readCursor(list, string(altered)); ok {
			t.Fatalf("the cursor %q, altered to %q, leads to %s", made, altered, before)
		}
		// The decoder skips line breaks, which a cursor may not contain.
		for _, between := range []string{"\n", "\r", "=", " "} {
			broken := made[:n/8] + between + made[n/8:]
			if _, ok := e.readCursor(list, broken); ok {
				t.Fatalf("%q is taken for the cursor %q", broken, made)
			}
		}
		for _, other := range []order.Filter{
			{UserID: user + "x", ItemID: item, Status: order.Status(status)},
			{UserID: user, ItemID: item + "x", Status: order.Status(status)},
			{UserID: user, ItemID: item, Status: order.Status(status + "x")},
		} {
			if _, ok := e.readCursor(other, made); ok {
				t.Fatalf("the cursor of %+v is taken for the list %+v", list, other)
			}
		}
		if user != "" {
			// The boundaries between the filters count: characters must not move across them.
			shifted := order.Filter{UserID: user[:len(user)-1], ItemID: user[len(user)-1:] + item, Status: order.Status(status)}
			if _, ok := e.readCursor(shifted, made); ok {
				t.Fatalf("the cursor of %+v is taken for the list %+v", list, shifted)
			}
		}
		fuzzItemCursor(t, e, text, item, made, int(bit))
	})
}

// fuzzItemCursor checks the same for cursors of items.
func fuzzItemCursor(t *testing.T, e sealer, text, item, ofOrders string, bit int) {
	t.Helper()
	if after, ok := e.readItemCursor(text); ok && e.makeItemCursor(after) != text {
		t.Fatalf("%q is taken for the cursor after %s", text, after)
	}
	if after, ok := e.readItemCursor(ofOrders); ok {
		t.Fatalf("the cursor %q of orders leads to the item %q", ofOrders, after)
	}
	if item == "" || len(item) > catalog.MaxIDLength {
		return
	}
	made := e.makeItemCursor(item)
	if after, ok := e.readItemCursor(made); !ok || after != item {
		t.Fatalf("the cursor %q after %q leads to %q, %t", made, item, after, ok)
	}
	if before, ok := e.readCursor(order.Filter{}, made); ok {
		t.Fatalf("the cursor %q of items leads to the order %s", made, before)
	}
	altered := []byte(made)
	n := bit % (8 * len(altered))
	altered[n/8] ^= 1 << (n % 8)
	if after, ok := e.readItemCursor(string(altered)); ok {
		t.Fatalf("the cursor %q, altered to %q, leads to %q", made, altered, after)
	}
	for _, between := range []string{"\n", "\r", "=", " "} {
		if _, ok := e.readItemCursor(made[:n/8] + between + made[n/8:]); ok {
			t.Fatalf("%q with %q in it is a cursor", made, between)
		}
	}
}
