package chart

import (
	"math"
	"strconv"
	"strings"
)

// Number writes a number with so many decimals and a comma between thousands. It never uses
// an exponent.
func Number(v float64, decimals int) string {
	text := strconv.FormatFloat(math.Abs(v), 'f', decimals, 64)
	whole, fraction, _ := strings.Cut(text, ".")
	var b strings.Builder
	if v < 0 && strings.Trim(text, "0.") != "" {
		b.WriteByte('-')
	}
	for i, digit := range whole {
		if i > 0 && (len(whole)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(digit)
	}
	if fraction != "" {
		b.WriteByte('.')
		b.WriteString(fraction)
	}
	return b.String()
}

// Significant writes a number with about three significant digits, such as 0.0123, 1.23,
// 123 or 12,345. Zeros at the end of a fraction are left out.
func Significant(v float64) string {
	if v == 0 || math.IsNaN(v) || math.IsInf(v, 0) {
		return "0"
	}
	decimals := max(0, min(6, 2-int(math.Floor(math.Log10(math.Abs(v))))))
	text := Number(v, decimals)
	if strings.Contains(text, ".") {
		text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	}
	return text
}

// Count writes a number of things, or of things per second.
func Count(v float64) string { return Significant(v) }

// Milliseconds writes a duration given in milliseconds: below a second in ms, otherwise
// in s.
func Milliseconds(v float64) string {
	if math.Abs(v) < 999.5 {
		return Significant(v) + " ms"
	}
	return Significant(v/1000) + " s"
}

// Seconds writes a time given in seconds, with so many decimals.
func Seconds(v float64, decimals int) string { return Number(v, decimals) + " s" }

// Percent writes a percentage such as 50 % or 99.99 %.
func Percent(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) + " %" }
