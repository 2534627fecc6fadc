//go:build chaos && unix

package chaos

import (
	"context"
	"fmt"
	"time"

	"flashsale/internal/testing/slowclient"
)

func init() {
	register(fault{
		ID: "F17", Name: "slow clients", APIs: 1, Lasts: 2*healthyFor + 3*time.Second,
		Strike: bringSlowClients, Expect: expectHealthy,
	})
}

const (
	slowHeaders  = 500
	trickledBody = 200
	// healthyFor is how long healthy purchases are measured, first without and then with the
	// slow clients. It exceeds the time for which the server tolerates a slow client.
	healthyFor = 6 * time.Second
	// slowdown is the limit for the ratio of the two 99th percentiles.
	slowdown = 2
)

// bringSlowClients measures the same load twice: first without other clients, and then with
// clients that never finish their requests.
func bringSlowClients(ctx context.Context, r *run) {
	alone := r.measure("alone")
	r.lasts(ctx, healthyFor)
	r.end(alone)

	addr := r.shop.apis[0].Spec().Addr
	c, err := r.caller()
	if err != nil {
		r.t.Fatal(err)
	}
	defer c.close()
	headers := slowclient.Headers(r.t, addr, slowHeaders)
	bodies := slowclient.Bodies(r.t, addr, trickledBody, "/v1/items/"+r.plan.Items[0].ID+"/orders", fmt.Sprintf(
		"Authorization: Bearer %s\r\nIdempotency-Key: slow\r\nContent-Type: application/json\r\n", c.token("slow", "buyer")))
	r.eventually(ctx, "all slow clients are there", func() bool {
		return headers.Open() == slowHeaders && bodies.Open() == trickledBody
	})
	r.struck(fmt.Sprintf("%d slow headers, %d trickled bodies", slowHeaders, trickledBody))
	beside := r.measure("beside slow clients")
	r.lasts(ctx, healthyFor)
	r.end(beside)
	// On a busy machine the server's limits take effect late.
	r.eventually(ctx, "the server ends slow clients of both kinds", func() bool {
		return headers.Ended() > 0 && bodies.Ended() > 0
	})
	headers.Stop()
	bodies.Stop()
	r.over()
	r.notef("the server ended %d slow headers and %d trickled bodies", headers.Ended(), bodies.Ended())
	r.recovered(ctx)
}

// expectHealthy compares the two spans.
func expectHealthy(ctx context.Context, r *run) {
	noDeadLetters(ctx, r)
	lost := r.metric(ctx, r.shop.apis[0], "flashsale_redis_breaker_refused_total") > 0
	for _, s := range r.spans {
		r.report(s)
		r.blame(s, lost && !options.times)
		if s.accepted == 0 {
			r.voidf("%s: nothing was accepted", s.name)
		}
	}
	if len(r.spans) < 2 {
		return
	}
	before, after := r.spans[0].quantile(0.99), r.spans[1].quantile(0.99)
	ratio := float64(after) / float64(max(before, 1))
	r.notef("p99 with slow clients / without = %.2f", ratio)
	if ratio >= slowdown && options.times {
		r.failf("p99 is %.2f times that without slow clients, the limit is %d", ratio, slowdown)
	}
}

// blame fails the run if a healthy purchase had no definite answer. It accepts 503 if the API
// process lost Redis during the run: on a busy machine calls to Redis may time out. The slow
// clients never reach Redis and are not the cause.
func (r *run) blame(s *span, redisLost bool) {
	if !redisLost {
		r.untroubled(s)
		return
	}
	r.notef("%s: the service lost Redis, so its 503 do not count", s.name)
	if n := len(s.took) - s.definite - s.refused; n > 0 {
		r.failf("%s: of %d purchases %d were neither answered for good nor refused: %d unanswered, others %v",
			s.name, len(s.took), n, s.unknown, s.others)
	}
}
