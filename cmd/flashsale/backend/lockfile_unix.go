//go:build unix

package backend

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// lockFile locks a file until the returned function is called; the kernel releases the lock when
// the process dies, for any reason. The error is ErrServed if another process excludes this one.
func lockFile(path string, exclusive bool) (func() error, error) {
	const flags = os.O_CREATE | os.O_RDWR | syscall.O_NOFOLLOW
	f, err := os.OpenFile(path, flags, 0o600)
	if errors.Is(err, syscall.ELOOP) {
		return nil, fmt.Errorf("%s %w", path, errLink)
	}
	if err != nil {
		return nil, err
	}
	how := syscall.LOCK_SH
	if exclusive {
		how = syscall.LOCK_EX
	}
	if err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB); err != nil {
		err = errors.Join(err, f.Close())
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, ErrServed
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f.Close, nil
}
