// Package atend ends what the tests of a binary share, such as servers, after the last test and
// before the check for leaked goroutines.
package atend

import "sync"

var ends struct {
	mu sync.Mutex
	do []func()
}

// Do makes Run call f.
func Do(f func()) {
	ends.mu.Lock()
	defer ends.mu.Unlock()
	ends.do = append(ends.do, f)
}

// Run calls the functions of Do once each, the last one first. redistest's Main and Shutdown call
// it.
func Run() {
	ends.mu.Lock()
	do := ends.do
	ends.do = nil
	ends.mu.Unlock()
	for i := len(do) - 1; i >= 0; i-- {
		do[i]()
	}
}
