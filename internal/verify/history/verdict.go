package history

import (
	"fmt"
	"strings"
)

// Finding is one kind of broken promise.
type Finding struct {
	Name  string `json:"name"`
	Count int64  `json:"count"`
	// Examples name the client, the key and the order of the first cases.
	Examples []string `json:"examples,omitempty"`
}

// Verdict is the result of judging a run.
type Verdict struct {
	// Passed means that there are no Findings.
	Passed   bool      `json:"passed"`
	Findings []Finding `json:"findings"`
	Counts   Counts    `json:"counts"`
}

// Counts describe a run. They are not judged.
type Counts struct {
	Calls     int64 `json:"calls"`
	Accepted  int64 `json:"accepted"`  // acknowledged orders, distinct ids
	Confirmed int64 `json:"confirmed"` // of those, the ones that a client saw committed
	Rows      int64 `json:"rows"`      // orders in the database that hold units
	Rejected  int64 `json:"rejected"`  // orders that the database rejected
	Unknown   int64 `json:"unknown"`   // calls whose outcome their client never learned
	Replays   int64 `json:"replays"`   // repeated purchases, answered or not
	SoldOut   int64 `json:"sold_out"`  // purchases answered sold_out
	// LostAccepted is the number of missing orders that were answered 202, where that is
	// allowed: see Final.AcceptedMayBeLost.
	LostAccepted int64 `json:"lost_accepted"`
	// Forgotten is the number of refused repeats of acknowledged purchases, where that is
	// allowed.
	Forgotten int64 `json:"forgotten"`
	// Dead is the number of accepted orders that are dead letters without a row.
	Dead int64 `json:"dead"`
	// Internal is the number of calls that were answered 500.
	Internal int64 `json:"internal"`
}

// Has reports whether the verdict has the named finding.
func (v *Verdict) Has(name string) bool {
	for i := range v.Findings {
		if v.Findings[i].Name == name {
			return true
		}
	}
	return false
}

// Line returns the verdict in one line: PASS or FAIL, the findings and the counts.
func (v *Verdict) Line() string {
	var b strings.Builder
	b.WriteString("PASS")
	if !v.Passed {
		b.Reset()
		b.WriteString("FAIL")
		for i := range v.Findings {
			fmt.Fprintf(&b, " %s:%d", v.Findings[i].Name, v.Findings[i].Count)
		}
		b.WriteString(" |")
	}
	c := &v.Counts
	for _, n := range []struct {
		name  string
		count int64
	}{
		{"calls", c.Calls}, {"accepted", c.Accepted}, {"confirmed", c.Confirmed}, {"rows", c.Rows},
		{"rejected", c.Rejected}, {"unknown", c.Unknown}, {"replays", c.Replays}, {"sold_out", c.SoldOut},
		{"lost_accepted", c.LostAccepted}, {"forgotten", c.Forgotten}, {"dead", c.Dead}, {"internal", c.Internal},
	} {
		fmt.Fprintf(&b, " %s=%d", n.name, n.count)
	}
	return b.String()
}
