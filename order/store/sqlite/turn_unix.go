//go:build unix

package sqlite

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
	const flags = os.O_RDWR | syscall.O_NOFOLLOW // a link could name any file of root's
	f, err := os.OpenFile(path+turnSuffix, flags|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		giveToOwner(f, path)
	} else if f, err = os.OpenFile(path+turnSuffix, flags, 0); err != nil {
		return nil
	}
	return &turn{file: turnFile{f}}
}

// giveToOwner gives a new file to the owner of the database: one of root's would exclude the service.
func giveToOwner(f *os.File, path string) {
	info, err := os.Stat(path)
	if err != nil || os.Geteuid() != 0 {
		return
	}
	if of, ok := info.Sys().(*syscall.Stat_t); ok {
		_ = f.Chown(int(of.Uid), int(of.Gid)) //nolint:errcheck // the service can do without the file
	}
}

func (f turnFile) tryLock() bool {
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
}

func (f turnFile) unlock() {
	_ = syscall.Flock(int(f.Fd()), syscall.LOCK_UN) //nolint:errcheck // it cannot fail for an open file
}
