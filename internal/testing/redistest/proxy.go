package redistest

import (
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	// chunkSize is the maximum size of data that is read, delayed and delivered at once.
	chunkSize = 16 << 10
	// chunksAhead bounds the data held back in one direction of one connection, at most 16 MiB.
	// Beyond it the proxy stops reading from the sender, as with a full socket.
	chunksAhead = 1024
	// proxyDial bounds the connection to the target. On loopback it succeeds or is refused
	// immediately, unless the target's accept queue is full.
	proxyDial = 5 * time.Second
)

// Proxy is a TCP proxy on loopback in front of a server. It forwards everything unchanged until
// a test adds a fault. The settings may be changed at any time, from any goroutine. They apply
// to existing and new connections, and they combine: with Blackhole and DropReplies on, nothing
// passes, and the held data is delivered or dropped when Blackhole goes off.
//
// A delay is counted from the arrival of a chunk at the proxy. Chunks overtake neither each
// other nor the end of their stream.
type Proxy struct {
	t      testing.TB
	target string
	listen *net.TCPListener
	all    sync.WaitGroup

	mu    sync.Mutex
	conns map[*proxied]struct{}
	faults
	// changed is closed and replaced when a setting changes.
	changed chan struct{}
	closed  bool
	cuts    []replyCut
	// The line is occupied until these times; see turn.
	busyToServer, busyToClient time.Time

	strikes atomic.Int64
}

// faults are the faults that a proxy applies to its connections.
type faults struct {
	toServer, toClient time.Duration
	dropReplies        bool
	blackhole          bool
	refuse             bool
	line
}

// NewProxy starts a proxy in front of target, a host:port. The proxy and its connections end
// with the test. It dials the target for each connection, so the target may stop and restart;
// while it is down, the proxy closes connections immediately after accepting them.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{t: t, target: target, listen: l, conns: map[*proxied]struct{}{}, changed: make(chan struct{})}
	p.all.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// Addr is the host:port to which clients connect.
func (p *Proxy) Addr() string { return p.listen.Addr().String() }

// SetLatency delays data by toServer on its way to the server and by toClient on the way back;
// 0 disables the delay. Delays of successive chunks overlap: latency does not limit the
// bandwidth. The setting applies to chunks that arrive at the proxy from now on.
func (p *Proxy) SetLatency(toServer, toClient time.Duration) {
	p.set(func(f *faults) { f.toServer, f.toClient = toServer, toClient })
}

// DropReplies discards everything that the server sends while on. The connections stay open:
// the server executes requests, but the client never gets an answer. The discarded data is
// lost, so a connection that missed part of an exchange can only be severed.
func (p *Proxy) DropReplies(on bool) { p.set(func(f *faults) { f.dropReplies = on }) }

// Blackhole holds back all data in both directions while on, including the end of a stream,
// like a half-open link. When it goes off, everything is delivered in order, including requests
// whose client has given up. New connections are accepted, because the kernel does that, but do
// not reach the server until then. Data whose delivery has already started may still arrive.
func (p *Proxy) Blackhole(on bool) { p.set(func(f *faults) { f.blackhole = on }) }

// Refuse closes new connections immediately after accepting them while on, without contacting
// the target. Existing connections stay open.
func (p *Proxy) Refuse(on bool) { p.set(func(f *faults) { f.refuse = on }) }

// Sever resets all connections on both sides now. Held data is lost. New connections are
// accepted.
func (p *Proxy) Sever() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		p.strikes.Add(1)
		c.cut()
	}
	// Connections stops counting them now, before their goroutines have ended.
	clear(p.conns)
}

// Connections is the number of open connections: accepted, not refused, and closed neither by
// an endpoint nor by Sever.
func (p *Proxy) Connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns)
}

func (p *Proxy) set(change func(*faults)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	narrow := p.bytesPerSecond
	change(&p.faults)
	if p.bytesPerSecond != narrow {
		// Data that occupied the line at its former bandwidth does not delay later data.
		p.busyToServer, p.busyToClient = time.Time{}, time.Time{}
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

// now returns the settings, and a channel that is closed when they change.
func (p *Proxy) now() (faults, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.faults, p.changed
}

func (p *Proxy) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	if err := p.listen.Close(); err != nil {
		p.t.Errorf("redistest: close proxy: %v", err)
	}
	p.Sever()
	p.all.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listen.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			p.t.Errorf("redistest: proxy: accept: %v", err)
			return
		}
		c := &proxied{proxy: p, client: client, done: make(chan struct{})}
		if p.admit(c) {
			p.all.Go(c.run)
		} else {
			// Close in order, so that the client's dial succeeds and its first exchange fails.
			c.end((*net.TCPConn).Close)
		}
	}
}

