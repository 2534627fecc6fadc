package handler

import (
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
)

// busySource always has news, up to a limit that ends a test that fails.
type busySource struct {
	stream *eventStream
	sent   int
}

func (s *busySource) next(b []byte) (_ []byte, more bool) {
	s.sent++
	s.stream.wake()
	return append(b, "data: x\n\n"...), s.sent < 1000
}

func (s *busySource) opened() {}
func (s *busySource) closed() {}

// busyStream returns a stream that always has news, and its client's side.
func busyStream(t *testing.T, end time.Time) (*eventStream, net.Conn) {
	t.Helper()
	server, client := net.Pipe()
	t.Cleanup(func() { _ = client.Close() }) //nolint:errcheck // a pipe
	rs := &streams{Streams: Streams{Heartbeat: time.Hour, Stall: time.Hour}, log: zerolog.Nop()}
	s := &eventStream{rs: rs, conn: server, chunked: true, news: true, end: end}
	s.source = &busySource{stream: s}
	return s, client
}

// A stream with continuous news ends at its end.
func TestEventStream_EndsDespiteNews(t *testing.T) {
	t.Parallel()
	s, client := busyStream(t, time.Now())
	go s.run()
	if got, err := io.ReadAll(client); err != nil || string(got) != string(lastChunk) {
		t.Errorf("got %.100q, %v", got, err)
	}
}

// A client that reads nothing does not keep the stream beyond its end.
func TestEventStream_WriteEndsWithTheStream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // the end does not come before the stream runs
		s, _ := busyStream(t, time.Now().Add(20*time.Millisecond))
		s.run() // would take an hour
		if sent := s.source.(*busySource).sent; sent != 1 {
			t.Errorf("%d events, want 1", sent)
		}
	})
}
