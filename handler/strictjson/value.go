package strictjson

import "math"

// Kind is the type of a value.
type Kind uint8

// The kinds. A number without fraction and exponent is an Integer, whatever
// its size.
const (
	String Kind = iota + 1
	Integer
	Fraction // a number written with a fraction or an exponent
	Bool
	Null
	Array
	Object
)

// Value is one value of a document. It points into the document's bytes.
type Value struct {
	kind Kind
	raw  []byte
	text []byte // of a String, escapes resolved
}

// Kind returns the value's type.
func (v Value) Kind() Kind { return v.kind }

// Raw returns the value as it was written.
func (v Value) Raw() []byte { return v.raw }

// Text returns a String's text with its escapes resolved, and nil of any other kind.
func (v Value) Text() []byte { return v.text }

// Bool reports whether the value is `true`.
func (v Value) Bool() bool { return v.kind == Bool && v.raw[0] == 't' }

// Int returns an Integer. One that does not fit is cut to the nearest int64,
// so that a check of range refuses it like any other number out of range.
// Of any other kind it returns 0.
func (v Value) Int() int64 {
	if v.kind != Integer {
		return 0
	}
	digits, negative := v.raw, false
	if digits[0] == '-' {
		digits, negative = digits[1:], true
	}
	var n uint64
	for _, c := range digits {
		if n > (math.MaxUint64-9)/10 {
			n = math.MaxUint64
			break
		}
		n = n*10 + uint64(c-'0')
	}
	if negative {
		if n > math.MaxInt64 {
			return math.MinInt64
		}
		return -int64(n)
	}
	return int64(min(n, math.MaxInt64))
}

// Strings calls visit with each element of an Array of strings, and reports
// whether the value is one. Elements before a misfit have been visited.
func (v Value) Strings(visit func(text []byte)) bool {
	if v.kind != Array {
		return false
	}
	s := openSource(v.raw)
	defer s.release()
	if s.token() != nil {
		return false
	}
	for s.PeekKind() == '"' {
		one, err := s.value()
		if err != nil {
			return false
		}
		visit(one.text)
	}
	return s.PeekKind() == ']'
}
