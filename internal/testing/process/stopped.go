//go:build unix

package process

import "flashsale/internal/testing/child"

// Stopped reports whether the process is at rest by a signal, its own or
// another's. Off Linux it cannot be told, and is true.
func (p *P) Stopped() bool {
	frozen, err := child.Frozen(p.Pid())
	return frozen && err == nil
}
