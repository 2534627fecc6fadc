package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// probeTimeout bounds one probe. A service that takes longer counts as down.
const probeTimeout = 2 * time.Second

// noAnswer names an outage that the probe saw.
const noAnswer = "the service did not answer"

var (
	// errDown means that a probe got no answer, or one with a server's error.
	errDown = errors.New("loadtest: the service did not answer the probe")
	// errRefused means that the service does not let us read a route.
	errRefused = errors.New("loadtest: the service refuses the probe")
)

// prober asks the service for its stock and its queue while the crowd buys. Its failures
// are shown in the report; they change neither the load nor the verdict.
type prober struct {
	api  *api // its own connection
	item string
	rec  *recorder

	noQueue bool      // the service refuses to state its queue
	down    time.Time // when the first of the failed probes began; zero: the last one was answered
}

// newProber makes a prober that calls the service at the same address as admin does.
func newProber(admin *api, item string, rec *recorder) *prober {
	a := &api{target: admin.target, auth: admin.auth, bound: probeTimeout}
	return &prober{api: a, item: item, rec: rec}
}

// start probes until the returned function is called, at most ten times a second.
func (p *prober) start(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer p.api.close()
		p.run(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

func (p *prober) run(ctx context.Context) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-pause.C:
		case <-ctx.Done():
			p.end(time.Now())
			return
		}
		began := time.Now()
		seen, err := p.probe(ctx)
		if ctx.Err() == nil {
			p.note(seen, err, began, time.Now())
		}
		pause.Reset(p.rec.pollPause())
	}
}

// note records the outcome of a probe.
func (p *prober) note(seen sighting, err error, began, ended time.Time) {
	if err != nil {
		p.rec.missed(ended)
		if p.down.IsZero() {
			p.down = began
		}
		return
	}
	p.end(ended)
	p.rec.saw(ended, seen)
}

// end records the outage that has ended, if there was one.
func (p *prober) end(at time.Time) {
	if !p.down.IsZero() {
		p.rec.down(noAnswer, p.down, at)
		p.down = time.Time{}
	}
}

// probe asks once. An error means that the service is down.
func (p *prober) probe(ctx context.Context) (s sighting, err error) {
	var item struct {
		Left *int64 `json:"stock_left"`
	}
	if _, err := p.get(ctx, "/v1/items/"+p.item, &item); err != nil && !errors.Is(err, errRefused) {
		return s, err
	}
	s.stock = item.Left
	if p.noQueue {
		return s, nil
	}
	var depths struct {
		Queues []struct {
			Name   string  `json:"name"`
			Orders int64   `json:"orders"`
			Oldest float64 `json:"oldest_age_ms"`
		} `json:"queues"`
	}
	stated, err := p.get(ctx, "/v1/admin/queue", &depths)
	if !stated || err != nil {
		if errors.Is(err, errRefused) {
			p.noQueue, err = true, nil
		}
		return s, err
	}
	s.queued = new(int64)
	for _, q := range depths.Queues {
		if strings.HasPrefix(q.Name, "orders") {
			*s.queued += q.Orders
			s.oldest = max(s.oldest, time.Duration(q.Oldest*float64(time.Millisecond)))
		}
	}
	return s, nil
}

// get reads a route into v. False: the service refuses the route, or its body is not
// understood.
func (p *prober) get(ctx context.Context, route string, v any) (bool, error) {
	res, err := p.api.call(ctx, "GET", route, nil)
	switch {
	case err != nil:
		return false, err
	case res.status >= 500:
		return false, fmt.Errorf("%w: %s: %d", errDown, res.what, res.status)
	case res.status == 408, res.status == 429:
		return false, nil // the next probe may get an answer
	case res.status != 200:
		return false, errRefused
	}
	return json.Unmarshal(res.body, v) == nil, nil
}
