package main

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"flashsale/internal/wire"
)

// purchases is a closed-loop load of purchases. The keys are the numbers from first,
// and the buyers are those of the crowd in turn, so a sale needs a per_user_limit
// that lets a buyer buy again.
type purchases struct {
	addr        string
	items       []string // bought in turn
	run         int64    // purchases in a row of the same item; 0: one
	connections int
	async       bool  // Prefer: respond-async, which is answered 202
	first       int64 // number of the first purchase
}

// bought is what a load saw. Its size does not depend on the number of answers.
type bought struct {
	codes   map[int]int
	took    time.Duration
	latency *hdrhistogram.Histogram // microseconds, of all answers
	next    int64                   // number for the next load's first purchase
}

// rate is how many answers with these codes came in a second.
func (b *bought) rate(codes ...int) float64 {
	n := 0
	for _, c := range codes {
		n += b.codes[c]
	}
	return float64(n) / b.took.Seconds()
}

// quantile is the latency, in milliseconds, below which so many percent of the answers were.
func (b *bought) quantile(percent float64) float64 {
	return float64(b.latency.ValueAtQuantile(percent)) / 1000
}

// newBought records microseconds up to ten minutes with two significant digits.
func newBought() *bought {
	return &bought{codes: make(map[int]int), latency: hdrhistogram.New(1, 600_000_000, 2)}
}

// tally counts answers as they come. The zero value is not ready: see newTally.
type tally struct {
	mu    sync.Mutex
	b     *bought
	began time.Time
}

func newTally() *tally { return &tally{b: newBought(), began: time.Now()} }

func (t *tally) add(status int, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b.codes[status]++
	_ = t.b.latency.RecordValue(took.Microseconds()) //nolint:errcheck // no answer takes longer than the histogram's range
}

// take returns what was counted since the last take.
func (t *tally) take() *bought {
	t.mu.Lock()
	defer t.mu.Unlock()
	b, now := t.b, time.Now()
	b.took = now.Sub(t.began)
	t.b, t.began = newBought(), now
	return b
}

// buy sends purchases for a time and returns what was answered. The first exchange
// that fails ends it.
func (c *crowd) buy(ctx context.Context, p purchases, d time.Duration) (*bought, error) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	t := newTally()
	next, err := c.send(ctx, p, t.add)
	b := t.take()
	b.next = next
	return b, err
}

// send sends purchases until ctx ends, and reports each answer to seen, from several
// goroutines. It returns the number of the next purchase.
func (c *crowd) send(ctx context.Context, p purchases, seen func(status int, took time.Duration)) (int64, error) {
	target, err := wire.ParseTarget("http://" + p.addr)
	if err != nil {
		return p.first, err
	}
	var next atomic.Int64
	next.Store(p.first)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	var failed error
	var once sync.Once
	fail := func(err error) {
		once.Do(func() { failed = err })
		cancel(err)
	}
	for range p.connections {
		// Not bound to ctx: a request that was sent is waited for.
		conn, err := wire.Dial(context.WithoutCancel(ctx), target)
		if err != nil {
			fail(fmt.Errorf("dial %s: %w", p.addr, err))
			break
		}
		all.Go(func() {
			defer conn.Close() //nolint:errcheck // every request on it has been answered
			var req bytes.Buffer
			for { // at least once, however long dialling took
				i := next.Add(1) - 1
				c.request(&req, target, &p, i)
				began := time.Now()
				res, err := conn.Do(req.Bytes())
				if err != nil {
					fail(fmt.Errorf("purchase %d: %w", i, err))
					return
				}
				seen(res.Status, time.Since(began))
				if ctx.Err() != nil {
					return
				}
			}
		})
	}
	all.Wait()
	return next.Load(), failed
}

// request writes purchase number i.
func (c *crowd) request(req *bytes.Buffer, t wire.Target, p *purchases, i int64) {
	req.Reset()
	req.WriteString("POST /v1/items/")
	req.WriteString(p.items[i/max(1, p.run)%int64(len(p.items))])
	req.WriteString("/orders HTTP/1.1\r\nHost: ")
	req.WriteString(t.Host)
	req.WriteString("\r\nContent-Type: application/json\r\n")
	if p.async {
		req.WriteString("Prefer: respond-async\r\n")
	}
	req.WriteString("Content-Length: 14\r\nIdempotency-Key: key-")
	req.Write(strconv.AppendInt(req.AvailableBuffer(), i, 10))
	req.WriteString("\r\nAuthorization: Bearer ")
	req.Write(c.token(int(i % int64(c.size()))))
	req.WriteString("\r\n\r\n{\"quantity\":1}")
}

// merge adds what another load saw to this one, as if they had been one load.
func (b *bought) merge(other *bought) {
	for code, n := range other.codes {
		b.codes[code] += n
	}
	b.took += other.took
	b.latency.Merge(other.latency)
	b.next = max(b.next, other.next)
}
