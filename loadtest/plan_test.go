package main

import (
	"io"
	"reflect"
	"slices"
	"testing"
	"time"
)

func options4test(t *testing.T, args ...string) *options {
	t.Helper()
	o, err := parse(args, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return &o
}

func TestNewPlan_SameSeedSamePlan(t *testing.T) {
	t.Parallel()
	args := []string{"--buyers", "500", "--duplicates", "0.3", "--greedy", "0.1", "--profile", "ramp", "--seed"}
	a, b := newPlan(options4test(t, append(args, "7")...), "r"), newPlan(options4test(t, append(args, "7")...), "r")
	if !reflect.DeepEqual(a, b) {
		t.Error("the same seed made two plans")
	}
	if c := newPlan(options4test(t, append(args, "8")...), "r"); reflect.DeepEqual(a.purchases, c.purchases) {
		t.Error("another seed made the same order of buyers")
	}
}

func TestNewPlan_Content(t *testing.T) {
	t.Parallel()
	p := newPlan(options4test(t, "--buyers", "1000", "--duplicates", "0.25", "--greedy", "0.1", "--limit", "2"), "r")
	keys, byBuyer, repeats := map[string]bool{}, map[int]int{}, map[int]bool{}
	for _, b := range p.purchases {
		keys[b.key] = true
		byBuyer[b.buyer]++
	}
	for i, s := range p.shots {
		if i > 0 && p.shots[i-1].purchase == s.purchase {
			repeats[p.purchases[s.purchase].buyer] = true
		}
	}
	greedy := 0
	for _, n := range byBuyer {
		if n == 3 { // one more than the limit of two allows
			greedy++
		}
	}
	if len(byBuyer) != 1000 || greedy != 100 || len(p.purchases) != 1200 || len(keys) != 1200 || len(repeats) != 250 {
		t.Errorf("%d buyers, %d greedy, %d purchases, %d keys, %d with repeats; want 1000, 100, 1200, 1200, 250",
			len(byBuyer), greedy, len(p.purchases), len(keys), len(repeats))
	}
}

func TestNewPlan_DueTimes(t *testing.T) {
	t.Parallel()
	tests := []struct {
		profile     string
		half, whole time.Duration // when half of the requests, and all, are due
	}{
		{profileBurst, 0, 0},
		{profileSteady, 500 * time.Millisecond, time.Second},
		// The first half of a ramp takes 1/sqrt(2) of twice the time.
		{profileRamp, 1414 * time.Millisecond, 2 * time.Second},
	}
	for _, tt := range tests {
		args := []string{"--buyers", "1000", "--profile", tt.profile}
		if tt.profile != profileBurst {
			args = append(args, "--rate", "1000")
		}
		p := newPlan(options4test(t, args...), "r")
		if !slices.IsSortedFunc(p.shots, func(a, b shot) int { return int(a.due - b.due) }) {
			t.Errorf("%s: not in the order of due times", tt.profile)
		}
		near := func(a, b time.Duration) bool { return (a - b).Abs() <= 2*time.Millisecond }
		if !near(p.shots[500].due, tt.half) || !near(p.shots[999].due, tt.whole) {
			t.Errorf("%s: half due at %s, all at %s; want %s, %s", tt.profile, p.shots[500].due, p.shots[999].due, tt.half, tt.whole)
		}
	}
}

func TestNewPlan_RepeatsAreDueTogether(t *testing.T) {
	t.Parallel()
	p := newPlan(options4test(t, "--buyers", "100", "--profile", "steady", "--rate", "10", "--duplicates", "1"), "r")
	for i := 0; i < len(p.shots); i += 2 {
		if p.shots[i].purchase != p.shots[i+1].purchase || p.shots[i].due != p.shots[i+1].due {
			t.Fatalf("shots %d and %d: %+v, %+v", i, i+1, p.shots[i], p.shots[i+1])
		}
	}
	// Both count towards the rate.
	if last := p.shots[199].due; last < 19700*time.Millisecond || last > 19900*time.Millisecond {
		t.Errorf("200 requests at 10/s end at %s", last)
	}
}
