package load

import (
	"bytes"
	"context"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"flashsale/internal/pause"
)

// Answer is one answer of an open loop. The times count from the start of the load. The latency
// of a request is Done - Due, because a delay of the load generator would otherwise hide a
// delay of the service.
type Answer struct {
	Status    int   // 0: no answer
	Err       error // of an exchange without an answer
	Due, Sent time.Duration
	Done      time.Duration
}

// Latency is the time from when the request was due to its answer.
func (a *Answer) Latency() time.Duration { return a.Done - a.Due }

// Late is how long after its time the request was sent.
func (a *Answer) Late() time.Duration { return a.Sent - a.Due }

// Offer sends one purchase at each of the times, which count from the start, whatever the
// answers: an open loop. If all connections are busy, a request waits, and its latency grows.
// Offer reports each answer to seen, from several goroutines. A connection that fails is not
// used any more. It returns the error of ctx.
func (c *Crowd) Offer(ctx context.Context, p Purchases, due []time.Duration, seen func(*Answer)) error {
	lines, err := dial(ctx, &p)
	if err != nil {
		return err
	}
	defer hangUp(lines)
	var next atomic.Int64
	var all sync.WaitGroup
	start := time.Now()
	for _, l := range lines {
		all.Go(func() {
			var req bytes.Buffer
			for {
				i := next.Add(1) - 1
				if i >= int64(len(due)) || pause.OrCause(ctx, due[i]-time.Since(start)) != nil {
					return
				}
				c.Request(&req, l.target, &p, p.First+i)
				a := Answer{Due: due[i], Sent: time.Since(start)}
				res, err := l.conn.Do(req.Bytes())
				a.Done, a.Err = time.Since(start), err
				if err == nil {
					a.Status = res.Status
				}
				seen(&a)
				if err != nil {
					return
				}
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}

// Even returns the times of requests at equal distances, from 0 to before d.
func Even(perSecond float64, d time.Duration) []time.Duration {
	due := make([]time.Duration, int(math.Ceil(perSecond*d.Seconds())))
	for i := range due {
		due[i] = time.Duration(float64(i) / perSecond * float64(time.Second))
	}
	return due
}

// Poisson returns the times of requests of independent buyers, before d: the distances are
// distributed exponentially. The same seed gives the same times.
func Poisson(perSecond float64, d time.Duration, seed uint64) []time.Duration {
	rng := rand.New(rand.NewPCG(seed, 0))
	due := make([]time.Duration, 0, int(perSecond*d.Seconds()*1.1)+16)
	for at := rng.ExpFloat64() / perSecond; at < d.Seconds(); at += rng.ExpFloat64() / perSecond {
		due = append(due, time.Duration(at*float64(time.Second)))
	}
	return due
}
