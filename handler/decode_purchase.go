package handler

import (
	"flashsale/handler/strictjson"
)

// decodePurchase reads the body of a purchase, {"quantity":n}. A number too
// large for an int64 comes back as the largest, for the check of range.
func decodePurchase(body []byte) (quantity int64, err error) {
	if n, ok := plainPurchase(body); ok {
		return n, nil
	}
	return strictPurchase(body)
}

// plainPurchase reads the two spellings that nearly all clients send, byte for
// byte, and leaves everything else to strictPurchase, with which it agrees.
func plainPurchase(body []byte) (int64, bool) {
	const head = `{"quantity":`
	if len(body) < len(head)+2 || string(body[:len(head)]) != head || body[len(body)-1] != '}' {
		return 0, false
	}
	digits := body[len(head) : len(body)-1]
	if digits[0] == ' ' {
		digits = digits[1:]
	}
	// Up to nine digits cannot overflow; a leading zero is not plain.
	if len(digits) == 0 || len(digits) > 9 || digits[0] == '0' {
		return 0, false
	}
	var n int64
	for _, c := range digits {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, true
}

// strictPurchase reads any spelling. Of several faults it tells the first of:
// syntax, trailing bytes, a repeated name, an unknown field, a wrong type, a
// missing field.
func strictPurchase(body []byte) (quantity int64, err error) {
	var fault fieldFault
	var found, isInteger bool
	r := strictjson.Read(body)
	for r.Next() {
		if string(r.Name()) != "quantity" {
			fault.unknown(r.Name())
			continue
		}
		found = true
		isInteger = r.Value().Kind() == strictjson.Integer
		quantity = r.Value().Int()
	}
	switch {
	case r.Err() != nil:
		return 0, r.Err()
	case fault.problem != nil:
		return 0, fault.problem
	case !found:
		return 0, problemFieldMissing.with("quantity", "quantity is required: a whole number.")
	case !isInteger:
		return 0, problemFieldType.with("quantity", "quantity must be a whole number, without quotes, point or exponent.")
	}
	return quantity, nil
}

// fieldFault remembers the first fault of a body's fields.
type fieldFault struct{ problem *problem }

// unknown notes a field that the route does not take.
func (f *fieldFault) unknown(name []byte) {
	if f.problem == nil {
		shown := truncate(string(name), 64)
		f.problem = problemUnknownField.with(shown, "The route takes no field of this name; omit it.")
	}
}

// truncate cuts text to at most n bytes at a character's border.
func truncate(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for n > 0 && text[n]&0xC0 == 0x80 {
		n--
	}
	return text[:n]
}
