package redistest

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"flashsale/internal/testing/await"
)

// Each chunk arrives within the range of its latency, and the arrivals are spread.
func TestProxy_SetJitter(t *testing.T) {
	t.Parallel()
	const latency, jitter = 30 * time.Millisecond, 20 * time.Millisecond
	f := faults{toServer: latency, line: line{jitterToServer: jitter}}
	least, most := time.Hour, time.Duration(0)
	for range 1000 {
		d := f.delay(true)
		least, most = min(least, d), max(most, d)
	}
	if least < latency-jitter || most > latency+jitter || most-least < jitter {
		t.Errorf("delays from %v to %v, want %v±%v", least, most, latency, jitter)
	}
	if d := f.delay(false); d != 0 {
		t.Errorf("the other direction is delayed by %v", d)
	}
	p, client, server := link(t)
	p.SetLatency(latency, 0)
	p.SetJitter(jitter, 0)
	var want strings.Builder
	start := time.Now()
	for i := range 50 {
		piece := strings.Repeat(string(rune('a'+i%26)), 10)
		want.WriteString(piece)
		send(t, client, piece)
	}
	receives(t, server, want.String())
	if d := time.Since(start); d < latency-jitter {
		t.Errorf("it was there after %v", d)
	}
	if p.Strikes() == 0 {
		t.Error("no strike was counted")
	}
}

// A latency below its jitter does not deliver before the arrival.
func TestProxy_SetJitter_NeverEarly(t *testing.T) {
	t.Parallel()
	f := faults{toClient: time.Millisecond, line: line{jitterToClient: time.Second}}
	for range 1000 {
		if d := f.delay(false); d < 0 || d > time.Second+time.Millisecond {
			t.Fatalf("a delay of %v", d)
		}
	}
}

func TestProxy_SetBandwidth(t *testing.T) {
	t.Parallel()
	peer := newPeer(t)
	p := NewProxy(t, peer.l.Addr().String())
	p.SetBandwidth(40_000)
	// Two connections share the line: 2 × 4,000 bytes take 0.2 s together.
	start := time.Now()
	var both sync.WaitGroup
	for range 2 {
		client := dial(t, p)
		server := peer.accept(t)
		data := strings.Repeat("x", 4000)
		both.Go(func() {
			if _, err := io.WriteString(client, data); err != nil {
				t.Error(err)
			}
			if err := server.SetReadDeadline(time.Now().Add(patience)); err != nil {
				t.Error(err)
			}
			if _, err := io.ReadFull(server, make([]byte, len(data))); err != nil {
				t.Error(err)
			}
		})
	}
	both.Wait()
	if d := time.Since(start); d < 200*time.Millisecond {
		t.Errorf("8,000 bytes crossed a line of 40,000 a second in %v", d)
	}
	if p.Strikes() == 0 {
		t.Error("no strike was counted")
	}
}

// Data that waits for bandwidth is delivered as soon as the limit is removed.
func TestProxy_SetBandwidth_Off(t *testing.T) {
	t.Parallel()
	p, client, server := link(t)
	p.SetBandwidth(1)
	question := strings.Repeat("?", 500) // too long for the limited line
	send(t, client, question)
	receivesNothing(t, server)
	p.SetBandwidth(0)
	receives(t, server, question)
	p.SetBandwidth(1_000_000)
	send(t, server, "answer")
	receives(t, client, "answer")
}

// Data lost with its connection does not occupy the line for later data.
func TestProxy_SetBandwidth_Sever(t *testing.T) {
	t.Parallel()
	p, client, server := link(t)
	p.SetBandwidth(1)
	send(t, client, "lost")
	receivesNothing(t, server)
	p.Sever()
	ends(t, client)
	ends(t, server)
}

