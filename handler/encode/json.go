// Package encode writes the JSON of answers without reflection or intermediate values (json.go).
// Its functions append to a buffer, so an answer costs no allocation beyond that buffer. A page
// for many readers is encoded and compressed once (page.go).
//
// The formats of orders, items and other answers are in package handler (formats.go, and the
// file of each group of routes), which calls these functions member by member.
package encode

import (
	"strconv"
	"time"
	"unicode/utf8"
)

const hexDigits = "0123456789abcdef"

// String appends s as a JSON string. Invalid UTF-8 becomes U+FFFD, and characters that a
// browser could interpret as markup or a line end are escaped.
func String(b []byte, s string) []byte {
	b = append(b, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(s[i:])
			switch {
			case r == utf8.RuneError && size == 1:
				b = append(append(b, s[start:i]...), `\ufffd`...)
				start = i + size
			case r == '\u2028' || r == '\u2029':
				b = append(append(b, s[start:i]...), `\u202`...)
				b = append(b, hexDigits[r&0xF])
				start = i + size
			}
			i += size
			continue
		}
		if c >= ' ' && c != '"' && c != '\\' && c != '<' && c != '>' && c != '&' && c != 0x7f {
			i++
			continue
		}
		b = append(b, s[start:i]...)
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, '\\', 'n')
		case '\r':
			b = append(b, '\\', 'r')
		case '\t':
			b = append(b, '\\', 't')
		default:
			b = append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&0xF])
		}
		i++
		start = i
	}
	b = append(b, s[start:]...)
	return append(b, '"')
}

// appendTime appends t as an RFC 3339 string in UTC, truncated to milliseconds. Years outside 0
// to 9999 have no such form and do not occur.
func appendTime(b []byte, t time.Time) []byte {
	t = t.UTC()
	year, month, day := t.Date()
	hour, minute, second := t.Clock()
	ms := t.Nanosecond() / int(time.Millisecond)
	b = append(b, '"',
		byte('0'+year/1000%10), byte('0'+year/100%10), byte('0'+year/10%10), byte('0'+year%10), '-',
		byte('0'+int(month)/10), byte('0'+int(month)%10), '-',
		byte('0'+day/10), byte('0'+day%10), 'T',
		byte('0'+hour/10), byte('0'+hour%10), ':',
		byte('0'+minute/10), byte('0'+minute%10), ':',
		byte('0'+second/10), byte('0'+second%10), '.',
		byte('0'+ms/100), byte('0'+ms/10%10), byte('0'+ms%10), 'Z', '"')
	return b
}

// TextField appends `"name":value`. The caller adds the quotes and separators to the name, here
// and in the functions below: `{"id":` or `,"item_id":`.
func TextField(b []byte, name, value string) []byte {
	return String(append(b, name...), value)
}

// TextIfSet omits an empty text.
func TextIfSet(b []byte, name, value string) []byte {
	if value == "" {
		return b
	}
	return TextField(b, name, value)
}

// IntField appends a number.
func IntField(b []byte, name string, value int64) []byte {
	return strconv.AppendInt(append(b, name...), value, 10)
}

// BoolField appends true or false.
func BoolField(b []byte, name string, value bool) []byte {
	return strconv.AppendBool(append(b, name...), value)
}

// TimeField appends an RFC 3339 time in UTC, truncated to milliseconds.
func TimeField(b []byte, name string, value time.Time) []byte {
	return appendTime(append(b, name...), value)
}

// TimeIfSet omits a zero time.
func TimeIfSet(b []byte, name string, value time.Time) []byte {
	if value.IsZero() {
		return b
	}
	return TimeField(b, name, value)
}

// List appends the entries of a JSON array, which the caller opens and closes.
func List[T any](b []byte, all []T, one func([]byte, *T) []byte) []byte {
	for i := range all {
		if i > 0 {
			b = append(b, ',')
		}
		b = one(b, &all[i])
	}
	return b
}
