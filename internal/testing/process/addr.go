package process

import (
	"testing"

	"flashsale/internal/testing/freeport"
)

// FreeAddr returns a loopback host:port that nothing listens on and that this
// test binary has not handed out before.
func FreeAddr(t testing.TB) string {
	t.Helper()
	addr, err := freeport.Addr()
	if err != nil {
		t.Fatal(err)
	}
	return addr
}
