//go:build chaos && unix

package chaos

import (
	"context"
	"time"
)

func init() {
	register(fault{
		ID: "F14", Name: "scripts flushed", Small: true, Lasts: 5 * time.Second,
		Strike: flushScripts, Expect: expectNoError,
	})
}

const (
	// flushEvery is the pause between two flushes, and flushes their number.
	flushEvery = 100 * time.Millisecond
	flushes    = 40
)

// flushScripts repeatedly makes Redis forget all loaded scripts.
func flushScripts(ctx context.Context, r *run) {
	r.measure("scripts flushed") // until the end of the run: buyers must not notice
	before := r.redisInfo(ctx, "errorstats", "errorstat_NOSCRIPT")
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	for range flushes {
		if err := r.shop.rdb.ScriptFlush(ctx).Err(); err != nil {
			r.t.Fatalf("flush scripts: %v", err)
		}
		r.struck("scripts flushed")
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
	r.over()
	r.recovered(ctx)
	after := r.redisInfo(ctx, "errorstats", "errorstat_NOSCRIPT")
	r.notef("Redis did not know a script: %s before, %s after", before, after)
	if before == after {
		r.voidf("no process called a script that was flushed")
	}
}

// expectNoError fails the run if a buyer had to repeat a purchase.
func expectNoError(ctx context.Context, r *run) {
	noDeadLetters(ctx, r)
	for _, s := range r.spans {
		r.report(s)
		r.untroubled(s)
	}
}

// untroubled fails the run if a purchase of a span had no definite answer.
func (r *run) untroubled(s *span) {
	if n := len(s.took) - s.definite; n > 0 {
		r.failf("%s: of %d purchases %d were not answered for good: %d 503, %d unanswered, others %v",
			s.name, len(s.took), n, s.refused, s.unknown, s.others)
	}
}
