package main

import (
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"strconv"
	"time"
)

// The price of the item.
const (
	priceMinor = 990
	currency   = "EUR"
)

// plan is the whole load, fixed before the first request is sent. The same
// options and seed make the same plan, apart from the run's id in its names.
type plan struct {
	item      string
	stock     int64
	buckets   int
	limit     int64
	quantity  int64 // units of each purchase
	buyers    []string
	purchases []purchase
	shots     []shot // in the order of their due times
	// opening is when the sale opens, after the start of the run; 0: before the start.
	opening time.Duration
	// reads are when the readers of the lobby ask for the item, after the start.
	reads []time.Duration
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
		item: "load-" + runID, stock: o.Stock, buckets: o.Buckets, limit: o.Limit, quantity: o.Quantity,
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
	if o.Profile == profileFlash {
		p.flash(o)
	}
	return p
}

// reaction is how long after the opening the burst arrives. No buyer is faster, and a
// request that is early, because two clocks differ by a few milliseconds, is refused.
const reaction = 20 * time.Millisecond

// flash adds a lobby of readers before the opening, and makes the last buyers late.
func (p *plan) flash(o *options) {
	p.opening = o.Lobby
	late := len(p.purchases) - int(math.Round(o.Stragglers*float64(len(p.purchases))))
	first := sort.Search(len(p.shots), func(i int) bool { return p.shots[i].purchase >= late })
	for i := range p.shots {
		p.shots[i].due = p.opening + reaction
		if i >= first {
			// The rate falls evenly to nothing, so a fraction u has come after T*(1-sqrt(1-u)).
			u := float64(p.shots[i].purchase-late+1) / float64(len(p.purchases)-late)
			p.shots[i].due += time.Duration((1 - math.Sqrt(1-u)) * float64(o.Tail))
		}
	}
	rng := rand.New(rand.NewPCG(o.Seed, 0x6c6f626279))
	for range o.Readers {
		// Each reader comes at some time within the first period and then polls with jitter.
		at := time.Duration(rng.Float64() * float64(o.ReadEvery))
		for at < o.Lobby {
			p.reads = append(p.reads, at)
			at += time.Duration((0.75 + 0.5*rng.Float64()) * float64(o.ReadEvery))
		}
	}
	slices.Sort(p.reads)
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
