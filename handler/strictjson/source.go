package strictjson

import (
	"bytes"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
)

// source reads values from a document.
type source struct {
	jsontext.Decoder
	data []byte
	// buffer holds data. The decoder reads a buffer in place.
	buffer bytes.Buffer
}

var (
	sources = sync.Pool{New: func() any { return new(source) }}
	// options let the decoder read on behind a repeated name: Reader.note.
	options = []jsontext.Options{jsontext.AllowDuplicateNames(true)}
)

func openSource(data []byte) *source {
	s := sources.Get().(*source)
	s.data, s.buffer = data, *bytes.NewBuffer(data)
	s.Reset(&s.buffer, options...)
	return s
}

// release gives the source back; it keeps nothing of the document.
func (s *source) release() {
	s.data, s.buffer = nil, bytes.Buffer{}
	s.Reset(&s.buffer)
	sources.Put(s)
}

// token reads one token.
func (s *source) token() error {
	if _, err := s.ReadToken(); err != nil {
		return ErrSyntax
	}
	return nil
}

// value reads one value, which may be a member's name.
func (s *source) value() (Value, error) {
	switch kind := s.PeekKind(); kind {
	case '[':
		return s.nested(Array)
	case '{':
		return s.nested(Object)
	default:
		raw, err := s.ReadValue()
		if err != nil {
			return Value{}, ErrSyntax
		}
		end := int(s.InputOffset())
		return scalar(kind, s.data[end-len(raw):end])
	}
}

// nested reads an array or an object. The decoder's own bound on nesting is
// 10,000.
func (s *source) nested(kind Kind) (Value, error) {
	outside := s.StackDepth()
	if err := s.token(); err != nil {
		return Value{}, err
	}
	start := s.InputOffset() - 1
	for s.StackDepth() > outside {
		if s.StackDepth() > MaxDepth {
			return Value{}, ErrTooDeep
		}
		if err := s.token(); err != nil {
			return Value{}, err
		}
	}
	return Value{kind: kind, raw: s.data[start:s.InputOffset()]}, nil
}

func scalar(kind jsontext.Kind, raw []byte) (Value, error) {
	v := Value{raw: raw}
	switch kind {
	case '"':
		var err error
		if v.text, err = unquote(raw); err != nil {
			return Value{}, ErrSyntax
		}
		v.kind = String
	case '0':
		v.kind = Integer
		if bytes.ContainsAny(raw, ".eE") {
			v.kind = Fraction
		}
	case 'n':
		v.kind = Null
	default:
		v.kind = Bool
	}
	return v, nil
}

// unquote returns a string's text: a part of the input where it has no
// escapes, a copy otherwise.
func unquote(raw []byte) ([]byte, error) {
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw[1 : len(raw)-1], nil
	}
	return jsontext.AppendUnquote(nil, raw)
}
