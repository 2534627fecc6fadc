package slowclient

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"flashsale/internal/testing/await"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server serves h with a limit on the time to read, and returns its address and the number of
// connections it holds.
func server(t *testing.T, within time.Duration, h http.HandlerFunc) (addr string, held *atomic.Int64) {
	t.Helper()
	held = new(atomic.Int64)
	srv := httptest.NewUnstartedServer(h)
	srv.Config.ReadTimeout = within
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		switch s {
		case http.StateNew:
			held.Add(1)
		case http.StateClosed:
			held.Add(-1)
		default:
		}
	}
	srv.Start()
	t.Cleanup(srv.Close)
	return strings.TrimPrefix(srv.URL, "http://"), held
}

func TestHeaders(t *testing.T) {
	t.Parallel()
	addr, held := server(t, time.Second, func(http.ResponseWriter, *http.Request) {
		t.Error("a request was completed")
	})
	c := Headers(t, addr, 20)
	await.True(t, "all are connected", func() bool { return c.Open() == 20 && held.Load() == 20 })
	// The server's limit ends them although they send bytes, and they reconnect.
	await.True(t, "the server has closed each connection twice", func() bool { return c.Ended() >= 40 })
	c.Stop()
	c.Stop()
	await.True(t, "none is left", func() bool { return c.Open() == 0 && held.Load() == 0 })
	if c.Refused() != 0 {
		t.Errorf("%d could not connect", c.Refused())
	}
}

func TestBodies(t *testing.T) {
	t.Parallel()
	var began atomic.Int64
	addr, _ := server(t, time.Second, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || r.URL.Path != "/path" || r.Header.Get("X-Given") != "yes" || r.ContentLength <= 0 {
			t.Errorf("%s %s, length %d, headers %v", r.Method, r.URL, r.ContentLength, r.Header)
		}
		began.Add(1)
		if _, err := io.ReadAll(r.Body); err == nil {
			t.Error("a body was completed")
		}
		w.WriteHeader(http.StatusRequestTimeout)
	})
	c := Bodies(t, addr, 20, "/path", "X-Given: yes\r\n")
	await.True(t, "every header has arrived", func() bool { return began.Load() >= 20 })
	await.True(t, "the server has closed each connection twice", func() bool { return c.Ended() >= 40 })
	c.Stop()
}

// Without a server they keep trying, but not in a busy loop.
func TestHeaders_RefusedClientsRetry(t *testing.T) {
	t.Parallel()
	c := Headers(t, "127.0.0.1:1", 2)
	await.True(t, "each was refused twice", func() bool { return c.Refused() >= 4 })
	if c.Open() != 0 || c.Ended() != 0 {
		t.Errorf("%d connections, %d ended", c.Open(), c.Ended())
	}
}
