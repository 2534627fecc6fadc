package redistest

import (
	"bytes"
	"math/rand/v2"
	"net"
	"slices"
	"time"
)

// narrowPiece is the maximum that one connection sends over a bandwidth-limited line before the
// others get their turn.
const narrowPiece = 512

// line is the set of faults that slow a line down without losing data.
type line struct {
	jitterToServer, jitterToClient time.Duration
	bytesPerSecond                 int
	sliceSize                      int
	slicePause                     time.Duration
}

// SetJitter varies the latencies of SetLatency: each chunk is delivered up to that much earlier
// or later, evenly distributed, but never before it arrived. 0 disables it. Because chunks do
// not overtake each other, a late one delays those behind it. The setting applies to chunks
// that arrive at the proxy from now on.
func (p *Proxy) SetJitter(toServer, toClient time.Duration) {
	p.set(func(f *faults) { f.jitterToServer, f.jitterToClient = toServer, toClient })
}

// SetBandwidth limits the bytes per second in each direction; all connections share them. 0 is
// no limit. Waiting data is delivered immediately when the limit is removed. Data that a client
// sent before it gave up still uses bandwidth, like data in a kernel buffer.
func (p *Proxy) SetBandwidth(bytesPerSecond int) {
	p.set(func(f *faults) { f.bytesPerSecond = bytesPerSecond })
}

// SetSlices delivers data in pieces of at most size bytes, with a pause after each, so that the
// reader gets them one by one; 0 disables slicing.
func (p *Proxy) SetSlices(size int, pause time.Duration) {
	p.set(func(f *faults) { f.sliceSize, f.slicePause = size, pause })
}

// CutReply delivers n bytes of the next reply and then resets its connection on both sides. The
// next reply is the next chunk that the server sends on any connection; its last byte is never
// delivered. The channel is closed when that has happened. Each call applies to one reply.
func (p *Proxy) CutReply(n int) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	cut := replyCut{after: n, struck: make(chan struct{})}
	p.cuts = append(p.cuts, cut)
	return cut.struck
}

// CutReplyTo resets a connection on both sides when the server replies to the next request that
// contains text, before any of the reply is delivered: the server has executed the request, and
// the client does not learn it. The text must be of a single call, because a request is looked
// at in the pieces in which it arrives. The channel is closed when that has happened. Each call
// applies to one request.
func (p *Proxy) CutReplyTo(text string) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	cut := replyCut{to: []byte(text), struck: make(chan struct{})}
	p.cuts = append(p.cuts, cut)
	return cut.struck
}

// Strikes is the number of faults applied so far: chunks delayed, slowed, sliced, held back or
// discarded, replies cut, connections severed or refused. Tests check with it that their fault
// took effect.
func (p *Proxy) Strikes() int64 { return p.strikes.Load() }

// replyCut is a pending CutReply or CutReplyTo.
type replyCut struct {
	to     []byte // text of the request; nil: any reply
	after  int
	struck chan struct{}
}

// nextCut removes and returns the next pending cut of any reply, or of the reply to a request.
func (p *Proxy) nextCut(request []byte) (replyCut, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.cuts, func(cut replyCut) bool {
		if request == nil {
			return cut.to == nil
		}
		return cut.to != nil && bytes.Contains(request, cut.to)
	})
	if i < 0 {
		return replyCut{}, false
	}
	cut := p.cuts[i]
	p.cuts = slices.Delete(p.cuts, i, i+1)
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

// put delivers a chunk in the pieces that the line allows. It returns false if the connection
// has ended.
func (c *proxied) put(to *net.TCPConn, data []byte, toServer bool) bool {
	if toServer {
		if cut, ok := c.proxy.nextCut(data); ok {
			c.cutNext.Store(&cut)
		}
	} else if cut := c.cutNext.Load(); cut != nil {
		c.cutReply(to, data, *cut)
		return false
	} else if cut, ok := c.proxy.nextCut(nil); ok {
		c.cutReply(to, data, cut)
		return false
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

// narrow waits until n bytes have crossed a bandwidth-limited line. It returns false if the
// connection was cut.
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

// turn reserves the line for n bytes and returns the time at which they have crossed it.
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
