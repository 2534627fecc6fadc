//go:build unix

package store

import (
	"os"
	"syscall"
)

// turnFile is locked with flock, whose locks belong to the open file: two connections of one
// process exclude each other, too. The kernel unlocks it when the process dies.
type turnFile struct{ *os.File }

// openTurn returns a connection's place at a database. It is nil if the file cannot be opened,
// because a process can do without.
func openTurn(path string) *turn {
	f, err := os.OpenFile(path+turnSuffix, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil
	}
	// A file that belongs to root would exclude the service.
	if info, err := os.Stat(path); err == nil && os.Geteuid() == 0 {
		if of, ok := info.Sys().(*syscall.Stat_t); ok {
			_ = f.Chown(int(of.Uid), int(of.Gid)) //nolint:errcheck // without it, the service does without
		}
	}
	return &turn{file: turnFile{f}}
}

func (f turnFile) tryLock() bool {
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
}

func (f turnFile) unlock() {
	_ = syscall.Flock(int(f.Fd()), syscall.LOCK_UN) //nolint:errcheck // it cannot fail for an open file
}
