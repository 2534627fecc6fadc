//go:build unix

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// lockDataDir makes sure that one process at a time runs the embedded engine
// over a data directory: each would have a stock of its own. The kernel lets go
// of the lock when the process dies, however it dies.
func lockDataDir(dir string) (func() error, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("create data directory: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "serve.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock data directory: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		err = errors.Join(err, f.Close())
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, badSetting("data-dir", dir, "another flashsale serve is using it", "stop that one, or name another folder")
		}
		return nil, fmt.Errorf("lock data directory: %w", err)
	}
	return f.Close, nil
}
