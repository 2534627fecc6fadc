// Package load generates the purchases of a benchmark: many buyers over keep-alive
// connections, in a closed loop or at fixed times.
package load

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"flashsale/handler/auth"
	"flashsale/internal/wire"
)

// Secret is the key that signs the tokens. The service gets it as FLASHSALE_JWT_SECRET.
const Secret = "benchmark-secret-of-more-than-32-bytes"

// Buyers is how many distinct buyers there are; a phase that is faster than
// that many requests ends early.
const Buyers = 400_000

// Crowd holds the buyers' tokens in one block of memory, so that the load generator's garbage
// collector has no pointers to follow.
type Crowd struct {
	text []byte
	ends []int
}

// NewCrowd signs tokens for n buyers, which are valid for two hours.
func NewCrowd(n int) (*Crowd, error) {
	c := &Crowd{text: make([]byte, 0, n*240), ends: make([]int, 1, n+1)}
	now := time.Now()
	for i := range n {
		token, err := auth.SignToken([]byte(Secret), "buyer-"+strconv.Itoa(1_000_000+i), auth.RoleBuyer, 2*time.Hour, now)
		if err != nil {
			return nil, err
		}
		c.text = append(c.text, token...)
		c.ends = append(c.ends, len(c.text))
	}
	return c, nil
}

// size is the number of buyers.
func (c *Crowd) size() int { return len(c.ends) - 1 }

// Token is the token of buyer i.
func (c *Crowd) Token(i int) []byte { return c.text[c.ends[i]:c.ends[i+1]] }

// Result has the answers of one phase.
type Result struct {
	Codes  map[int]int
	Shares []int // answers by address
	took   time.Duration
	first  error // the first failed exchange
}

// Rate is the number of answers with these codes per second.
func (r *Result) Rate(codes ...int) float64 {
	n := 0
	for _, c := range codes {
		n += r.Codes[c]
	}
	return float64(n) / r.took.Seconds()
}

