package doctor

import "syscall"

// freeBytes is what an ordinary user may still write into a folder.
func freeBytes(folder string) (n uint64, known bool) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(folder, &s); err != nil || s.Bsize <= 0 {
		return 0, false
	}
	return s.Bavail * uint64(s.Bsize), true
}
