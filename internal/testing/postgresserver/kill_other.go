//go:build !linux

package postgresserver

import "os"

// killAll kills a server's first process. The others end when they notice that.
func killAll(first *os.Process, _ <-chan struct{}) error { return ignoreDone(first.Kill()) }

// children returns no processes: there is no /proc to list them.
func children(int) ([]int, error) { return nil, nil }
