// Package freeport finds loopback ports for the servers that tests and tools start.
package freeport

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// The ports lie below those the kernel gives to outgoing connections (from 32768
// on Linux, 49152 elsewhere). Among the others, a connection of any process
// could take one before its server listens on it, or hold it when a server that
// was killed has to come back; a crowd of buyers opens thousands.
const (
	first = 10000
	count = 22000
)

// given is where this process is in the range. One after the other, from a start
// by chance: two processes that look at the same time then name the same port
// only if they are in step, and ports by chance would meet again and again.
var given struct {
	mu    sync.Mutex
	start int
	n     int // how many were looked at
}

// Port returns a loopback port that nothing listens on and that this process was
// not given before: one is free again as soon as it was tried, before the server
// it is meant for listens on it. It returns an error when the range is used up.
func Port() (int, error) {
	given.mu.Lock()
	defer given.mu.Unlock()
	if given.n == 0 {
		given.start = rand.IntN(count)
	}
	var taken error
	for given.n < count {
		port := first + (given.start+given.n)%count
		given.n++
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))) //nolint:noctx // closed at once
		if err != nil {
			taken = err
			continue
		}
		if err := l.Close(); err != nil {
			return 0, fmt.Errorf("freeport: close port %d: %w", port, err)
		}
		return port, nil
	}
	return 0, errors.Join(errors.New("freeport: every port of the range was given or is taken"), taken)
}

// Addr is Port as a loopback host:port.
func Addr() (string, error) {
	port, err := Port()
	if err != nil {
		return "", err
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), nil
}
