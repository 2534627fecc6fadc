package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// killSpec is one value of --kill: what is killed, and after which part of the orders.
type killSpec struct {
	what string // of killNames
	at   float64
}

// killNames are what --kill takes. The last API stays alive: the sale is opened and checked
// through it.
var killNames = []string{"worker", "worker1", "worker2", "api1"}

// parseKill reads a value such as worker@50%.
func parseKill(text string) (killSpec, error) {
	bad := func(fix string) (killSpec, error) { return killSpec{}, &usageError{"kill", text, fix} }
	what, when, ok := strings.Cut(text, "@")
	if !ok {
		return bad("must say when, for example worker@50%")
	}
	if !slices.Contains(killNames, what) {
		return bad(fmt.Sprintf("%q cannot be killed; use %s", what, strings.Join(killNames, ", ")))
	}
	number, ok := strings.CutSuffix(when, "%")
	percent, err := strconv.ParseFloat(number, 64)
	if !ok || err != nil || !(percent >= 1 && percent <= 99) {
		return bad("must say after which part of the orders, from 1% to 99%, for example " + what + "@50%")
	}
	return killSpec{what, percent / 100}, nil
}

// checkKilledOnce refuses to kill a process twice: the second kill could come while it is down.
func checkKilledOnce(kills []killSpec) error {
	for i, a := range kills {
		for _, b := range kills[:i] {
			if strings.HasPrefix(a.what, b.what) || strings.HasPrefix(b.what, a.what) {
				return &usageError{"kill", a.what, "is to be killed twice; name each process once"}
			}
		}
	}
	return nil
}
