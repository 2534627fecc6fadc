package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// hit is one value of --kill: what is killed, and after which part of the orders.
type hit struct {
	what string // of hitNames
	at   float64
}

// hitNames are what --kill takes. The last API stays alive: the sale is opened and checked
// through it.
var hitNames = []string{"worker", "worker1", "worker2", "api1"}

// parseHit reads a value such as worker@50%.
func parseHit(text string) (hit, error) {
	bad := func(fix string) (hit, error) { return hit{}, &usageError{"kill", text, fix} }
	what, when, ok := strings.Cut(text, "@")
	if !ok {
		return bad("must say when, for example worker@50%")
	}
	if !slices.Contains(hitNames, what) {
		return bad(fmt.Sprintf("%q cannot be killed; use %s", what, strings.Join(hitNames, ", ")))
	}
	number, ok := strings.CutSuffix(when, "%")
	percent, err := strconv.ParseFloat(number, 64)
	if !ok || err != nil || !(percent >= 1 && percent <= 99) {
		return bad("must say after which part of the orders, from 1% to 99%, for example " + what + "@50%")
	}
	return hit{what, percent / 100}, nil
}

// checkHits refuses to kill a process twice: the second kill could come while it is down.
func checkHits(hits []hit) error {
	for i, a := range hits {
		for _, b := range hits[:i] {
			if strings.HasPrefix(a.what, b.what) || strings.HasPrefix(b.what, a.what) {
				return &usageError{"kill", a.what, "is to be killed twice; name each process once"}
			}
		}
	}
	return nil
}