// Drive sends purchases of item for the length of a phase, each by another buyer of the crowd,
// over connections that are spread over the addresses, and counts the answers.
func Drive(ctx context.Context, addrs []string, item string, c *Crowd, connections int, phase time.Duration, async bool) (*Result, error) {
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
	for i := range connections {
		conn, err := wire.Dial(ctx, targets[i%len(targets)])
		if err != nil {
			return nil, fmt.Errorf("dial %s: %w", addrs[i%len(addrs)], err)
		}
		conns = append(conns, conn)
	}
	var next atomic.Int64
	var stop atomic.Bool
	res := &Result{Codes: make(map[int]int), Shares: make([]int, len(addrs))}
	var mu sync.Mutex
	var all sync.WaitGroup
	start := time.Now()
	timer := time.AfterFunc(phase, func() { stop.Store(true) })
	defer timer.Stop()
	for i, conn := range conns {
		all.Go(func() {
			codes, err := driveOne(ctx, conn, targets[i%len(targets)], item, c, &next, &stop, async)
			mu.Lock()
			defer mu.Unlock()
			for code, n := range codes {
				res.Codes[code] += n
				res.Shares[i%len(targets)] += n
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

func driveOne(ctx context.Context, conn *wire.Conn, t wire.Target, item string, c *Crowd, next *atomic.Int64, stop *atomic.Bool, async bool) (map[int]int, error) {
	codes := make(map[int]int)
	head := "POST /v1/items/" + item + "/orders HTTP/1.1\r\nHost: " + t.Host + "\r\nContent-Type: application/json\r\n"
	if async {
		head += "Prefer: respond-async\r\n"
	}
	head += "Content-Length: 14\r\nIdempotency-Key: key-"
	var req bytes.Buffer
	for !stop.Load() && ctx.Err() == nil {
		i := int(next.Add(1)) - 1
		if i >= c.size() {
			return codes, nil
		}
		req.Reset()
		req.WriteString(head)
		req.Write(strconv.AppendInt(req.AvailableBuffer(), int64(i), 10))
		req.WriteString("\r\nAuthorization: Bearer ")
		req.Write(c.Token(i))
		req.WriteString("\r\n\r\n{\"quantity\":1}")
		res, err := conn.Do(req.Bytes())
		if err != nil {
			return codes, err
		}
		codes[res.Status]++
	}
	return codes, nil
}

// Purchases is a load of purchases. The keys are the numbers from First, and the buyers are
// those of the crowd in turn, so a sale needs a per_user_limit that lets a buyer buy again.
type Purchases struct {
	Addr        string
	Also        []string // further addresses; the connections are spread over all of them
	Items       []string // bought in turn
	Run         int64    // purchases in a row of the same item; 0: one
	Connections int
	Async       bool  // Prefer: respond-async, which is answered 202
	First       int64 // number of the first purchase
}

// Bought has the answers to a load. Its size does not depend on their number.
type Bought struct {
	Codes   map[int]int
	Took    time.Duration
	Latency *hdrhistogram.Histogram // microseconds, of all answers
	Next    int64                   // number for the next load's first purchase
}

// Rate is the number of answers with these codes per second.
func (b *Bought) Rate(codes ...int) float64 {
	n := 0
	for _, c := range codes {
		n += b.Codes[c]
	}
	return float64(n) / b.Took.Seconds()
}

// Quantile is the latency, in milliseconds, that so many percent of the answers did not
// exceed.
func (b *Bought) Quantile(percent float64) float64 {
	return float64(b.Latency.ValueAtQuantile(percent)) / 1000
}

// NewBought records microseconds up to ten minutes with two significant digits.
func NewBought() *Bought {
	return &Bought{Codes: make(map[int]int), Latency: hdrhistogram.New(1, 600_000_000, 2)}
}

// Add counts one answer.
func (b *Bought) Add(status int, took time.Duration) {
	b.Codes[status]++
	_ = b.Latency.RecordValue(took.Microseconds()) //nolint:errcheck // no answer takes longer than the histogram's range
}

// Tally counts answers as they come. Use NewTally.
type Tally struct {
	mu    sync.Mutex
	b     *Bought
	began time.Time
}

// NewTally returns a Tally that begins to count now.
func NewTally() *Tally { return &Tally{b: NewBought(), began: time.Now()} }

// Add counts one answer.
func (t *Tally) Add(status int, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b.Add(status, took)
}

// Take returns what was counted since the last take.
func (t *Tally) Take() *Bought {
	t.mu.Lock()
	defer t.mu.Unlock()
	b, now := t.b, time.Now()
	b.Took = now.Sub(t.began)
	t.b, t.began = NewBought(), now
	return b
}

// Request writes purchase number i, with the idempotency key that Key names.
func (c *Crowd) Request(req *bytes.Buffer, t wire.Target, p *Purchases, i int64) {
	req.Reset()
	req.WriteString("POST /v1/items/")
	req.WriteString(p.Items[i/max(1, p.Run)%int64(len(p.Items))])
	req.WriteString("/orders HTTP/1.1\r\nHost: ")
	req.WriteString(t.Host)
	req.WriteString("\r\nContent-Type: application/json\r\n")
	if p.Async {
		req.WriteString("Prefer: respond-async\r\n")
	}
	req.WriteString("Content-Length: 14\r\nIdempotency-Key: ")
	req.WriteString(keyPrefix)
	req.Write(strconv.AppendInt(req.AvailableBuffer(), i, 10))
	req.WriteString("\r\nAuthorization: Bearer ")
	req.Write(c.Token(int(i % int64(c.size()))))
	req.WriteString("\r\n\r\n{\"quantity\":1}")
}

const keyPrefix = "key-"

// Key is the idempotency key of purchase number i.
func Key(i int64) string { return keyPrefix + strconv.FormatInt(i, 10) }

// Merge adds the answers of another load, as if both had been one load.
func (b *Bought) Merge(other *Bought) {
	for code, n := range other.Codes {
		b.Codes[code] += n
	}
	b.Took += other.Took
	b.Latency.Merge(other.Latency)
	b.Next = max(b.Next, other.Next)
}
