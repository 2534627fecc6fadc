package redistest

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
)

// glance is how long a test waits for data that must not arrive. It is short: a fault may be
// missed in one run, but a correct run never fails.
const glance = 30 * time.Millisecond

// peer is a server that records the data it receives and answers on request.
type peer struct {
	l     net.Listener
	conns chan net.Conn
}

func newPeer(t *testing.T) *peer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{l: l, conns: make(chan net.Conn, 100)}
	var done sync.WaitGroup
	done.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.conns <- c
		}
	})
	t.Cleanup(func() {
		if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
		done.Wait()
	})
	return p
}

// accept returns the server's end of the next connection.
func (p *peer) accept(t *testing.T) net.Conn {
	t.Helper()
	select {
	case c := <-p.conns:
		closes(t, c)
		return c
	case <-time.After(patience):
		t.Fatal("no connection came")
		return nil
	}
}

// link returns a proxy and both ends of a connection through it.
func link(t *testing.T) (p *Proxy, client, server net.Conn) {
	t.Helper()
	peer := newPeer(t)
	p = NewProxy(t, peer.l.Addr().String())
	client = dial(t, p)
	return p, client, peer.accept(t)
}

func dial(t *testing.T, p *Proxy) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	closes(t, c)
	return c
}

// closes closes a connection at the end, if the test has not done so.
func closes(t *testing.T, c net.Conn) {
	t.Helper()
	t.Cleanup(func() {
		if err := c.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
}

func send(t *testing.T, c net.Conn, s string) {
	t.Helper()
	if _, err := io.WriteString(c, s); err != nil {
		t.Fatal(err)
	}
}

// receives checks that exactly want arrives.
func receives(t *testing.T, c net.Conn, want string) {
	t.Helper()
	within(t, c, patience)
	got := make([]byte, len(want))
	if n, err := io.ReadFull(c, got); err != nil || string(got) != want {
		t.Fatalf("received %q, %v; want %q", got[:n], err, want)
	}
}

// receivesNothing checks that neither data nor the end of the stream arrives.
func receivesNothing(t *testing.T, c net.Conn) {
	t.Helper()
	within(t, c, glance)
	b := make([]byte, 100)
	n, err := c.Read(b)
	if timeout := net.Error(nil); n != 0 || !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Fatalf("received %q, %v; want nothing", b[:n], err)
	}
}

// ends checks that the connection ends, by a reset or in order.
func ends(t *testing.T, c net.Conn) {
	t.Helper()
	if n, err := lastRead(t, c); n != 0 || err == nil {
		t.Fatalf("received %d bytes, %v; want the end", n, err)
	}
}

// endsInOrder checks that the stream ends without a reset.
func endsInOrder(t *testing.T, c net.Conn) {
	t.Helper()
	if n, err := lastRead(t, c); n != 0 || !errors.Is(err, io.EOF) {
		t.Fatalf("received %d bytes, %v; want the end of the stream", n, err)
	}
}

func lastRead(t *testing.T, c net.Conn) (int, error) {
	t.Helper()
	within(t, c, patience)
	n, err := c.Read(make([]byte, 100))
	if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
		t.Fatalf("it did not end within %v", patience)
	}
	return n, err
}

func within(t *testing.T, c net.Conn, d time.Duration) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(d)); err != nil {
		t.Fatal(err)
	}
}

func TestProxy_PassesOn(t *testing.T) {
	t.Parallel()
	p, client, server := link(t)
	if p.Connections() != 1 {
		t.Errorf("%d connections, want 1", p.Connections())
	}
	data := make([]byte, 3<<20)
	if _, err := rand.Read(data); err != nil {
		t.Fatal(err)
	}
	for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
		from, to := way[0], way[1]
		sent := make(chan error, 1)
		go func() {
			_, err := from.Write(data)
			// Each direction ends separately.
			sent <- errors.Join(err, from.(*net.TCPConn).CloseWrite())
		}()
		within(t, to, patience)
		got, err := io.ReadAll(to)
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes arrived, %v; want the %d that were sent", len(got), err, len(data))
		}
		if err := <-sent; err != nil {
			t.Error(err)
		}
	}
	await.True(t, "no connection is left", func() bool { return p.Connections() == 0 })
}

