package embedded

import (
	"strings"

	lua "github.com/yuin/gopher-lua"
)

// longString is the length in bytes from which a string grows in a buffer of its own.
const longString = 4 << 10

// longStrings are the buffers of the long strings to which scripts append. miniredis copies the
// whole string for each APPEND, so that a string of n pieces costs n² in all: a large sale has one
// with the hashes of all accepted keys. A buffer shares its memory with the value that miniredis
// stores.
type longStrings struct {
	buffers map[string]*strings.Builder // by key
	sweepAt int                         // how many buffers there are at the next sweep
}

// appendLong runs APPEND for a string that is long. It reports false if miniredis has to run it.
func (s *scripts) appendLong(l *lua.LState, key, more string) (length int, done bool) {
	n, err := s.do(l, "STRLEN", key) // which also removes the key if it has expired
	if size, ok := n.(lua.LNumber); err != nil || !ok || size < longString {
		return 0, false
	}
	stored, found := s.stored(key)
	if !found {
		return 0, false
	}
	b := s.long.buffers[key]
	// A comparison of strings that share their memory costs nothing.
	if b == nil || b.String() != stored {
		s.sweep()
		b = new(strings.Builder)
		b.WriteString(stored)
		s.long.buffers[key] = b
	}
	b.WriteString(more)
	// If this fails, the buffer differs from the value and is replaced by the next call.
	if set, err := s.do(l, "SET", key, b.String(), "KEEPTTL"); err != nil || !isOK(set) {
		return 0, false
	}
	return b.Len(), true
}

func isOK(reply lua.LValue) bool {
	t, ok := reply.(*lua.LTable)
	return ok && t.RawGetString("ok") != lua.LNil
}

// sweep removes the buffers of keys that were deleted or have other values. It looks at all of
// them when their number has doubled.
func (s *scripts) sweep() {
	if len(s.long.buffers) < s.long.sweepAt {
		return
	}
	for key, b := range s.long.buffers {
		if stored, found := s.stored(key); !found || stored != b.String() {
			delete(s.long.buffers, key)
		}
	}
	s.long.sweepAt = 2*len(s.long.buffers) + 16
}

// stored returns the string that miniredis stores, without copying it.
func (s *scripts) stored(key string) (text string, found bool) {
	value, found := s.field("stringKeys", key)
	if !found {
		return "", false
	}
	return value.String(), true
}
