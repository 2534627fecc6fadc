package wire

import (
	"net"
	"testing"
)

// OnSent is called between the request and its answer: this server answers only after the call.
func TestConn_OnSent(t *testing.T) {
	t.Parallel()
	client, server := net.Pipe()
	c := NewConn(client)
	defer c.Close()
	sent := make(chan struct{})
	c.OnSent = func() { close(sent) }
	go func() {
		defer server.Close()
		if _, err := server.Read(make([]byte, 1<<10)); err != nil {
			t.Error(err)
		}
		<-sent
		if _, err := server.Write([]byte("HTTP/1.1 204 No Content\r\n\r\n")); err != nil {
			t.Error(err)
		}
	}()
	res, err := c.Do([]byte("GET / HTTP/1.1\r\nHost: h\r\n\r\n"))
	if err != nil || res.Status != 204 {
		t.Errorf("got %+v, %v", res, err)
	}
}
