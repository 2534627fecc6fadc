//go:build !linux

package doctor

// freeBytes is not known here.
func freeBytes(string) (n uint64, known bool) { return 0, false }
