package main

import (
	"context"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

const (
	// lobbyConnections is the largest number of connections that the readers share.
	lobbyConnections = 64
	// readTimeout bounds one read.
	readTimeout = 5 * time.Second
	// connectLead is how long before the opening the buyers' connections are opened: long
	// enough to open them, and shorter than staleAfter.
	connectLead = 2 * time.Second
	// setUp is the time between the creation of an item and the start of its lobby.
	setUp = time.Second
)

// readResult is what the readers received.
type readResult struct {
	Requests int64     `json:"requests"`
	Failures int64     `json:"failures"` // no answer, or not 200
	Latency  quantiles `json:"latency"`  // from due
}

// lobby is a crowd of readers who reload the item's page until the sale opens. Their
// requests are open loop too, and count neither as purchases nor for the verdict.
type lobby struct {
	wg sync.WaitGroup

	mu       sync.Mutex
	latency  *hdrhistogram.Histogram
	failures int64
}

// openLobby starts the readers.
func (d *driver) openLobby(ctx context.Context) *lobby {
	l := &lobby{latency: newHistogram()}
	reads := make([]shot, len(d.plan.reads))
	for i, due := range d.plan.reads {
		reads[i].due = due
	}
	sched := newSchedule(d.sched.start, reads)
	d.live.enter("readers wait for the opening")
	for i := range min(lobbyConnections, len(reads)) {
		a := &api{target: d.targets[i%len(d.targets)], bound: min(readTimeout, d.timeout)}
		l.wg.Go(func() {
			defer a.close()
			for {
				t, ok := sched.take(ctx)
				if !ok {
					return
				}
				res, err := a.call(ctx, "GET", "/v1/items/"+d.plan.item, nil)
				if ctx.Err() != nil {
					return
				}
				end := time.Now()
				l.count(end.Sub(sched.start)-t.due, err == nil && res.status == 200)
				d.rec.read(end, err == nil && res.status == 200)
				sched.settle()
			}
		})
	}
	return l
}

func (l *lobby) count(latency time.Duration, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	record(l.latency, latency)
	if !ok {
		l.failures++
	}
}

// leave waits for the last reader and returns what all received. It may be called again.
func (l *lobby) leave() readResult {
	l.wg.Wait()
	if l.latency == nil {
		return readResult{} // there was no lobby
	}
	return readResult{l.latency.TotalCount(), l.failures, quantilesOf(l.latency)}
}

// untilConnect waits until the buyers' connections are to be opened.
func untilConnect(ctx context.Context, opens time.Time) error {
	wait := time.NewTimer(time.Until(opens) - connectLead)
	defer wait.Stop()
	select {
	case <-wait.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
