// Package strictjson reads one small JSON object, member by member, and takes
// nothing on trust: no second document, no repeated name, no invalid UTF-8, no
// lone surrogate. The decoders of the standard library are lenient in each of
// these, and two readers of one request that disagree are a way past a check.
//
// The syntax is that of jsontext. This package adds the order in which several
// faults are reported, a small bound on nesting, and integers of any size.
//
// It allocates nothing for the usual object, which matters where every
// purchase carries one in its body and one or two in its token.
package strictjson

import (
	"bytes"
	"errors"
	"unicode/utf8"
)

// The reasons a document is refused. ErrTooDeep is a kind of ErrSyntax.
var (
	// ErrEmpty means that there is no document: no bytes, or white space only.
	ErrEmpty = errors.New("strictjson: no document")
	// ErrSyntax means that the bytes are not one JSON object.
	ErrSyntax = errors.New("strictjson: not a JSON object")
	// ErrTooDeep means that arrays and objects are nested beyond MaxDepth.
	ErrTooDeep error = deepError{}
	// ErrTrailing means that something follows the object.
	ErrTrailing = errors.New("strictjson: bytes after the object")
	// ErrDuplicate means that the object names a member twice.
	ErrDuplicate = errors.New("strictjson: member named twice")
)

// MaxDepth is the deepest nesting of arrays and objects that is read, the
// object itself included.
const MaxDepth = 32

// space is what may surround a document.
const space = " \t\r\n"

type deepError struct{}

func (deepError) Error() string        { return "strictjson: nested too deep" }
func (deepError) Is(target error) bool { return target == ErrSyntax }

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
	data      []byte
	source    *source // from the first call of Next to the last
	name      []byte
	value     Value
	done      bool
	duplicate []byte // the first name that was there before; nil: none
	err       error

	// The names seen so far: the first few in line, where comparing them all
	// is cheapest, the rest in a map so that an object of many members costs
	// no quadratic time.
	few   [12][]byte
	count int
	many  map[string]struct{}
}

// Read returns a Reader over one document.
func Read(data []byte) Reader { return Reader{data: data} }

// Next moves to the next member, and reports whether there is one. It ends
// early on an error of syntax; a repeated name is reported by Err after the
// syntax of the whole document is known to be good.
func (r *Reader) Next() bool {
	if r.done {
		return false
	}
	if r.source == nil {
		if err := r.open(); err != nil {
			return r.end(err)
		}
	}
	if r.source.PeekKind() == '}' {
		return r.end(r.close())
	}
	if err := r.member(); err != nil {
		return r.end(err)
	}
	return true
}

// open reads up to the first byte inside the object.
func (r *Reader) open() error {
	if len(bytes.Trim(r.data, space)) == 0 {
		return ErrEmpty
	}
	if !utf8.Valid(r.data) {
		return ErrSyntax
	}
	r.source = openSource(r.data)
	if r.source.PeekKind() == '{' {
		return r.source.token()
	}
	// ErrTooDeep is distinguished even here: a document can be too deep
	// although its end was never read.
	if _, err := r.source.value(); errors.Is(err, ErrTooDeep) {
		return err
	}
	return ErrSyntax
}

func (r *Reader) member() (err error) {
	// The decoder accepts nothing but a string here.
	name, err := r.source.value()
	if err != nil {
		return err
	}
	if r.value, err = r.source.value(); err != nil {
		return err
	}
	r.name = name.text
	r.note(r.name)
	return nil
}

// note remembers the member's name and whether it was there before. The
// decoder could do this, but would report the name before faults of the syntax
// behind it.
func (r *Reader) note(name []byte) {
	for i := 0; i < min(r.count, len(r.few)); i++ {
		if string(r.few[i]) == string(name) {
			r.repeat(name)
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
		r.repeat(name)
		return
	}
	r.many[string(name)] = struct{}{}
}

func (r *Reader) repeat(name []byte) {
	if r.duplicate == nil {
		r.duplicate = name
	}
}

// close reads the object's end, and checks what follows.
func (r *Reader) close() error {
	if err := r.source.token(); err != nil {
		return err
	}
	switch {
	case len(bytes.Trim(r.data[r.source.InputOffset():], space)) > 0:
		return ErrTrailing
	case r.duplicate != nil:
		return ErrDuplicate
	}
	return nil
}

func (r *Reader) end(err error) bool {
	r.done, r.err = true, err
	if r.source != nil {
		r.source.release()
		r.source = nil
	}
	return false
}

// Name returns the current member's name with its escapes resolved.
func (r *Reader) Name() []byte { return r.name }

// Value returns the current member's value.
func (r *Reader) Value() Value { return r.value }

// Err returns why the document is refused, or nil. It is final once Next has
// returned false. When several reasons apply the first of this order is
// returned: syntax, trailing bytes, a repeated name.
func (r *Reader) Err() error { return r.err }

// Duplicate returns the first name that the object repeats, if Err is ErrDuplicate.
func (r *Reader) Duplicate() []byte { return r.duplicate }
