//go:build unix

package backend

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// lockFile locks a file until the lock is closed; the kernel releases the lock when the process
// dies, for any reason. The error is ErrServed if another process excludes this one.
func lockFile(path string, exclusive bool) (*FileLock, error) {
	for {
		f, created, err := openLock(path)
		if err != nil {
			return nil, err
		}
		if err := flock(f, exclusive); err != nil {
			err = errors.Join(err, f.Close())
			if errors.Is(err, syscall.EWOULDBLOCK) {
				return nil, ErrServed
			}
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		// A process that has abandoned its lock may have removed the file before it was locked here.
		same, err := isAt(f, path)
		if same {
			return &FileLock{f: f, created: created && exclusive}, nil
		}
		if err := errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
	}
}

// openLock opens a lock file, and reports whether it has created it.
func openLock(path string) (f *os.File, created bool, err error) {
	const flags = os.O_CREATE | os.O_RDWR | syscall.O_NOFOLLOW
	f, err = os.OpenFile(path, flags|os.O_EXCL, 0o600)
	if created = err == nil; errors.Is(err, fs.ErrExist) {
		f, err = os.OpenFile(path, flags, 0o600)
	}
	if errors.Is(err, syscall.ELOOP) {
		err = fmt.Errorf("%s %w", path, errLink)
	}
	return f, created, err
}

func flock(f *os.File, exclusive bool) error {
	how := syscall.LOCK_SH
	if exclusive {
		how = syscall.LOCK_EX
	}
	return syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
}

// isAt reports whether an open file has the name.
func isAt(f *os.File, path string) (bool, error) {
	open, err := f.Stat()
	if err != nil {
		return false, err
	}
	named, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(open, named), err
}