func TestProxy_SetSlices(t *testing.T) {
	t.Parallel()
	const size, pause = 3, 5 * time.Millisecond
	p, client, server := link(t)
	p.SetSlices(size, pause)
	start := time.Now()
	send(t, client, "abcdefghij")
	within(t, server, patience)
	buf, first := make([]byte, 100), 0
	n, err := server.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	first = n
	receives(t, server, "abcdefghij"[first:])
	if d := time.Since(start); d < 3*pause {
		t.Errorf("four pieces with pauses of %v between took %v", pause, d)
	}
	if p.Strikes() != 4 {
		t.Errorf("%d strikes, want one for each piece", p.Strikes())
	}
	p.SetSlices(0, 0)
	data := make([]byte, 1<<20)
	if _, err := rand.Read(data); err != nil {
		t.Fatal(err)
	}
	p.SetSlices(1000, 0)
	sent := make(chan error, 1)
	go func() {
		_, err := server.Write(data)
		sent <- err
	}()
	got := make([]byte, len(data))
	within(t, client, patience)
	if _, err := io.ReadFull(client, got); err != nil || !bytes.Equal(got, data) {
		t.Errorf("what arrived in slices is not what was sent: %v", err)
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}

func TestProxy_CutReply(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		after int
		want  string
	}{
		"in the middle":         {3, "ans"},
		"nothing of it":         {0, ""},
		"never the whole of it": {100, "answe"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, client, server := link(t)
			struck := p.CutReply(c.after)
			send(t, client, "question")
			receives(t, server, "question")
			select {
			case <-struck:
				t.Fatal("it was cut before there was a reply")
			default:
			}
			send(t, server, "answer")
			receives(t, client, c.want)
			within(t, client, patience)
			if n, err := client.Read(make([]byte, 10)); n != 0 || !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("after the cut came %d bytes, %v; want a reset", n, err)
			}
			<-struck
			ends(t, server)
			if p.Strikes() != 1 {
				t.Errorf("%d strikes, want 1", p.Strikes())
			}
		})
	}
}

// A call cuts one reply; the next one is complete.
func TestProxy_CutReply_Once(t *testing.T) {
	t.Parallel()
	s := Real(t)
	p := NewProxy(t, s.Addr())
	rdb, sure, ctx := client(t, p.Addr()), client(t, s.Addr()), await.Context(t)
	if err := rdb.Ping(ctx).Err(); err != nil { // so that the cut does not hit the handshake
		t.Fatal(err)
	}
	struck := p.CutReply(1)
	err := rdb.Incr(ctx, "k").Err()
	if netErr := (*net.OpError)(nil); err == nil || !errors.As(err, &netErr) && !errors.Is(err, io.EOF) {
		t.Errorf("the client got %v; want a broken connection", err)
	}
	<-struck
	// The command was executed although the client got no answer.
	if n, err := sure.Get(ctx, "k").Int(); n != 1 || err != nil {
		t.Errorf("the server counts %d, %v; want 1", n, err)
	}
	if n, err := rdb.Incr(ctx, "k").Result(); n != 2 || err != nil {
		t.Errorf("the next reply is %d, %v; want 2", n, err)
	}
}

// The reply to the request that contains the text is lost, and no other one.
func TestProxy_CutReplyTo(t *testing.T) {
	t.Parallel()
	s := Real(t)
	p := NewProxy(t, s.Addr())
	rdb, sure, ctx := client(t, p.Addr()), client(t, s.Addr()), await.Context(t)
	struck := p.CutReplyTo("wanted")
	if err := rdb.Set(ctx, "k", "other", 0).Err(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-struck:
		t.Fatal("the reply to another request was cut")
	default:
	}
	err := rdb.Set(ctx, "k", "wanted", 0).Err()
	if netErr := (*net.OpError)(nil); err == nil || !errors.As(err, &netErr) && !errors.Is(err, io.EOF) {
		t.Errorf("the client got %v; want a broken connection", err)
	}
	<-struck
	if v, err := sure.Get(ctx, "k").Result(); v != "wanted" || err != nil {
		t.Errorf("the server has %q, %v; want the value whose reply was lost", v, err)
	}
	if err := rdb.Set(ctx, "k", "wanted", 0).Err(); err != nil {
		t.Errorf("the reply to a second request: %v", err)
	}
}

func TestProxy_Strikes(t *testing.T) {
	t.Parallel()
	p, client, server := link(t)
	send(t, client, "question")
	receives(t, server, "question")
	if n := p.Strikes(); n != 0 {
		t.Errorf("%d strikes of a proxy without faults", n)
	}
	p.Sever()
	if n := p.Strikes(); n != 1 {
		t.Errorf("%d strikes after a connection was severed, want 1", n)
	}
	p.Refuse(true)
	ends(t, dial(t, p))
	if n := p.Strikes(); n != 2 {
		t.Errorf("%d strikes after a connection was refused, want 2", n)
	}
}
