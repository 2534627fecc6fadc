package service

import (
	"net"
	"testing"
)

// Given the address of a listener, then the banner shows one that a browser on this machine can open.
func TestReachable(t *testing.T) {
	t.Parallel()
	for at, want := range map[string]string{
		"0.0.0.0:8080": "localhost:8080", "[::]:8080": "localhost:8080", "127.0.0.1:8080": "127.0.0.1:8080", "[::1]:9090": "[::1]:9090",
	} {
		a, err := net.ResolveTCPAddr("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		if got := reachable(a); got != want {
			t.Errorf("%s: %s, want %s", at, got, want)
		}
	}
}
