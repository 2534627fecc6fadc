// Package strictjson reads one small JSON object, member by member, and takes
// nothing on trust: no second document, no repeated name, no invalid UTF-8, no
// lone surrogate. The decoders of the standard library are lenient in each of
// these, and two readers of one request that disagree are a way past a check.
//
// It allocates nothing for the usual object, which matters where every
// purchase carries one in its body and one or two in its token.
package strictjson

import (
	"errors"
	"unicode/utf8"
)

// The reasons a document is refused. ErrTooDeep is a kind of ErrSyntax.
var (
	// ErrEmpty says that there is no document: no bytes, or white space only.
	ErrEmpty = errors.New("strictjson: no document")
	// ErrSyntax says that the bytes are not one JSON object.
	ErrSyntax = errors.New("strictjson: not a JSON object")
	// ErrTooDeep says that arrays and objects are nested beyond MaxDepth.
	ErrTooDeep error = deepError{}
	// ErrTrailing says that something follows the object.
	ErrTrailing = errors.New("strictjson: bytes after the object")
	// ErrDuplicate says that the object names a member twice.
	ErrDuplicate = errors.New("strictjson: member named twice")
)

// MaxDepth is the deepest nesting of arrays and objects that is read, the
// object itself included.
const MaxDepth = 32

type deepError struct{}

func (deepError) Error() string        { return "strictjson: nested too deep" }
func (deepError) Is(target error) bool { return target == ErrSyntax }

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

// Reader walks through the members of one object:
//
//	r := strictjson.Read(data)
//	for r.Next() {
//		switch string(r.Name()) { … r.Value() … }
//	}
//	if err := r.Err(); err != nil { … }
//
// A member seen before Err is known to be nil proves nothing about the rest,
// so act on the values only afterwards. The Reader keeps data and its values
// point into it: data must not change while they are used.
type Reader struct {
	scanner
	name      []byte
	value     Value
	started   bool
	done      bool
	duplicate bool
	err       error

	// The names seen so far: the first few in line, where comparing them all
	// is cheapest, the rest in a map so that an object of many members costs
	// no quadratic time.
	few   [12][]byte
	count int
	many  map[string]struct{}
}

// Read returns a Reader over one document.
func Read(data []byte) Reader {
	return Reader{scanner: scanner{data: data}}
}

// Next moves to the next member, and reports whether there is one. It ends
// early on an error of syntax; a repeated name is reported by Err after the
// syntax of the whole document is known to be good.
func (r *Reader) Next() bool {
	if r.done {
		return false
	}
	if !r.started {
		r.started = true
		if !r.open() {
			return false
		}
		if r.peek() == '}' {
			r.pos++
			r.finish()
			return false
		}
	} else {
		r.space()
		switch r.peek() {
		case ',':
			r.pos++
			r.space()
		case '}':
			r.pos++
			r.finish()
			return false
		default:
			return r.fail(ErrSyntax)
		}
	}
	return r.member()
}

// open reads up to the first byte inside the object.
func (r *Reader) open() bool {
	r.space()
	if r.pos == len(r.data) {
		return r.fail(ErrEmpty)
	}
	if !utf8.Valid(r.data) {
		return r.fail(ErrSyntax)
	}
	if r.peek() != '{' {
		// Too deep is told apart even here: it can be said of a document
		// whose end was never read.
		if err := r.skip(0); errors.Is(err, ErrTooDeep) {
			return r.fail(ErrTooDeep)
		}
		return r.fail(ErrSyntax)
	}
	r.pos++
	r.space()
	return true
}

func (r *Reader) member() bool {
	name, err := r.scanString()
	if err != nil {
		return r.fail(err)
	}
	r.space()
	if r.peek() != ':' {
		return r.fail(ErrSyntax)
	}
	r.pos++
	r.space()
	value, err := r.scanValue(1)
	if err != nil {
		return r.fail(err)
	}
	r.name, r.value = name, value
	r.note(name)
	return true
}

// note remembers the member's name and whether it was there before.
func (r *Reader) note(name []byte) {
	for i := 0; i < min(r.count, len(r.few)); i++ {
		if string(r.few[i]) == string(name) {
			r.duplicate = true
			return
		}
	}
	if r.count < len(r.few) {
		r.few[r.count] = name
		r.count++
		return
	}
	if r.many == nil {
		r.many = make(map[string]struct{})
	}
	if _, seen := r.many[string(name)]; seen {
		r.duplicate = true
		return
	}
	r.many[string(name)] = struct{}{}
}

func (r *Reader) finish() {
	r.done = true
	r.space()
	switch {
	case r.pos < len(r.data):
		r.err = ErrTrailing
	case r.duplicate:
		r.err = ErrDuplicate
	}
}

func (r *Reader) fail(err error) bool {
	r.done, r.err = true, err
	return false
}

// Name returns the current member's name with its escapes resolved.
func (r *Reader) Name() []byte { return r.name }

// Value returns the current member's value.
func (r *Reader) Value() Value { return r.value }

// Err returns why the document is refused, or nil. It is final once Next has
// returned false. When several reasons apply the first of this order is told:
// syntax, trailing bytes, a repeated name.
func (r *Reader) Err() error { return r.err }
