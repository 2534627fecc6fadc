package main

import (
	"fmt"
	"io"

	"flashsale/bench/internal/stats"
	"flashsale/bench/internal/targets"
)

// leastRatio is the target of the service's throughput, relative to the fastest peer.
const leastRatio = 2.0

// print prints the table and the targets.
func (r *results) print(out io.Writer) {
	fmt.Fprintf(out, "%d connections, medians of %d rounds of %v; the empty handler answers %.0f/s; killed %d times during a sale\n\n",
		r.o.connections, r.o.rounds, r.o.phase, r.empty.median(rateOf), r.o.kills)
	fmt.Fprint(out, "| contender | answer | accepted/s | of an empty handler | p50 ms | p99 ms"+
		" | lost | oversold | duplicates | stranded | sells again after s | final after s |\n"+
		"|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, res := range r.all {
		c := res.contender
		name := fmt.Sprintf("`%s`: %s", c.name, c.approach)
		if res.skipped != nil {
			fmt.Fprintf(out, "| %s | %d | skipped: %v | | | | | | | | | |\n", name, c.answer, res.skipped)
			continue
		}
		k := res.kill
		fmt.Fprintf(out, "| %s | %d | %.0f | %.3f | %.1f | %.1f | %d | %d | %d | %d | %.1f | %.1f |\n", name, c.answer,
			res.median(rateOf), stats.Ratio(res.median(rateOf), r.empty.median(rateOf)),
			res.median(func(s speed) float64 { return s.p50 }), res.median(func(s speed) float64 { return s.p99 }),
			k.lost, k.oversold, k.duplicates, k.stranded, k.resumed.Seconds(), k.settled.Seconds())
	}
	fmt.Fprintln(out)
	r.targets(out)
}

// targets prints those that can be judged: the ratio needs another contender, and all need the
// service.
func (r *results) targets(out io.Writer) {
	own := r.fastest(func(res *result) bool { return res.contender.ours })
	if own == nil {
		return
	}
	peer := r.fastest(func(res *result) bool { return !res.contender.ours })
	safe := r.fastest(func(res *result) bool { return !res.contender.ours && res.kill.clean() })
	v := r.own()
	targets.None(out, "peers_lost", v.lost)
	targets.None(out, "peers_oversold", v.oversold)
	targets.None(out, "peers_duplicates", v.duplicates)
	targets.None(out, "peers_stranded", v.stranded)
	if safe != nil {
		fmt.Fprintf(out, "the fastest peer with a clean sale is %s: the service accepts %.2f times as many orders\n",
			safe.contender.name, own.median(rateOf)/safe.median(rateOf))
	}
	if peer != nil {
		fmt.Fprintf(out, "the fastest peer is %s (%s)\n", peer.contender.name, peer.kill.verdict)
		targets.AtLeast(out, "peers_accepted/best_peer", own.median(rateOf)/peer.median(rateOf), leastRatio)
	}
}

// fastest is the chosen contender with the highest rate of those that were measured; nil if
// there is none.
func (r *results) fastest(choose func(*result) bool) *result {
	var best *result
	for _, res := range r.all {
		if res.skipped == nil && choose(res) && (best == nil || res.median(rateOf) > best.median(rateOf)) {
			best = res
		}
	}
	return best
}

// own adds the verdicts of the service's contenders.
func (r *results) own() verdict {
	var sum verdict
	for _, res := range r.all {
		if res.contender.ours {
			k := res.kill.verdict
			sum.lost += k.lost
			sum.oversold += k.oversold
			sum.duplicates += k.duplicates
			sum.stranded += k.stranded
		}
	}
	return sum
}

// fault is the error of the service breaking a promise. A slow service and a peer's losses are
// results.
func (r *results) fault() error {
	if v := r.own(); !v.clean() {
		return fmt.Errorf("the killed service broke its promises: %s", v)
	}
	return nil
}
