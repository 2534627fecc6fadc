package main

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"flashsale/handler/auth"
	"flashsale/internal/wire"
)

// buyers is how many distinct buyers there are; a phase that is faster than
// that many requests ends early.
const buyers = 400_000

// crowd holds the buyers' tokens in one piece of memory, so that the load
// generator's garbage collector has nothing to walk.
type crowd struct {
	text []byte
	ends []int
}

// newCrowd signs tokens for n buyers, which are valid for two hours.
func newCrowd(n int) (*crowd, error) {
	c := &crowd{text: make([]byte, 0, n*240), ends: make([]int, 1, n+1)}
	now := time.Now()
	for i := range n {
		token, err := auth.SignToken([]byte(secret), "buyer-"+strconv.Itoa(1_000_000+i), auth.RoleBuyer, 2*time.Hour, now)
		if err != nil {
			return nil, err
		}
		c.text = append(c.text, token...)
		c.ends = append(c.ends, len(c.text))
	}
	return c, nil
}

// size is the number of buyers.
func (c *crowd) size() int { return len(c.ends) - 1 }

func (c *crowd) token(i int) []byte { return c.text[c.ends[i]:c.ends[i+1]] }

// result is what one phase saw.
type result struct {
	codes  map[int]int
	shares []int // answers by address
	took   time.Duration
	first  error // the first failed exchange
}

func (r *result) rate(codes ...int) float64 {
	n := 0
	for _, c := range codes {
		n += r.codes[c]
	}
	return float64(n) / r.took.Seconds()
}

// drive sends purchases of item for the length of a phase, each by another buyer,
// over connections that are spread over the addresses, and counts the answers.
func drive(ctx context.Context, addrs []string, item string, c *crowd, o options, async bool) (*result, error) {
	targets := make([]wire.Target, len(addrs))
	for i, addr := range addrs {
		var err error
		if targets[i], err = wire.ParseTarget("http://" + addr); err != nil {
			return nil, err
		}
	}
	var conns []*wire.Conn
	defer func() {
		for _, c := range conns {
			_ = c.Close() //nolint:errcheck // every request on it has been answered
		}
	}()
	for i := range o.connections {
		conn, err := wire.Dial(ctx, targets[i%len(targets)])
		if err != nil {
			return nil, fmt.Errorf("dial %s: %w", addrs[i%len(addrs)], err)
		}
		conns = append(conns, conn)
	}
	var next atomic.Int64
	var stop atomic.Bool
	res := &result{codes: make(map[int]int), shares: make([]int, len(addrs))}
	var mu sync.Mutex
	var all sync.WaitGroup
	start := time.Now()
	timer := time.AfterFunc(o.phase, func() { stop.Store(true) })
	defer timer.Stop()
	for i, conn := range conns {
		all.Go(func() {
			codes, err := driveOne(ctx, conn, targets[i%len(targets)], item, c, &next, &stop, async)
			mu.Lock()
			defer mu.Unlock()
			for code, n := range codes {
				res.codes[code] += n
				res.shares[i%len(targets)] += n
			}
			if err != nil && res.first == nil {
				res.first = err
			}
		})
	}
	all.Wait()
	res.took = time.Since(start)
	return res, res.first
}

func driveOne(ctx context.Context, conn *wire.Conn, t wire.Target, item string, c *crowd, next *atomic.Int64, stop *atomic.Bool, async bool) (map[int]int, error) {
	codes := make(map[int]int)
	head := "POST /v1/items/" + item + "/orders HTTP/1.1\r\nHost: " + t.Host + "\r\nContent-Type: application/json\r\n"
	if async {
		head += "Prefer: respond-async\r\n"
	}
	head += "Content-Length: 14\r\nIdempotency-Key: key-"
	var req bytes.Buffer
	for !stop.Load() && ctx.Err() == nil {
		i := int(next.Add(1)) - 1
		if i >= buyers {
			return codes, nil
		}
		req.Reset()
		req.WriteString(head)
		req.Write(strconv.AppendInt(req.AvailableBuffer(), int64(i), 10))
		req.WriteString("\r\nAuthorization: Bearer ")
		req.Write(c.token(i))
		req.WriteString("\r\n\r\n{\"quantity\":1}")
		res, err := conn.Do(req.Bytes())
		if err != nil {
			return codes, err
		}
		codes[res.Status]++
	}
	return codes, nil
}
