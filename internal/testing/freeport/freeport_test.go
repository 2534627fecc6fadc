package freeport

import (
	"net"
	"strconv"
	"testing"
)

func port(t *testing.T) int {
	t.Helper()
	p, err := Port()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPort_NeverTwice(t *testing.T) {
	t.Parallel()
	seen := map[int]bool{}
	for range 1000 {
		p := port(t)
		if seen[p] {
			t.Fatalf("port %d was given twice", p)
		}
		if p < first || p >= first+count {
			t.Fatalf("port %d is out of the range", p)
		}
		seen[p] = true
	}
}

// TestPort_SkipsPortsInUse listens on the port that would be next. It is not parallel, because
// other tests would take that port.
func TestPort_SkipsPortsInUse(t *testing.T) {
	var next int
	l := untilFree(func() (net.Listener, error) {
		if next = port(t) + 1; next == first+count {
			next = first
		}
		return net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(next)))
	})
	defer l.Close()
	if p := port(t); p == next {
		t.Errorf("port %d was given while it is in use", p)
	}
}

// TestPort_SkipsClaimedBlocks claims the block that would be next, as another process does.
func TestPort_SkipsClaimedBlocks(t *testing.T) {
	var base int
	l := untilFree(func() (net.Listener, error) {
		port(t)
		claimed.mu.Lock()
		defer claimed.mu.Unlock()
		base = first + (claimed.start+claimed.tried)%(count/block)*block
		claimed.next = claimed.end
		return listen(base)
	})
	defer l.Close()
	if p := port(t); p >= base && p < base+block {
		t.Errorf("port %d is in the claimed block of %d", p, base)
	}
}

// untilFree repeats take until it gets its port. One that another process has may be free again
// when Port checks it, and be given rightly.
func untilFree(take func() (net.Listener, error)) net.Listener {
	for {
		if l, err := take(); err == nil {
			return l
		}
	}
}
