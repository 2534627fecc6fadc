package backend

import "syscall"

// DiskSpace is the space in bytes on the disk of a folder: the part that an unprivileged user
// can still use, and all that such users can ever use.
func DiskSpace(folder string) (free, size uint64, known bool) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(folder, &s); err != nil || s.Bsize <= 0 {
		return 0, 0, false
	}
	block := uint64(s.Bsize)
	return s.Bavail * block, (s.Blocks - s.Bfree + s.Bavail) * block, true
}
