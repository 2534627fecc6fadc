package redistest

import (
	"math/rand/v2"
	"net"
	"time"
)

// narrowPiece is the most that one connection sends over a narrow line before
// the others get their turn.
const narrowPiece = 512

// line is what a proxy does to its connections beyond the plain faults: what
// makes a line slow in its own way, while all that is sent still arrives.
type line struct {
	jitterToServer, jitterToClient time.Duration
	bytesPerSecond                 int
	sliceSize                      int
	slicePause                     time.Duration
}

// SetJitter varies the latencies of SetLatency: each chunk is delivered by up
// to so much earlier or later, evenly spread, and never before it arrived. 0 is
// none. As chunks do not overtake each other, one that is late holds up those
// behind it. It holds for chunks that arrive at the proxy from now on.
func (p *Proxy) SetJitter(toServer, toClient time.Duration) {
	p.set(func(f *faults) { f.jitterToServer, f.jitterToClient = toServer, toClient })
}

// SetBandwidth makes the line so many bytes a second wide, for each direction
// by itself, and all connections share it; 0 is no bound. What waits for its
// turn is delivered at once when the bound goes. What a client had sent before
// it gave up takes its share all the same, as what a kernel has buffered does.
func (p *Proxy) SetBandwidth(bytesPerSecond int) {
	p.set(func(f *faults) { f.bytesPerSecond = bytesPerSecond })
}

// SetSlices delivers what is sent in pieces of at most so many bytes, with a
// pause after each, so that the reader sees them one by one and not as a whole;
// 0 is no slicing.
func (p *Proxy) SetSlices(size int, pause time.Duration) {
	p.set(func(f *faults) { f.sliceSize, f.slicePause = size, pause })
}

// CutReply lets n bytes of the next reply through, and then cuts its connection
// by a reset on both sides. The next reply is the next chunk that the server
// sends on any connection, and its last byte is never let through. The channel
// is closed when that has happened. Each call is for one reply.
func (p *Proxy) CutReply(n int) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	cut := replyCut{after: n, struck: make(chan struct{})}
	p.cuts = append(p.cuts, cut)
	return cut.struck
}

// Strikes is how often the proxy has disturbed anything: chunks delayed,
// narrowed, sliced, held back or swallowed, replies cut, connections severed or
// refused. A test asks it whether its fault has happened at all.
func (p *Proxy) Strikes() int64 { return p.strikes.Load() }

// replyCut is a reply that is to be cut short.
type replyCut struct {
	after  int
	struck chan struct{}
}

// nextCut takes the next cut that was asked for, if there is one.
func (p *Proxy) nextCut() (replyCut, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.cuts) == 0 {
		return replyCut{}, false
	}
	cut := p.cuts[0]
	p.cuts = p.cuts[1:]
	return cut, true
}

// delay is the latency of one chunk.
func (f faults) delay(toServer bool) time.Duration {
	latency, jitter := f.toClient, f.jitterToClient
	if toServer {
		latency, jitter = f.toServer, f.jitterToServer
	}
	if jitter > 0 {
		latency += rand.N(2*jitter+1) - jitter
	}
	return max(latency, 0)
}

// put delivers a chunk in whatever pieces the line lets through; false says that
// the connection has ended.
func (c *proxied) put(to *net.TCPConn, data []byte, toServer bool) bool {
	if !toServer {
		if cut, ok := c.proxy.nextCut(); ok {
			c.cutReply(to, data, cut)
			return false
		}
	}
	for len(data) > 0 {
		f, _ := c.proxy.now()
		n := len(data)
		if f.sliceSize > 0 {
			n = min(n, f.sliceSize)
		}
		if f.bytesPerSecond > 0 {
			n = min(n, narrowPiece)
		}
		if f.sliceSize > 0 || f.bytesPerSecond > 0 {
			c.proxy.strikes.Add(1)
		}
		if !c.narrow(n, toServer) || !c.write(to, data[:n]) {
			return false
		}
		data = data[n:]
		if f.sliceSize > 0 && len(data) > 0 && !c.wait(time.Now().Add(f.slicePause)) {
			return false
		}
	}
	return true
}

func (c *proxied) write(to *net.TCPConn, data []byte) bool {
	if _, err := to.Write(data); err != nil {
		c.cut()
		return false
	}
	return true
}

// cutReply delivers the beginning of a reply and cuts the connection.
func (c *proxied) cutReply(to *net.TCPConn, data []byte, cut replyCut) {
	defer close(cut.struck)
	defer c.proxy.strikes.Add(1)
	if n := min(cut.after, len(data)-1); n > 0 && !c.write(to, data[:n]) {
		return
	}
	c.cut()
}

// narrow waits until a narrow line has room for n bytes; false says that the
// connection was cut. A piece has crossed when its last byte has.
func (c *proxied) narrow(n int, toServer bool) bool {
	f, changed := c.proxy.now()
	if f.bytesPerSecond <= 0 {
		return true
	}
	limit := time.NewTimer(time.Until(c.proxy.turn(n, f.bytesPerSecond, toServer)))
	defer limit.Stop()
	for {
		select {
		case <-limit.C:
			return true
		case <-c.done:
			return false
		case <-changed:
			if f, changed = c.proxy.now(); f.bytesPerSecond <= 0 {
				return true
			}
		}
	}
}

// turn books the line for n bytes and returns when they have crossed it.
func (p *Proxy) turn(n, bytesPerSecond int, toServer bool) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	busy := &p.busyToClient
	if toServer {
		busy = &p.busyToServer
	}
	if now := time.Now(); busy.Before(now) {
		*busy = now
	}
	*busy = busy.Add(time.Duration(n) * time.Second / time.Duration(bytesPerSecond))
	return *busy
}
