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

// The ports are below those that the kernel gives to outgoing connections (from 32768 on Linux,
// 49152 elsewhere). Otherwise an outgoing connection of any process, and a crowd of buyers
// opens thousands, could take a port before its server listens on it, or while a killed server
// restarts.
// was killed has to come back; a crowd of buyers opens thousands.
const (
	first = 10000
	count = 22000
)

// given is the position of this process in the range. Ports are tried in sequence from a random
// start: two processes that search concurrently then only collide if their positions match,
// whereas random ports would collide repeatedly.
var given struct {
	mu    sync.Mutex
	start int
	n     int // number of ports tried
}

// Port returns a free loopback port that this process was not given before: the port is only
// taken once the server it is meant for listens on it. It returns an error when the range is
// used up.
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

// Addr is like Port, as a loopback host:port.
func Addr() (string, error) {
	port, err := Port()
	if err != nil {
		return "", err
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), nil
}
