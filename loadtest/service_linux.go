package main

import "syscall"

// childAttr puts the service in a process group of its own, so that Ctrl-C
// reaches it through us and in order, and has the kernel end it if we are
// killed without a chance to.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
