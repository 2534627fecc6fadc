//go:build !linux

package backend

// DiskSpace is unknown on this system.
func DiskSpace(string) (free, size uint64, known bool) { return 0, 0, false }
