//go:build !unix

package redisserver

import "syscall"

// ownGroup does nothing on systems without process groups.
func ownGroup() *syscall.SysProcAttr { return nil }
