package strictjson

import (
	"unicode/utf16"
	"unicode/utf8"
)

// scanner reads tokens off valid UTF-8.
type scanner struct {
	data []byte
	pos  int
}

// peek returns the next byte, or 0 at the end: no token starts with NUL.
func (s *scanner) peek() byte {
	if s.pos < len(s.data) {
		return s.data[s.pos]
	}
	return 0
}

func (s *scanner) space() {
	for s.pos < len(s.data) {
		switch s.data[s.pos] {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return
		}
	}
}

// scanValue reads one value that stands inside depth arrays and objects.
func (s *scanner) scanValue(depth int) (Value, error) {
	start := s.pos
	var v Value
	switch c := s.peek(); {
	case c == '"':
		text, err := s.scanString()
		if err != nil {
			return Value{}, err
		}
		v.kind, v.text = String, text
	case c == '-' || '0' <= c && c <= '9':
		kind, err := s.scanNumber()
		if err != nil {
			return Value{}, err
		}
		v.kind = kind
	case c == '{' || c == '[':
		if err := s.skip(depth); err != nil {
			return Value{}, err
		}
		v.kind = Array
		if c == '{' {
			v.kind = Object
		}
	case s.literal("true"), s.literal("false"):
		v.kind = Bool
	case s.literal("null"):
		v.kind = Null
	default:
		return Value{}, ErrSyntax
	}
	v.raw = s.data[start:s.pos]
	return v, nil
}

func (s *scanner) literal(word string) bool {
	if len(s.data)-s.pos < len(word) || string(s.data[s.pos:s.pos+len(word)]) != word {
		return false
	}
	s.pos += len(word)
	return true
}

// skip reads over an array or an object and checks its syntax. It keeps its
// own stack, so that the depth of the input is never the depth of the calls.
func (s *scanner) skip(depth int) error {
	var stack [MaxDepth]byte // the closing brackets that are due
	top := depth
	for {
		switch c := s.peek(); c {
		case '{', '[':
			if top == MaxDepth {
				return ErrTooDeep
			}
			stack[top] = c + 2 // '{' and '}', '[' and ']' lie two apart
			top++
			s.pos++
			s.space()
			if s.peek() != stack[top-1] {
				if err := s.memberName(c); err != nil {
					return err
				}
				continue
			}
		default:
			if _, err := s.scanValue(top); err != nil {
				return err
			}
		}
		// A value has ended, or an empty container stands before its end.
		for {
			if top == depth {
				return nil
			}
			s.space()
			if c := s.peek(); c == ',' {
				s.pos++
				s.space()
				if err := s.memberName(stack[top-1] - 2); err != nil {
					return err
				}
				break
			} else if c != stack[top-1] {
				return ErrSyntax
			}
			s.pos++
			top--
		}
	}
}

// memberName reads `"name":` when the container is an object.
func (s *scanner) memberName(container byte) error {
	if container != '{' {
		return nil
	}
	if _, err := s.scanString(); err != nil {
		return err
	}
	s.space()
	if s.peek() != ':' {
		return ErrSyntax
	}
	s.pos++
	s.space()
	return nil
}

// scanNumber reads a number by JSON's grammar: no leading zero, no plus, no
// bare point.
func (s *scanner) scanNumber() (Kind, error) {
	if s.peek() == '-' {
		s.pos++
	}
	if s.peek() == '0' {
		s.pos++
	} else if !s.digits() {
		return 0, ErrSyntax
	}
	kind := Integer
	if s.peek() == '.' {
		s.pos++
		kind = Fraction
		if !s.digits() {
			return 0, ErrSyntax
		}
	}
	if c := s.peek(); c == 'e' || c == 'E' {
		s.pos++
		kind = Fraction
		if c := s.peek(); c == '+' || c == '-' {
			s.pos++
		}
		if !s.digits() {
			return 0, ErrSyntax
		}
	}
	return kind, nil
}

// digits reads one digit or more.
func (s *scanner) digits() bool {
	start := s.pos
	for s.pos < len(s.data) && '0' <= s.data[s.pos] && s.data[s.pos] <= '9' {
		s.pos++
	}
	return s.pos > start
}

// scanString reads a string and returns its text: a part of the input where it
// has no escapes, a copy otherwise.
func (s *scanner) scanString() ([]byte, error) {
	if s.peek() != '"' {
		return nil, ErrSyntax
	}
	s.pos++
	start := s.pos
	for s.pos < len(s.data) {
		switch c := s.data[s.pos]; {
		case c == '"':
			text := s.data[start:s.pos]
			s.pos++
			return text, nil
		case c == '\\':
			return s.scanEscaped(start)
		case c < ' ':
			return nil, ErrSyntax
		default:
			s.pos++
		}
	}
	return nil, ErrSyntax
}

// scanEscaped goes on with a string that began at start and has an escape at
// the current position.
func (s *scanner) scanEscaped(start int) ([]byte, error) {
	text := append(make([]byte, 0, s.pos-start+32), s.data[start:s.pos]...)
	for s.pos < len(s.data) {
		c := s.data[s.pos]
		s.pos++
		switch {
		case c == '"':
			return text, nil
		case c < ' ':
			return nil, ErrSyntax
		case c != '\\':
			text = append(text, c)
		default:
			var err error
			if text, err = s.escape(text); err != nil {
				return nil, err
			}
		}
	}
	return nil, ErrSyntax
}

// escape reads what follows a backslash.
func (s *scanner) escape(text []byte) ([]byte, error) {
	c := s.peek()
	s.pos++
	switch c {
	case '"', '\\', '/':
		return append(text, c), nil
	case 'b':
		return append(text, '\b'), nil
	case 'f':
		return append(text, '\f'), nil
	case 'n':
		return append(text, '\n'), nil
	case 'r':
		return append(text, '\r'), nil
	case 't':
		return append(text, '\t'), nil
	case 'u':
		return s.unicode(text)
	default:
		return nil, ErrSyntax
	}
}

// unicode reads what follows `\u`. Half a surrogate pair stands for no
// character, and readers differ in what they make of it, so it is refused.
func (s *scanner) unicode(text []byte) ([]byte, error) {
	r, ok := s.hex4()
	if !ok {
		return nil, ErrSyntax
	}
	if utf16.IsSurrogate(r) {
		if !s.literal(`\u`) {
			return nil, ErrSyntax
		}
		low, ok := s.hex4()
		if !ok {
			return nil, ErrSyntax
		}
		if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
			return nil, ErrSyntax
		}
	}
	return utf8.AppendRune(text, r), nil
}

func (s *scanner) hex4() (rune, bool) {
	if len(s.data)-s.pos < 4 {
		return 0, false
	}
	var r rune
	for _, c := range s.data[s.pos : s.pos+4] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	s.pos += 4
	return r, true
}
