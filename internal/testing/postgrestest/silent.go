package postgrestest

import (
	"net"
	"strings"
	"testing"

	"flashsale/internal/testing/await"
)

// SilentFirst returns the URL with a host before its own that accepts connections and never
// answers.
func SilentFirst(t testing.TB, url string) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(await.Context(t), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	// The system accepts connections for a listener that does not.
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return strings.Replace(url, "@", "@"+l.Addr().String()+",", 1)
}