func TestProxy_SetLatency(t *testing.T) {
	t.Parallel()
	const there, back = 40 * time.Millisecond, 20 * time.Millisecond
	p, client, server := link(t)
	p.SetLatency(there, back)
	start := time.Now()
	send(t, client, "question")
	receives(t, server, "question")
	if d := time.Since(start); d < there {
		t.Errorf("it was there after %v, want %v", d, there)
	}
	start = time.Now()
	send(t, server, "answer")
	receives(t, client, "answer")
	if d := time.Since(start); d < back {
		t.Errorf("it was back after %v, want %v", d, back)
	}
	// With a lower latency, later data and the end of the stream do not overtake earlier data.
	send(t, client, "first ")
	p.SetLatency(0, 0)
	send(t, client, "second")
	if err := client.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	receives(t, server, "first second")
	endsInOrder(t, server)
}

// Delays overlap: in sequence, a hundred chunks would take a hundred times the latency.
func TestProxy_SetLatency_Overlaps(t *testing.T) {
	t.Parallel()
	const chunks, latency = 100, time.Second
	p, client, server := link(t)
	p.SetLatency(latency, 0)
	var want bytes.Buffer
	tick := time.NewTicker(time.Millisecond) // to make them separate chunks
	defer tick.Stop()
	for i := range chunks {
		piece := fmt.Sprintf("%d,", i)
		want.WriteString(piece)
		send(t, client, piece)
		<-tick.C
	}
	receives(t, server, want.String())
}

func TestProxy_DropReplies(t *testing.T) {
	t.Parallel()
	p, client, server := link(t)
	p.DropReplies(true)
	send(t, client, "question")
	receives(t, server, "question")
	send(t, server, "lost")
	receivesNothing(t, client)
	await.True(t, "it is dropped", func() bool { return p.Strikes() == 1 })
	if p.Connections() != 1 {
		t.Errorf("%d connections, want 1: it stays open", p.Connections())
	}
	p.DropReplies(false)
	send(t, client, "again")
	receives(t, server, "again")
	send(t, server, "heard")
	receives(t, client, "heard")
}

func TestProxy_Blackhole(t *testing.T) {
	t.Parallel()
	p, client, server := link(t)
	p.Blackhole(true)
	send(t, client, "question")
	receivesNothing(t, server)
	send(t, server, "news")
	receivesNothing(t, client)
	// The client gives up. That does not reach the server either.
	if err := client.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	receivesNothing(t, server)
	p.Blackhole(false)
	receives(t, server, "question")
	endsInOrder(t, server)
	receives(t, client, "news")
}

// A reset is held back as well.
func TestProxy_Blackhole_Reset(t *testing.T) {
	t.Parallel()
	p, client, server := link(t)
	p.Blackhole(true)
	if err := errors.Join(client.(*net.TCPConn).SetLinger(0), client.Close()); err != nil {
		t.Fatal(err)
	}
	receivesNothing(t, server)
	p.Blackhole(false)
	ends(t, server)
	await.True(t, "no connection is left", func() bool { return p.Connections() == 0 })
}

// A connection made in the meantime reaches nothing, and later the server.
func TestProxy_Blackhole_NewConnection(t *testing.T) {
	t.Parallel()
	peer := newPeer(t)
	p := NewProxy(t, peer.l.Addr().String())
	p.Blackhole(true)
	client := dial(t, p)
	send(t, client, "hello")
	await.True(t, "it is held", func() bool { return p.Connections() == 1 })
	look := time.NewTimer(glance)
	defer look.Stop()
	select {
	case c := <-peer.conns:
		closes(t, c)
		t.Fatal("the server was reached")
	case <-look.C:
	}
	p.Blackhole(false)
	receives(t, peer.accept(t), "hello")
}

