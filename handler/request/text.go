package request

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// CheckText checks a text for people: its length in characters, that it has no hidden
// characters, and that a required one is not blank. lines allows line breaks and tabs.
func CheckText(field, value string, least, most int, lines bool) error {
	if n := utf8.RuneCountInString(value); n < least || n > most {
		must := field + " must have "
		if least > 0 {
			must += strconv.Itoa(least) + " to "
		} else {
			must += "at most "
		}
		return ErrFieldRange.With(field, must+strconv.Itoa(most)+" characters.")
	}
	if least > 0 && strings.TrimSpace(value) == "" {
		return ErrFieldRange.With(field, field+" has only spaces; write a visible character.")
	}
	r, hidden := hiddenRune(value, lines)
	if !hidden {
		return nil
	}
	fix := "; remove it."
	if lines {
		fix = "; remove it. Line breaks and tabs are allowed."
	}
	return ErrFieldRange.With(field, fmt.Sprintf("%s contains U+%04X, a control or invisible character%s", field, r, fix))
}

// hiddenRune returns the first character of a text that is invisible or acts on other text: one
// that controls a terminal, changes the direction of the following text, or breaks a line where
// a reader of logs expects none. Such a character could make a text look like a different one.
//
// Two kinds of invisible characters are part of ordinary text, but only in their proper places:
//   - The joiners U+200C and U+200D, between two characters of a script that uses
//     them (Arabic, Persian, the scripts of India, …) or between two emoji.
//   - One variation selector after a visible character.
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

// neverShown are control and format characters, line and paragraph separators, and invisible
// letters and marks. Some format characters are visible signs of Arabic and Syriac:
// Prepended_Concatenation_Mark.
var neverShown = []*unicode.RangeTable{unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Other_Default_Ignorable_Code_Point}

// joins reports whether a joiner next to a character can have a meaning. It has none in
// European scripts, where it would only make a word look like another.
func joins(r rune) bool {
	return r > unicode.MaxASCII && unicode.In(r, unicode.L, unicode.M, unicode.S) &&
		!unicode.In(r, unicode.Latin, unicode.Greek, unicode.Cyrillic)
}

// currencies are the current codes of ISO 4217, without funds, metals, testing codes and
// withdrawn ones.
const currencies = " AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BHD BIF BMD BND BOB BRL BSD BTN BWP BYN BZD" +
	" CAD CDF CHF CLP CNY COP CRC CUP CVE CZK DJF DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GNF" +
	" GTQ GYD HKD HNL HTG HUF IDR ILS INR IQD IRR ISK JMD JOD JPY KES KGS KHR KMF KPW KRW KWD KYD KZT LAK LBP" +
	" LKR LRD LSL LYD MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MYR MZN NAD NGN NIO NOK NPR NZD OMR PAB" +
	" PEN PGK PHP PKR PLN PYG QAR RON RSD RUB RWF SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP SZL" +
	" THB TJS TMT TND TOP TRY TTD TWD TZS UAH UGX USD UYU UZS VED VES VND VUV WST XAF XCD XCG XOF XPF YER ZAR" +
	" ZMW ZWG "

// KnownCurrency reports whether code is one of them, in upper case.
func KnownCurrency(code string) bool {
	return len(code) == 3 && !strings.Contains(code, " ") && strings.Contains(currencies, " "+code+" ")
}

// VisibleASCII reports whether text has 1 to limit characters from '!' to '~'.
func VisibleASCII(text string, limit int) bool {
	for i := range len(text) {
		if text[i] < '!' || text[i] > '~' {
			return false
		}
	}
	return text != "" && len(text) <= limit
}
