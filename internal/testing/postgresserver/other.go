//go:build !unix

package postgresserver

import (
	"errors"
	"syscall"
)

// owner refuses: the servers of this package need the signals of Unix.
func owner() (*account, error) { return nil, errors.New("it needs Unix") }

func attributes(*account) *syscall.SysProcAttr { return nil }
