//go:build unix

package backend

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"flashsale/cmd/flashsale/config"
)

// LockFile ensures that only one process runs the embedded engine on a database and a data
// directory, because each engine has its own stock. The kernel releases the lock when the
// process dies, for any reason. The error names the setting if the file cannot be locked.
func LockFile(path, setting, value string) (func() error, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, config.FailedSetting(setting, value, err.Error(), "name a folder this process may write to")
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, config.FailedSetting(setting, value, err.Error(), "name a folder this process may write to")
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		err = errors.Join(err, f.Close())
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, config.FailedSetting(setting, value, "another flashsale serve is using it", "stop that one, or name another")
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f.Close, nil
}
