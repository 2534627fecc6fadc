//go:build unix

package process

// Stopped reports whether the process is at rest by a signal, its own or
// another's. Off Linux it cannot be told, and is true.
func (p *P) Stopped() bool { return frozen(p.Pid()) }
