package inventory

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/redistest"
)

// proxy is between a client and Redis and loses what a test asks it to lose.
type proxy struct {
	listener net.Listener
	target   string
	// cut gets each piece that a client sends and returns where to cut its connection.
	cut func(piece []byte) cutAt

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	cuts  int
	wg    sync.WaitGroup
}

// cutAt says when a connection ends.
type cutAt int

const (
	cutNever  cutAt = iota
	cutBefore       // before the request reaches Redis
	cutAfter        // after Redis answered, before the client receives it
)

func newProxy(t testing.TB, target string, cut func([]byte) cutAt) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, target: target, cut: cut, conns: map[net.Conn]struct{}{}}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		p.cutAll()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) client(t testing.TB) *redis.Client {
	t.Helper()
	rdb := redis.NewClient(redistest.Options(p.listener.Addr().String()))
	t.Cleanup(func() {
		if err := rdb.Close(); err != nil {
			t.Error(err)
		}
	})
	return rdb
}

func (p *proxy) accept() {
	for {
		down, err := p.listener.Accept()
		if err != nil {
			return
		}
		up, err := net.Dial("tcp", p.target)
		if err != nil {
			p.end(down)
			continue
		}
		p.mu.Lock()
		p.conns[down], p.conns[up] = struct{}{}, struct{}{}
		p.mu.Unlock()
		p.wg.Go(func() { p.serve(down, up) })
	}
}

// serve forwards one connection. Replies pass through a gate, so that a cut
// connection's last reply is awaited and then lost.
func (p *proxy) serve(down, up net.Conn) {
	var mu sync.Mutex
	lose := false
	replied := make(chan struct{}, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer p.end(down)
		buf := make([]byte, 64<<10)
		for {
			n, err := up.Read(buf)
			if err != nil {
				return
			}
			mu.Lock()
			lost := lose
			mu.Unlock()
			if lost {
				replied <- struct{}{}
				return
			}
			if _, err := down.Write(buf[:n]); err != nil {
				return
			}
		}
	})
	p.requests(down, up, func() {
		mu.Lock()
		lose = true
		mu.Unlock()
	}, replied)
	p.end(down)
	p.end(up)
	wg.Wait()
}

func (p *proxy) requests(down, up net.Conn, lose func(), replied <-chan struct{}) {
	buf := make([]byte, 1<<20)
	for {
		n, err := down.Read(buf)
		if err != nil {
			return
		}
		at := p.cut(buf[:n])
		if at != cutNever {
			p.mu.Lock()
			p.cuts++
			p.mu.Unlock()
		}
		switch at {
		case cutBefore:
			return
		case cutAfter:
			lose()
			if _, err := up.Write(buf[:n]); err != nil {
				return
			}
			<-replied
			return
		case cutNever:
			if _, err := up.Write(buf[:n]); err != nil {
				return
			}
		}
	}
}

func (p *proxy) end(c net.Conn) {
	p.mu.Lock()
	delete(p.conns, c)
	p.mu.Unlock()
	// Both directions of a connection close it; the second one gets an error.
	if err := c.Close(); err != nil && !errors.Is(err, net.ErrClosed) && !errors.Is(err, io.EOF) {
		panic(err)
	}
}

func (p *proxy) cutAll() {
	p.mu.Lock()
	var all []net.Conn
	for c := range p.conns {
		all = append(all, c)
	}
	p.mu.Unlock()
	for _, c := range all {
		p.end(c)
	}
}

func (p *proxy) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cuts
}

// purchases makes a cut function that applies how to the first n runs of the purchase script.
func purchases(n int, how func(run int) cutAt) func([]byte) cutAt {
	return runsOf(purchaseScript, n, how)
}

// runsOf is purchases for any script.
func runsOf(script *redis.Script, n int, how func(run int) cutAt) func([]byte) cutAt {
	var mu sync.Mutex
	run := 0
	return func(piece []byte) cutAt {
		if !bytes.Contains(piece, []byte(script.Hash())) {
			return cutNever
		}
		mu.Lock()
		defer mu.Unlock()
		run++
		if run > n {
			return cutNever
		}
		return how(run)
	}
}
