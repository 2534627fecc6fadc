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
	// chunkSize is the most that is read, delayed and delivered at once.
	chunkSize = 16 << 10
	// chunksAhead bounds what one direction of one connection holds back, at most
	// 16 MiB; beyond it the sender is no longer read from, as with a full socket.
	chunksAhead = 1024
	// proxyDial bounds the connection to the target. On loopback it is there at
	// once or refused, unless the target's queue of connections is full.
	proxyDial = 5 * time.Second
)

// Proxy is a TCP proxy on loopback in front of a server. It passes everything
// on unchanged until it is told to disturb. The settings may be changed at any
// time, from any goroutine; they hold for the connections there are and for
// those to come, and they combine: with Blackhole and DropReplies on, nothing
// passes, and what waits is sorted when Blackhole goes off.
//
// A delay is counted from when a chunk arrived at the proxy, and chunks overtake
// neither each other nor the end of their stream.
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
	// The line is booked up to these times by what crosses it; see turn.
	busyToServer, busyToClient time.Time

	strikes atomic.Int64
}

// faults are what a proxy does to its connections.
type faults struct {
	toServer, toClient time.Duration
	dropReplies        bool
	blackhole          bool
	refuse             bool
	line
}

// NewProxy starts a proxy in front of target, a host:port. It ends with the
// test, and its connections with it. The target is dialled for each connection
// anew, so it may come and go; while it is away, connections are closed as soon
// as they were accepted.
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

// Addr is the host:port clients connect to.
func (p *Proxy) Addr() string { return p.listen.Addr().String() }

// SetLatency delivers what is sent later by toServer on the way to the server,
// and by toClient on the way back; 0 is at once. What is sent in a row arrives
// in a row: the delay is that of a long line, not of a narrow one. It holds for
// chunks that arrive at the proxy from now on.
func (p *Proxy) SetLatency(toServer, toClient time.Duration) {
	p.set(func(f *faults) { f.toServer, f.toClient = toServer, toClient })
}

// DropReplies swallows all that the server sends while on, and the connections
// stay open: requests are carried out and the client never hears of it. What
// was swallowed is lost, so that a connection which missed half of an exchange
// is good for Sever only.
func (p *Proxy) DropReplies(on bool) { p.set(func(f *faults) { f.dropReplies = on }) }

// Blackhole holds back all that is sent either way while on, the end of a
// stream included, as a half-open link does; when it goes off, all of that is
// delivered in order, also what clients sent that have given up since. New
// connections are accepted, since the kernel does that, and lead nowhere until
// then. What was being delivered at that moment may still arrive.
func (p *Proxy) Blackhole(on bool) { p.set(func(f *faults) { f.blackhole = on }) }

// Refuse closes new connections as soon as they were accepted while on, and the
// target does not hear of them. Those there are stay.
func (p *Proxy) Refuse(on bool) { p.set(func(f *faults) { f.refuse = on }) }

// Sever cuts all connections now, by a reset on both sides; what was held back
// is lost. New connections are accepted.
func (p *Proxy) Sever() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		p.strikes.Add(1)
		c.cut()
	}
	// They count as gone from now on, and not once their goroutines noticed.
	clear(p.conns)
}

// Connections is how many connections the proxy holds: accepted, not refused,
// and ended by neither side nor by Sever.
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
		// What had booked another line, or none, does not keep this one busy.
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
			// In order, so that the client's dial succeeds for certain and its
			// first exchange fails.
			c.end((*net.TCPConn).Close)
		}
	}
}

// admit takes a connection in unless connections are refused. One that was
// accepted while the proxy closes must not slip in behind the last Sever.
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

// proxied is one connection of a client and its counterpart to the server.
type proxied struct {
	proxy  *Proxy
	client *net.TCPConn

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
	// A link that swallows everything does not reach the server either.
	if !c.passable() || !c.dial() {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { c.pipe(c.client, c.server, true) })
	both.Go(func() { c.pipe(c.server, c.client, false) })
	both.Wait()
}

// dial connects to the target. It returns false when that is away, and the
// client sees a closed connection, or when the connection was cut meanwhile.
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

// cut ends both sides at once, by a reset.
func (c *proxied) cut() {
	c.end(func(conn *net.TCPConn) error { return errors.Join(conn.SetLinger(0), conn.Close()) })
}

// end closes both sides. A second call does nothing. After both streams have
// ended it must not be a reset: the kernel may still have to send the last of
// what was delivered.
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

// chunk is a piece of a stream on its way. The last one has no data and carries
// how the stream ended: io.EOF, or what reading failed with.
type chunk struct {
	data []byte
	due  time.Time
	end  error
}

// pipe passes one direction on until it ends. Reading and delivering are apart,
// so that a delay holds nothing up but the arrival.
func (c *proxied) pipe(from, to *net.TCPConn, toServer bool) {
	ahead := make(chan chunk, chunksAhead)
	var reader sync.WaitGroup
	reader.Go(func() { c.read(from, ahead, toServer) })
	c.deliver(ahead, to, toServer)
	reader.Wait()
}

// read takes a stream's chunks in, up to its end.
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

// hold puts a chunk on its way; false says that the connection was cut.
func (c *proxied) hold(ahead chan<- chunk, piece chunk) bool {
	select {
	case ahead <- piece:
		return true
	case <-c.done:
		return false
	}
}

// deliver hands the chunks over when they are due.
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

// wait waits until a time; false says that the connection was cut.
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

// passable waits while the link is a black hole; false says that the
// connection was cut.
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
