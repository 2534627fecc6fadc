//go:build chaos && unix

package chaos

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"flashsale/internal/testing/process"
	"flashsale/internal/testing/slowclient"
)

func init() {
	register(fault{
		ID: "F16a", Name: "256 descriptors", Lasts: 8 * time.Second, ProxyAPI: true,
		Tune: func(spec *process.Spec) {
			if spec.Command == "api" {
				spec.Files = fewFiles
			}
		},
		Strike: takeDescriptors, Expect: expectRefusals,
	})
	register(fault{
		ID: "F16b", Name: "Redis pool of 4", Lasts: 8 * time.Second, ProxyAPI: true,
		Tune: func(spec *process.Spec) {
			for i, arg := range spec.Args {
				if strings.HasPrefix(arg, "redis://") {
					spec.Args[i] = arg + fmt.Sprintf("?pool_size=%d", fewConnections)
				}
			}
		},
		Strike: slowFewConnections, Expect: expectBounds,
	})
}

const (
	// fewFiles is the number of descriptors of an API process.
	fewFiles = 256
	// fewConnections is the size of a process's pool.
	fewConnections = 4
	// fewFor is how long either is scarce. It exceeds the time for which a server waits for the
	// rest of a request.
	fewFor = 6 * time.Second
	// severEvery is the pause between two cuts of all connections to Redis.
	severEvery = 500 * time.Millisecond
	// takers is the number of idle clients of each API process. It exceeds the process's
	// descriptors.
	takers = 300
)

// takeDescriptors has clients take every descriptor of the API processes, and again each one
// that becomes free. It also cuts the connections to Redis, so that the processes need
// descriptors themselves.
func takeDescriptors(ctx context.Context, r *run) {
	crowds := make([]*slowclient.Crowd, len(r.shop.apis))
	s := r.measure("no descriptors")
	for i, m := range r.shop.apis {
		crowds[i] = slowclient.Headers(r.t, m.Spec().Addr, takers)
	}
	for _, m := range r.shop.apis {
		// While it accepts, the process briefly keeps one or two free.
		r.eventually(ctx, "an API process has no descriptor left", func() bool { return openFiles(m.P) >= fewFiles-2 })
	}
	r.struck("descriptors taken")
	until := time.Now().Add(fewFor)
	for time.Now().Before(until) && ctx.Err() == nil {
		r.shop.toAPI.Sever()
		r.lasts(ctx, severEvery)
	}
	for _, c := range crowds {
		c.Stop()
	}
	r.end(s)
	r.over()
	r.recovered(ctx)
}

// openFiles is the number of files that a process has open, sockets included; 0 if it is
// unknown.
func openFiles(p *process.P) int {
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.Pid()))
	if err != nil {
		return 0
	}
	return len(list)
}

// slowFewConnections slows down each exchange with Redis until four concurrent ones are too few
// for the buyers.
func slowFewConnections(ctx context.Context, r *run) {
	s := r.measure("pool of 4, slow link")
	r.shop.toAPI.SetLatency(100*time.Millisecond, 100*time.Millisecond)
	r.struck("slow link to a pool of 4")
	until, most := time.Now().Add(fewFor), 0
	for time.Now().Before(until) && ctx.Err() == nil {
		most = max(most, r.shop.toAPI.Connections())
		r.lasts(ctx, lookEvery)
	}
	r.shop.toAPI.SetLatency(0, 0)
	r.end(s)
	r.over()
	r.notef("at most %d connections of %d API processes", most, len(r.shop.apis))
	r.recovered(ctx)
}

// expectBounds checks the answers to buyers while a resource was scarce: an order, a refusal,
// or 503 with a Retry-After, all in bounded time.
func expectBounds(ctx context.Context, r *run) {
	noDeadLetters(ctx, r)
	for _, s := range r.spans {
		r.report(s)
		r.politely(s)
		for status, n := range s.others {
			r.failf("%s: %d answers %d", s.name, n, status)
		}
		if s.unknown > 0 {
			r.failf("%s: %d purchases were not answered", s.name, s.unknown)
		}
		if longest := s.quantile(1); longest > answersWithin {
			r.failf("%s: an answer took %v", s.name, longest)
		}
	}
}
