//go:build unix

package handler

import (
	"bytes"
	"errors"
	"net"
	"runtime"
	"syscall"
	"testing"
	"time"

	"flashsale/handler/auth"
	"flashsale/internal/testing/await"
	"flashsale/order"
)

// TestOrderEvents_IdleStreamsUseLittleMemory opens idle streams, with client sockets outside of
// Go's heap, and bounds the server's memory for each. It is a few KiB;
// `make bench ARGS='-rounds 0 -streams 5000'` measures it with real orders.
func TestOrderEvents_IdleStreamsUseLittleMemory(t *testing.T) { //nolint:paralleltest // it measures the memory of the whole process
	const streams, bound = 1000, 20 << 10
	s, feed := streaming(t, orderIn(order.StatusQueued), func(c *Config) { c.Streams.Heartbeat = 500 * time.Millisecond })
	addr, err := net.ResolveTCPAddr("tcp", serve(t, s))
	if err != nil {
		t.Fatal(err)
	}
	// The request of a browser.
	request := []byte("GET " + eventsPath + " HTTP/1.1\r\nHost: shop.example\r\nAccept: text/event-stream\r\n" +
		"User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/139.0.0.0 Safari/537.36\r\n" +
		"Accept-Language: en-GB,en;q=0.9\r\nCache-Control: no-cache\r\nAuthorization: " + bearer(t, "alice", auth.RoleBuyer) + "\r\n\r\n")
	var open []int
	add := func(n int) (last int) {
		for range n {
			last = dialRaw(t, addr.Port)
			open = append(open, last)
			writeRaw(t, last, request)
			readRaw(t, last, "\ndata: ")
		}
		return last
	}
	t.Cleanup(func() {
		for _, fd := range open {
			syscall.Close(fd) //nolint:errcheck // it was only read from
		}
		await.True(t, "the streams to end", func() bool { return feed.open.Load() == 0 })
	})
	add(50) // so that one-time allocations do not count
	before := inUse()
	last := add(streams)
	readRaw(t, last, ": \n\n") // a heartbeat must not increase their memory
	each := (inUse() - before) / streams
	t.Logf("%d bytes of heap and stack for each stream", each)
	if each > bound {
		t.Errorf("a stream costs %d bytes of heap and stack, want at most %d", each, bound)
	}
}

// inUse is the heap and the stacks in use after a garbage collection, in bytes.
func inUse() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // pools are only emptied by the second
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}

// dialRaw connects without the runtime's network poller.
func dialRaw(t *testing.T, port int) (fd int) {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &syscall.Timeval{Sec: 120}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Connect(fd, &syscall.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	return fd
}

func writeRaw(t *testing.T, fd int, b []byte) {
	t.Helper()
	if n, err := syscall.Write(fd, b); err != nil || n != len(b) {
		t.Fatalf("wrote %d of %d bytes: %v", n, len(b), err)
	}
}

// readRaw reads until a text arrives.
func readRaw(t *testing.T, fd int, until string) {
	t.Helper()
	var got []byte
	b := make([]byte, 2048)
	for !bytes.Contains(got, []byte(until)) {
		n, err := syscall.Read(fd, b)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			t.Fatalf("waiting for %q after %.500q: %d, %v", until, got, n, err)
		}
		got = append(got, b[:n]...)
	}
}
