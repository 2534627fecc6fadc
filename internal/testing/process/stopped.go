//go:build unix

package process

import "flashsale/internal/testing/child"

// Stopped reports whether a signal has stopped the process, its own or that of another process.
// Outside Linux this cannot be detected, and Stopped returns true.
func (p *P) Stopped() bool {
	frozen, err := child.Frozen(p.Pid())
	return frozen && err == nil
}
