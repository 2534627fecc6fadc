package redistest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// The ports of servers lie below those the kernel gives to outgoing connections
// (from 32768 on Linux, 49152 elsewhere). A server that was killed has to come
// back on its port; among the others, a connection of any process could hold
// it, even one of a client that dials the dead server and meets itself.
const (
	firstPort = 20000
	portCount = 12000
)

// givenPorts remembers the ports handed out: one is free again as soon as it
// was tried, before the server it was meant for listens on it.
var givenPorts struct {
	mu    sync.Mutex
	ports map[int]bool
}

// freePort returns a loopback port that nothing listens on and that this test
// binary has not handed out before.
func freePort() (int, error) {
	givenPorts.mu.Lock()
	defer givenPorts.mu.Unlock()
	if givenPorts.ports == nil {
		givenPorts.ports = map[int]bool{}
	}
	const tries = 200
	var lastErr error
	for range tries {
		port := firstPort + rand.IntN(portCount)
		if givenPorts.ports[port] {
			continue
		}
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			lastErr = err
			continue
		}
		if err := l.Close(); err != nil {
			return 0, fmt.Errorf("redistest: free port: %w", err)
		}
		givenPorts.ports[port] = true
		return port, nil
	}
	return 0, errors.Join(errors.New("redistest: no free port found"), lastErr)
}
