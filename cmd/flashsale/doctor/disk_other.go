//go:build !linux

package doctor

// freeBytes is unknown on this system.
func freeBytes(string) (n uint64, known bool) { return 0, false }
