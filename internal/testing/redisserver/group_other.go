//go:build !unix

package redisserver

import "syscall"

// ownGroup has nothing to set where there are no process groups.
func ownGroup() *syscall.SysProcAttr { return nil }
