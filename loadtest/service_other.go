//go:build !linux

package main

import "syscall"

// childAttr has nothing to set where processes cannot be tied to their parent.
func childAttr() *syscall.SysProcAttr { return nil }
