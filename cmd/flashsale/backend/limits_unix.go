//go:build unix

package backend

import "syscall"

// FileLimit is the number of files that a process may have open.
func FileLimit() (n uint64, known bool) {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return 0, false
	}
	return uint64(l.Cur), true //nolint:unconvert // signed on some systems
}
