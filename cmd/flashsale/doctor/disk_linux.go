package doctor

import "syscall"

// freeBytes is the space that an unprivileged user can still use in a folder.
func freeBytes(folder string) (n uint64, known bool) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(folder, &s); err != nil || s.Bsize <= 0 {
		return 0, false
	}
	return s.Bavail * uint64(s.Bsize), true
}
