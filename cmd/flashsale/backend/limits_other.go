//go:build !unix

package backend

// FileLimit is unknown on this system.
func FileLimit() (n uint64, known bool) { return 0, false }
