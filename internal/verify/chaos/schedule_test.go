//go:build chaos && unix

package chaos

import (
	"reflect"
	"testing"
)

// The same seed gives the same schedule, and a different one another.
func TestPlan_SameSeedSameSchedule(t *testing.T) {
	t.Parallel()
	for _, f := range faults {
		for _, full := range []bool{false, true} {
			a, b, c := newPlan(f, 7, full), newPlan(f, 7, full), newPlan(f, 8, full)
			a.rng, b.rng = nil, nil // their state follows from the other fields
			if !reflect.DeepEqual(a, b) {
				t.Errorf("%s: seed 7 gave two plans", f.ID)
			}
			if reflect.DeepEqual(a.Items, c.Items) || reflect.DeepEqual(a.Moments, c.Moments) {
				t.Errorf("%s: seeds 7 and 8 gave the same items or moments", f.ID)
			}
		}
	}
}

// The purchases of every plan have the common shape.
func TestPlan_CommonShape(t *testing.T) {
	t.Parallel()
	for seed := range uint64(50) {
		p := newPlan(&fault{ID: "F0", Points: []string{"a", "b", "c"}}, seed, false)
		asked, repeats, twins := make([]int64, len(p.Items)), 0, 0
		keys := make(map[[3]any]bool)
		for _, in := range p.intents {
			asked[in.item] += in.quantity
			if in.repeat {
				repeats++
			}
			if in.twin {
				twins++
			}
			key := [3]any{in.user, in.item, in.key}
			if keys[key] {
				t.Fatalf("seed %d: two purchases share %v", seed, key)
			}
			keys[key] = true
		}
		if n := len(p.intents); repeats*10 < n*3 || twins*20 < n {
			t.Errorf("seed %d: of %d purchases %d are repeated, want 30 %%, and %d sent twice, want 5 %%", seed, n, repeats, twins)
		}
		for i, item := range p.Items {
			if item.Stock < stockMin || item.Stock > stockMax {
				t.Errorf("seed %d: stock %d", seed, item.Stock)
			}
			if float64(asked[i]) < demand*float64(item.Stock)-2 {
				t.Errorf("seed %d: %d units asked of %d", seed, asked[i], item.Stock)
			}
		}
		if p.Baseline < 1 || p.Strike <= p.Baseline || p.Purchases <= p.Strike {
			t.Errorf("seed %d: phases %d, %d, %d", seed, p.Baseline, p.Strike, p.Purchases)
		}
		if len(p.Points) != 1 {
			t.Errorf("seed %d: points %q, want one", seed, p.Points)
		}
	}
}
