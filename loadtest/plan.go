package main

import (
	"math"
	"math/rand/v2"
	"strconv"
	"time"
)

// plan is the whole load, fixed before the first request is sent. The same
// options and seed make the same plan, apart from the run's id in its names.
type plan struct {
	item      string
	stock     int64
	limit     int64
	quantity  int64 // units of each purchase
	buyers    []string
	purchases []purchase
	shots     []shot // in the order of their due times
}

// purchase is one intended purchase. Every request for it carries the same key.
type purchase struct {
	buyer int // index into plan.buyers
	key   string
}

// shot is one request.
type shot struct {
	purchase int           // index into plan.purchases
	due      time.Duration // after the start
}

// newPlan makes the plan of a run. Its names begin with the run's id, so that runs against
// the same service use different names.
func newPlan(o *options, runID string) *plan {
	p := &plan{
		item: "load-" + runID, stock: o.Stock, limit: o.Limit, quantity: o.Quantity,
		buyers: make([]string, o.Buyers),
	}
	for i := range p.buyers {
		p.buyers[i] = runID + "-buyer-" + strconv.Itoa(i)
	}
	rng := rand.New(rand.NewPCG(o.Seed, 0x666c617368))
	arrival := rng.Perm(o.Buyers)
	twice := pick(rng, o.Buyers, o.Duplicates)
	greedy := pick(rng, o.Buyers, o.Greedy)
	for _, buyer := range arrival {
		wishes := 1
		if greedy[buyer] {
			wishes = int(o.Limit/o.Quantity) + 1
		}
		for wish := range wishes {
			p.purchases = append(p.purchases, purchase{buyer, runID + "-" + strconv.Itoa(buyer) + "-" + strconv.Itoa(wish)})
			p.shots = append(p.shots, shot{purchase: len(p.purchases) - 1})
			if twice[buyer] {
				// Adjacent in the plan, so that both are in flight together.
				p.shots = append(p.shots, shot{purchase: len(p.purchases) - 1})
			}
		}
	}
	p.spread(o)
	return p
}

// spread gives each request its due time. A repeat is due with the original.
func (p *plan) spread(o *options) {
	n := len(p.shots)
	for i := range p.shots {
		if i > 0 && p.shots[i].purchase == p.shots[i-1].purchase {
			p.shots[i].due = p.shots[i-1].due
			continue
		}
		var seconds float64
		switch o.Profile {
		case profileSteady:
			seconds = float64(i) / o.Rate
		case profileRamp:
			// The rate rises as R*t/T, so i requests are due after R*t*t/2T; all n after T = 2n/R.
			seconds = 2 * float64(n) / o.Rate * math.Sqrt(float64(i)/float64(n))
		}
		p.shots[i].due = time.Duration(seconds * float64(time.Second))
	}
}

// pick marks a fraction of n, chosen at random but of an exact number.
func pick(rng *rand.Rand, n int, fraction float64) []bool {
	marked := make([]bool, n)
	for _, i := range rng.Perm(n)[:int(math.Round(fraction*float64(n)))] {
		marked[i] = true
	}
	return marked
}
