//go:build unix

package main

import "syscall"

// programAttr puts a program in a process group of its own, so that Ctrl-C
// reaches it through us and in order.
func programAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
