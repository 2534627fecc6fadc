//go:build !unix

package main

import "syscall"

// programAttr has nothing to set where there are no process groups.
func programAttr() *syscall.SysProcAttr { return nil }
