//go:build faultpoint

// Package faultpoint names the places at which tests kill or stop a process. off.go describes
// it.
package faultpoint

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

// target is the value of FAULTPOINT: "place" or "place:n" kills the process with SIGKILL when
// it reaches the place for the first or n-th time; "place:n:stop" stops it with SIGSTOP
// instead.
var target = parse(os.Getenv("FAULTPOINT"))

type point struct {
	name string
	nth  int64
	sig  syscall.Signal
	seen atomic.Int64
}

func parse(v string) *point {
	f := strings.Split(v, ":")
	p := &point{name: f[0], nth: 1, sig: syscall.SIGKILL}
	if len(f) > 1 {
		n, err := strconv.ParseInt(f[1], 10, 64)
		if err != nil {
			panic(fmt.Sprintf("FAULTPOINT=%q: %v", v, err))
		}
		p.nth = n
	}
	if len(f) > 2 && f[2] == "stop" {
		p.sig = syscall.SIGSTOP
	}
	return p
}

// Reach marks a place. It kills or stops the process if the place is the target.
func Reach(name string) {
	if name != target.name || target.seen.Add(1) != target.nth {
		return
	}
	if target.sig == syscall.SIGKILL {
		if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
			panic(err)
		}
		select {} // the signal is on its way
	}
	stop()
}