func TestProxy_Sever(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]func(*Proxy){
		"plain":      func(*Proxy) {},
		"in a hole":  func(p *Proxy) { p.Blackhole(true) },
		"on the way": func(p *Proxy) { p.SetLatency(time.Hour, time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			peer := newPeer(t)
			p := NewProxy(t, peer.l.Addr().String())
			client := dial(t, p)
			server := peer.accept(t)
			before(p)
			send(t, client, "lost")
			if name == "plain" {
				receives(t, server, "lost")
			}
			p.Sever()
			if p.Connections() != 0 {
				t.Errorf("%d connections are left", p.Connections())
			}
			ends(t, client)
			ends(t, server)
			p.Blackhole(false)
			p.SetLatency(0, 0)
			send(t, dial(t, p), "new")
			receives(t, peer.accept(t), "new")
		})
	}
}

func TestProxy_Refuse(t *testing.T) {
	t.Parallel()
	peer := newPeer(t)
	p := NewProxy(t, peer.l.Addr().String())
	old := dial(t, p)
	server := peer.accept(t)
	p.Refuse(true)
	ends(t, dial(t, p))
	if p.Connections() != 1 {
		t.Errorf("%d connections, want the old one", p.Connections())
	}
	send(t, old, "still here")
	receives(t, server, "still here")
	p.Refuse(false)
	send(t, dial(t, p), "admitted")
	// If the refused one had reached the server, it would come first.
	receives(t, peer.accept(t), "admitted")
}

func TestProxy_TargetGone(t *testing.T) {
	t.Parallel()
	s := Real(t)
	p := NewProxy(t, s.Addr())
	rdb, ctx := client(t, p.Addr()), await.Context(t)
	if err := rdb.Set(ctx, "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := rdb.Get(ctx, "k").Err(); err == nil {
		t.Error("an answer from a dead server")
	}
	await.True(t, "no connection is left", func() bool { return p.Connections() == 0 })
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	if got, err := rdb.Get(ctx, "k").Result(); err != nil || got != "v" {
		t.Errorf("of the server that came back: %q, %v", got, err)
	}
}

// A request whose client gave up on a silent link is executed later. Fencing tokens exist for
// this case.
func TestProxy_DeliversLateRequests(t *testing.T) {
	t.Parallel()
	s := Real(t)
	p := NewProxy(t, s.Addr())
	sure, ctx := client(t, s.Addr()), await.Context(t)
	// The client gives up by its ReadTimeout, which begins once the request is sent.
	o := Options(p.Addr())
	o.ReadTimeout, o.WriteTimeout = 500*time.Millisecond, replyWithin
	rdb := redis.NewClient(o)
	closeAtEnd(t, rdb)
	await.True(t, "the client is connected", func() bool { return rdb.Ping(ctx).Err() == nil })
	p.Blackhole(true)
	if err := rdb.Set(ctx, "late", "1", 0).Err(); err == nil {
		t.Fatal("a reply through a black hole")
	}
	if n := sure.Exists(ctx, "late").Val(); n != 0 {
		t.Error("the request passed")
	}
	p.Blackhole(false)
	await.True(t, "the request arrives", func() bool { return sure.Exists(ctx, "late").Val() == 1 })
}

// The settings may be changed during traffic.
func TestProxy_SettingsMayChangeDuringTraffic(t *testing.T) {
	t.Parallel()
	s := Real(t)
	p := NewProxy(t, s.Addr())
	ctx := await.Context(t)
	var all sync.WaitGroup
	for range 4 {
		rdb := client(t, p.Addr())
		all.Go(func() {
			for range 50 {
				if err := rdb.Ping(ctx).Err(); err != nil {
					continue // the test only checks that there is no race or deadlock
				}
			}
		})
	}
	for i := range 40 {
		p.SetLatency(time.Duration(i%3)*time.Millisecond, 0)
		p.Blackhole(i%4 == 1)
		p.Refuse(i%5 == 1)
		p.Sever()
		p.Connections()
	}
	p.Blackhole(false)
	p.Refuse(false)
	all.Wait()
	if err := client(t, p.Addr()).Ping(ctx).Err(); err != nil {
		t.Errorf("at rest: %v", err)
	}
}
