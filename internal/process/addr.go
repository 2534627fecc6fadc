package process

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
)

// given remembers the addresses handed out: the kernel may name a port again
// as soon as it was closed, before the process it was meant for listens on it.
var given struct {
	mu    sync.Mutex
	addrs map[string]bool
}

// FreeAddr returns a loopback host:port that nothing listens on and that this
// test binary has not handed out before.
func FreeAddr(t testing.TB) string {
	t.Helper()
	addr, err := freeAddr()
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

func freeAddr() (string, error) {
	given.mu.Lock()
	defer given.mu.Unlock()
	if given.addrs == nil {
		given.addrs = map[string]bool{}
	}
	const tries = 100
	for range tries {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return "", fmt.Errorf("process: free port: %w", err)
		}
		addr := l.Addr().String()
		if err := l.Close(); err != nil {
			return "", fmt.Errorf("process: free port: %w", err)
		}
		if !given.addrs[addr] {
			given.addrs[addr] = true
			return addr, nil
		}
	}
	return "", errors.New("process: every free port was handed out before")
}
