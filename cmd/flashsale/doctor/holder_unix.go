//go:build unix

package doctor

import (
	"fmt"
	"os"
	"strings"
	"syscall"
)

// writeLockByte is the byte of the file NAME-shm that the holder of a database's write lock locks; see
// "WAL-mode File Format" in SQLite's documentation.
const writeLockByte = 120

// lockHolder describes the process that holds the write lock of a SQLite file in WAL mode; "" if it
// is unknown, for example one of another container. This process must not have the file open: closing
// the file NAME-shm ends the locks that SQLite holds on it.
func lockHolder(path string) string {
	f, err := os.Open(path + "-shm")
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }() //nolint:errcheck // nothing was written
	lock := syscall.Flock_t{Type: syscall.F_WRLCK, Start: writeLockByte, Len: 1}
	if err := syscall.FcntlFlock(f.Fd(), syscall.F_GETLK, &lock); err != nil || lock.Type == syscall.F_UNLCK || lock.Pid <= 0 {
		return ""
	}
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", lock.Pid))
	if err != nil {
		return fmt.Sprintf("process %d", lock.Pid)
	}
	return fmt.Sprintf("process %d (%s)", lock.Pid, strings.TrimSpace(string(name)))
}