// admit registers a connection unless connections are refused. A connection accepted while the
// proxy closes must not be registered after the last Sever.
func (p *Proxy) admit(c *proxied) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuse || p.closed {
		p.strikes.Add(1)
		return false
	}
	p.conns[c] = struct{}{}
	return true
}

// proxied is a client's connection and its counterpart to the server.
type proxied struct {
	proxy  *Proxy
	client *net.TCPConn
	// cutNext cuts the next reply.
	cutNext atomic.Pointer[replyCut]

	mu     sync.Mutex
	server *net.TCPConn // nil until it was dialled
	gone   bool
	done   chan struct{} // closed when the connection was cut
}

// run serves the connection until both directions have ended.
func (c *proxied) run() {
	defer func() {
		c.end((*net.TCPConn).Close)
		c.proxy.mu.Lock()
		delete(c.proxy.conns, c)
		c.proxy.mu.Unlock()
	}()
	// A black hole does not reach the server either.
	if !c.passable() || !c.dial() {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { c.pipe(c.client, c.server, true) })
	both.Go(func() { c.pipe(c.server, c.client, false) })
	both.Wait()
}

// dial connects to the target. It returns false if the target is down, in which case the client
// sees a closed connection, or if the connection was cut in the meantime.
func (c *proxied) dial() bool {
	conn, err := net.DialTimeout("tcp", c.proxy.target, proxyDial)
	if err != nil {
		return false
	}
	server := conn.(*net.TCPConn)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.gone {
		c.server = server
		return true
	}
	if err := server.Close(); err != nil {
		c.proxy.t.Logf("redistest: proxy: close: %v", err)
	}
	return false
}

// cut resets both sides.
func (c *proxied) cut() {
	c.end(func(conn *net.TCPConn) error { return errors.Join(conn.SetLinger(0), conn.Close()) })
}

// end closes both sides. A second call does nothing. After both streams have ended it must not
// reset them: the kernel may still have to send the last delivered data.
func (c *proxied) end(closeConn func(*net.TCPConn) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone {
		return
	}
	c.gone = true
	close(c.done)
	err := closeConn(c.client)
	if c.server != nil {
		err = errors.Join(err, closeConn(c.server))
	}
	if err != nil {
		c.proxy.t.Logf("redistest: proxy: close: %v", err)
	}
}

// chunk is a piece of a stream in transit. The last one has no data, and its end is io.EOF or
// the read error.
type chunk struct {
	data []byte
	due  time.Time
	end  error
}

// pipe forwards one direction until it ends. Reading and delivering run separately, so that a
// delay does not stop the reading.
func (c *proxied) pipe(from, to *net.TCPConn, toServer bool) {
	ahead := make(chan chunk, chunksAhead)
	var reader sync.WaitGroup
	reader.Go(func() { c.read(from, ahead, toServer) })
	c.deliver(ahead, to, toServer)
	reader.Wait()
}

// read reads a stream's chunks until it ends.
func (c *proxied) read(from *net.TCPConn, ahead chan<- chunk, toServer bool) {
	defer close(ahead)
	buf := make([]byte, chunkSize)
	for {
		n, err := from.Read(buf)
		f, _ := c.proxy.now()
		due := time.Now().Add(f.delay(toServer))
		if n > 0 && !c.hold(ahead, chunk{data: slices.Clone(buf[:n]), due: due}) {
			return
		}
		if err != nil {
			c.hold(ahead, chunk{due: due, end: err})
			return
		}
	}
}

// hold queues a chunk. It returns false if the connection was cut.
func (c *proxied) hold(ahead chan<- chunk, piece chunk) bool {
	select {
	case ahead <- piece:
		return true
	case <-c.done:
		return false
	}
}

// deliver sends the chunks when they are due.
func (c *proxied) deliver(ahead <-chan chunk, to *net.TCPConn, toServer bool) {
	for piece := range ahead {
		if time.Until(piece.due) > 0 {
			c.proxy.strikes.Add(1)
		}
		if !c.wait(piece.due) || !c.passable() {
			return
		}
		switch f, _ := c.proxy.now(); {
		case errors.Is(piece.end, io.EOF):
			// One direction may end before the other.
			if to.CloseWrite() != nil {
				c.cut()
			}
		case piece.end != nil:
			c.cut() // a reset ends both directions
		case f.dropReplies && !toServer:
			c.proxy.strikes.Add(1)
		default:
			if !c.put(to, piece.data, toServer) {
				return
			}
		}
	}
}

// wait waits until due. It returns false if the connection was cut.
func (c *proxied) wait(due time.Time) bool {
	d := time.Until(due)
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-c.done:
		return false
	}
}

// passable waits until the black hole ends. It returns false if the connection was cut.
func (c *proxied) passable() bool {
	for {
		f, changed := c.proxy.now()
		if !f.blackhole {
			return true
		}
		c.proxy.strikes.Add(1)
		select {
		case <-changed:
		case <-c.done:
			return false
		}
	}
}
