package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/rs/zerolog"
)

// The byte of the next request that the server reads before the connection is idle counts
// towards the request line.
func TestStrictConn_ReadAhead(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for length, want := range map[int]error{maxRequestLine: nil, maxRequestLine + 1: errRequestLine} {
		client, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close() //nolint:gocritic // there are two
		accepted, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer accepted.Close() //nolint:gocritic // there are two
		c := &strictConn{TCPConn: accepted.(*net.TCPConn)}
		c.enter(http.StateActive)
		if _, err := io.WriteString(client, strings.Repeat("a", length)+"\n"); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		c.enter(http.StateIdle)
		var got error
		for rest, n := length, 0; rest > 0 && got == nil; rest -= n {
			n, got = c.Read(make([]byte, 4<<10))
		}
		if !errors.Is(got, want) {
			t.Errorf("a line of %d bytes: %v, want %v", length, got, want)
		}
	}
}

func TestBareLineFeed(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		before byte
		got    string
		want   bool
	}{
		{0, "GET / HTTP/1.1\r\nHost: a\r\n\r\n", false},
		{0, "GET / HTTP/1.1\nHost: a\r\n\r\n", true},
		{0, "GET / HTTP/1.1\r\nHost: a\n\n", true},
		{0, "\n", true},
		{'\r', "\nHost: a\r\n\r\n", false},
		{'a', "\nHost: a\r\n\r\n", true},
		{0, "POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\n{\n}", false},
		{0, "POST / HTTP/1.1\r\ncontent-length:9\r\n\r\n{\n}", false}, // incomplete
		// The next request may follow in the same data.
		{0, "GET / HTTP/1.1\r\n\r\n{\n}", true},
		{0, "GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\nHost: a\n\n", true},
		{0, "POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\n{\n}GET / HTTP/1.1\nHost: a\n\n", true},
		{0, "POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\n{\n}GET / HTTP/1.1\r\nHost: a\r\n\r\n", false},
		{0, "X: 1\r\n\n", true},
		{0, "", false},
	} {
		if got := bareLineFeed(tc.before, []byte(tc.got)); got != tc.want {
			t.Errorf("after %q, %q: %t, want %t", tc.before, tc.got, got, tc.want)
		}
	}
}

func TestErrorLog(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	ErrorLog(zerolog.New(&out)).Printf("http: %s", "broken\nX: 1") //nolint:forbidigo // this is the function under test
	var got map[string]any
	if err := json.Unmarshal(out.Bytes(), &got); err != nil || got["level"] != "debug" || got["message"] != "http: broken\nX: 1" {
		t.Errorf("logged %v: %v", got, err)
	}
}
