//go:build chaos && unix

package chaos

import (
	"context"
	"maps"
	"slices"
	"time"

	"flashsale/internal/testing/redistest"
)

func init() {
	var spans []*span
	register(fault{
		ID: "F11", Name: "Redis link disturbed", Small: true, ProxyAPI: true, ProxyWorker: true,
		Lasts:  20 * time.Second,
		Strike: func(ctx context.Context, r *run) { spans = disturbLinks(ctx, r) },
		Expect: func(ctx context.Context, r *run) { expectBounded(ctx, r, spans) },
	})
}

const (
	// linkLasts exceeds the service's timeout for one reply of Redis, so that every timeout is
	// reached.
	linkLasts = 2 * time.Second
	// answersWithin bounds an answer, whatever Redis does. It exceeds the sum of all waits
	// inside the service, and is far below a client's timeout.
	answersWithin = 10 * time.Second
	// cutEvery is the pause between two replies that are cut.
	cutEvery = 25 * time.Millisecond
)

// disturbance is one kind of link fault.
type disturbance struct {
	begin, end func(p *redistest.Proxy)
	// during is called repeatedly while the fault lasts; it may be nil.
	during func(r *run, p *redistest.Proxy)
	// passes means that purchases can succeed during the fault.
	passes bool
}

var disturbances = map[string]disturbance{
	"cut": {
		begin: func(p *redistest.Proxy) { p.Refuse(true); p.Sever() },
		end:   func(p *redistest.Proxy) { p.Refuse(false) },
	},
	// At its end all held requests arrive, including those whose clients have given up.
	"half-open": {
		begin: func(p *redistest.Proxy) { p.Blackhole(true) },
		end:   func(p *redistest.Proxy) { p.Blackhole(false) },
	},
	"slow": {
		begin: func(p *redistest.Proxy) {
			p.SetJitter(100*time.Millisecond, 100*time.Millisecond)
			p.SetLatency(150*time.Millisecond, 150*time.Millisecond)
		},
		end: func(p *redistest.Proxy) { p.SetLatency(0, 0); p.SetJitter(0, 0) },
		// 300±200 ms in both directions, below every timeout.
		passes: true,
	},
	"narrow": {
		begin: func(p *redistest.Proxy) { p.SetBandwidth(16 << 10) },
		end:   func(p *redistest.Proxy) { p.SetBandwidth(0) },
	},
	"sliced": {
		begin:  func(p *redistest.Proxy) { p.SetSlices(100, 50*time.Microsecond) },
		end:    func(p *redistest.Proxy) { p.SetSlices(0, 0) },
		passes: true,
	},
	"reset": {
		begin: func(*redistest.Proxy) {},
		during: func(r *run, p *redistest.Proxy) {
			p.CutReply(r.plan.Numbers[p.Strikes()%int64(len(r.plan.Numbers))] % 64)
		},
		end:    func(*redistest.Proxy) {},
		passes: true,
	},
}

// disturbLinks disturbs the links of all processes to Redis in one way after another, in an
// order drawn from the seed, and lets the sale recover after each.
func disturbLinks(ctx context.Context, r *run) []*span {
	kinds := slices.Sorted(maps.Keys(disturbances))
	r.plan.shuffle(kinds)
	links := []*redistest.Proxy{r.shop.toAPI, r.shop.toWorker}
	spans := make([]*span, 0, len(kinds))
	for _, name := range kinds {
		d, before := disturbances[name], links[0].Strikes()+links[1].Strikes()
		s := r.measure(name)
		spans = append(spans, s)
		for _, p := range links {
			d.begin(p)
		}
		r.struck("link " + name)
		r.disturb(ctx, d, links)
		for _, p := range links {
			d.end(p)
		}
		r.end(s)
		r.over()
		if links[0].Strikes()+links[1].Strikes() == before {
			r.voidf("the link was never seen to be %s", name)
		}
		r.recovered(ctx)
	}
	return spans
}

// disturb applies a disturbance for its time.
func (r *run) disturb(ctx context.Context, d disturbance, links []*redistest.Proxy) {
	if d.during == nil {
		r.lasts(ctx, linkLasts)
		return
	}
	limit := time.NewTimer(linkLasts)
	defer limit.Stop()
	tick := time.NewTicker(cutEvery)
	defer tick.Stop()
	for n := 0; ; n++ {
		d.during(r, links[n%len(links)])
		select {
		case <-tick.C:
		case <-limit.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// expectBounded checks the answers to buyers while a link was disturbed.
func expectBounded(ctx context.Context, r *run, spans []*span) {
	noDeadLetters(ctx, r)
	unknown := 0
	for _, s := range spans {
		r.report(s)
		r.politely(s)
		unknown += s.unknown + s.refused
		if longest := s.quantile(1); longest > answersWithin {
			r.failf("%s: an answer took %v", s.name, longest)
		}
		if disturbances[s.name].passes && s.accepted == 0 {
			r.voidf("%s: nothing was accepted, although purchases can be made then", s.name)
		}
	}
	if unknown == 0 {
		r.voidf("no purchase had an unknown outcome")
	}
}
