//go:build chaos && unix

package chaos

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
)

// The common shape of a run.
const (
	buyersAtOnce = 64
	itemsOnSale  = 3
	stockMin     = 500
	stockMax     = 5000
	perUser      = 4
	// repeatShare of the purchases are repeated later with the same key, and twinShare are sent
	// twice concurrently.
	repeatShare = 0.38
	twinShare   = 0.08
	asyncShare  = 0.4
	// lookShare of the accepted orders are read later by their buyers.
	lookShare = 0.05
	// baselineShare and faultShare are the shares of the stock for which there are purchases
	// before the strike and before its end: some units must be left for the time after it.
	baselineShare = 0.2
	faultShare    = 0.65
	// demand is the number of units requested, relative to the stock.
	demand = 1.7
	// tailShare of the stock is requested at the end in single units by new buyers, so that the
	// last unit is not left over because every buyer wants more than one.
	tailShare = 0.2
	// blows bounds the moments that are drawn for a strike.
	blows = 64
)

// plan is everything that is drawn from a seed.
type plan struct {
	Seed  uint64     `json:"seed"`
	Fault string     `json:"fault"`
	Items []saleItem `json:"items"`
	// Moments are the numbers of answers to wait for before each strike.
	Moments []int `json:"moments"`
	// Points are the named places at which to strike, in this order.
	Points []string `json:"points,omitempty"`
	// Numbers are random numbers for any use by the strike.
	Numbers []int `json:"numbers"`
	// Demand is the number of units requested, relative to the stock.
	Demand float64 `json:"demand"`
	// Purchases is their number; Baseline and Strike are the numbers that may begin before the
	// strike and before its end.
	Purchases int `json:"purchases"`
	Baseline  int `json:"baseline"`
	Strike    int `json:"strike"`

	rng     *rand.Rand
	intents []intent
}

type saleItem struct {
	ID    string `json:"id"`
	Stock int64  `json:"stock"`
	Limit int64  `json:"limit"`
}

// intent is one purchase that a buyer makes.
type intent struct {
	user     string
	item     int
	quantity int64
	key      string
	async    bool
	twin     bool // it is sent twice concurrently
	repeat   bool // it is repeated later
	look     bool // its order is read later
}

// newPlan draws the schedule of a run. The same fault, seed and fullness give the same plan.
func newPlan(f *fault, seed uint64, full bool) *plan {
	h := fnv.New64a()
	_, _ = h.Write([]byte(f.ID)) // a hash's Write never fails
	p := &plan{Seed: seed, Fault: f.ID, Demand: demand, rng: rand.New(rand.NewPCG(seed, h.Sum64()))}
	for i := range itemsOnSale {
		// Uniform on a logarithmic scale, so that small sales are as common as large ones.
		stock := stockMin * math.Pow(float64(stockMax)/stockMin, p.rng.Float64())
		p.Items = append(p.Items, saleItem{ID: fmt.Sprintf("item-%d", i), Stock: int64(stock), Limit: perUser})
	}
	for range blows {
		p.Moments = append(p.Moments, 20+p.rng.IntN(180))
		p.Numbers = append(p.Numbers, p.rng.IntN(1<<20))
	}
	p.Points = slices.Clone(f.Points)
	p.rng.Shuffle(len(p.Points), func(i, j int) { p.Points[i], p.Points[j] = p.Points[j], p.Points[i] })
	if !full && len(p.Points) > 1 {
		p.Points = p.Points[:1]
	}
	if f.Draw != nil {
		f.Draw(p)
	}
	p.drawIntents()
	return p
}

// shuffle puts names in a random order, the same for the same seed.
func (p *plan) shuffle(names []string) {
	for i := len(names) - 1; i > 0; i-- {
		j := p.Numbers[len(p.Numbers)-1-i] % (i + 1)
		names[i], names[j] = names[j], names[i]
	}
}

// drawIntents draws the purchases item by item and then mixes them.
func (p *plan) drawIntents() {
	var body, tail []intent
	for i, item := range p.Items {
		units := int64(p.Demand * float64(item.Stock))
		single := int64(tailShare * float64(item.Stock))
		for n := 0; units > 0; n++ {
			in := intent{
				item: i, quantity: 1, key: fmt.Sprintf("k%d", n),
				async: p.rng.Float64() < asyncShare, twin: p.rng.Float64() < twinShare,
				repeat: p.rng.Float64() < repeatShare, look: p.rng.Float64() < lookShare,
			}
			if units <= single {
				in.user = fmt.Sprintf("late-%d-%d", i, n)
				tail = append(tail, in)
			} else {
				// There are as many buyers as units, so that some of them reach their limit.
				in.user = fmt.Sprintf("buyer-%d", p.rng.Int64N(item.Stock))
				in.quantity += p.rng.Int64N(3) / 2
				body = append(body, in)
			}
			units -= in.quantity
		}
	}
	for _, part := range [][]intent{body, tail} {
		p.rng.Shuffle(len(part), func(i, j int) { part[i], part[j] = part[j], part[i] })
		p.intents = append(p.intents, part...)
	}
	p.Purchases = len(p.intents)
	p.Baseline, p.Strike = p.until(baselineShare), p.until(faultShare)
}

// until returns how many purchases may be made before the demand for one of the items exceeds a
// share of its stock.
func (p *plan) until(share float64) int {
	asked := make([]int64, len(p.Items))
	for n, in := range p.intents {
		asked[in.item] += in.quantity
		if float64(asked[in.item]) > share*float64(p.Items[in.item].Stock) {
			return n
		}
	}
	return len(p.intents)
}

// order returns a random order of n things, the same for the same plan.
func (p *plan) order(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	slices.SortStableFunc(out, func(a, b int) int { return p.Numbers[a] - p.Numbers[b] })
	return out
}

// text is the plan as it is written to the results.
func (p *plan) text() ([]byte, error) { return json.MarshalIndent(p, "", " ") }
