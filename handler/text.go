package handler

import (
	"fmt"
	"strconv"
	"unicode"
	"unicode/utf8"
)

// checkText checks a text that people read: its length in characters, and that it
// shows what it holds. lines allows line breaks and tabs.
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

// hiddenRune returns the first character of a text that is not seen as itself: one
// that controls a terminal, turns the direction of what follows, breaks the line
// where a reader of logs expects none, or is invisible. It could make a text read
// as another one.
//
// Two kinds of invisible characters are parts of ordinary text, in their places
// only:
//   - The joiners U+200C and U+200D, between two characters of a script that uses
//     them (Arabic, Persian, the scripts of India, …) or between two emoji.
//   - One variation selector behind a visible character.
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

// neverShown are control and format characters, the separators of lines and
// paragraphs, and invisible letters and marks. Some format characters are signs of
// Arabic and Syriac that are seen: Prepended_Concatenation_Mark.
var neverShown = []*unicode.RangeTable{unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Other_Default_Ignorable_Code_Point}

// joins reports whether a joiner beside a character can have a meaning. It has none
// in the scripts of Europe, where it would only make a word look like another.
func joins(r rune) bool {
	return r > unicode.MaxASCII && unicode.In(r, unicode.L, unicode.M, unicode.S) &&
		!unicode.In(r, unicode.Latin, unicode.Greek, unicode.Cyrillic)
}
