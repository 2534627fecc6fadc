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
const (
	first = 10000
	count = 22000
	// block is the number of ports that a process claims together.
	block = 100
)

// claimed are the blocks of this process. It listens on the first port of each block until it
// ends, so that no other process is given ports of the block.
var claimed struct {
	mu    sync.Mutex
	start int            // a random block, with which the search began
	tried int            // number of blocks tried
	held  []net.Listener // one for each block
	next  int            // the next port of the last block
	end   int            // the port after it
}

// Port returns a free loopback port that was not given before, to this process or to another one
// that runs: the port is only taken once the server it is meant for listens on it. It returns an
// error when the range is used up.
func Port() (int, error) {
	claimed.mu.Lock()
	defer claimed.mu.Unlock()
	for {
		if claimed.next == claimed.end {
			if err := claim(); err != nil {
				return 0, err
			}
		}
		port := claimed.next
		claimed.next++
		l, err := listen(port)
		if err != nil {
			continue // taken by a server of another program
		}
		if err := l.Close(); err != nil {
			return 0, fmt.Errorf("freeport: close port %d: %w", port, err)
		}
		return port, nil
	}
}

// claim claims the next block that no other process has.
func claim() error {
	if claimed.tried == 0 {
		claimed.start = rand.IntN(count / block)
	}
	var taken error
	for claimed.tried < count/block {
		port := first + (claimed.start+claimed.tried)%(count/block)*block
		claimed.tried++
		l, err := listen(port)
		if err != nil {
			taken = err
			continue
		}
		claimed.held = append(claimed.held, l)
		claimed.next, claimed.end = port+1, port+block
		return nil
	}
	return errors.Join(errors.New("freeport: every port of the range was given or is taken"), taken)
}

func listen(port int) (net.Listener, error) {
	return net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))) //nolint:noctx // returns at once
}

// Addr is like Port, as a loopback host:port.
func Addr() (string, error) {
	port, err := Port()
	if err != nil {
		return "", err
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), nil
}
