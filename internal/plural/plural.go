// Package plural writes numbers of things for people.
package plural

import (
	"fmt"
	"strings"
)

// Count returns a number with its noun, such as "1 order" and "2 orders". The noun is a singular with
// a regular plural.
func Count[N int | int64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprint(n) + " " + of(noun)
}

// of returns the plural of a noun: of "order" "orders", of "delivery" "deliveries", of "process" "processes".
func of(noun string) string {
	stem, isY := strings.CutSuffix(noun, "y")
	switch {
	case isY && !strings.ContainsAny(stem[len(stem)-1:], "aeiou"):
		return stem + "ies"
	case strings.HasSuffix(noun, "s"), strings.HasSuffix(noun, "x"), strings.HasSuffix(noun, "ch"), strings.HasSuffix(noun, "sh"):
		return noun + "es"
	}
	return noun + "s"
}
