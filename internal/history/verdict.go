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

// Verdict is the judgement of a run.
type Verdict struct {
	// Passed tells that there are no Findings.
	Passed   bool      `json:"passed"`
	Findings []Finding `json:"findings"`
	Counts   Counts    `json:"counts"`
}

// Counts are what a run was made of. They judge nothing.
type Counts struct {
	Calls     int64 `json:"calls"`
	Accepted  int64 `json:"accepted"`  // orders acknowledged, distinct ids
	Confirmed int64 `json:"confirmed"` // of those, the ones that a client saw committed
	Rows      int64 `json:"rows"`      // orders in the database that hold units
	Rejected  int64 `json:"rejected"`  // orders the database refused
	Unknown   int64 `json:"unknown"`   // calls whose outcome their client never learned from them
	Replays   int64 `json:"replays"`   // purchases that were repeated, answered or not
	SoldOut   int64 `json:"sold_out"`  // purchases answered sold_out
	// LostAccepted is the number of orders answered 202 that are missing where
	// they may be: see Final.AcceptedMayBeLost.
	LostAccepted int64 `json:"lost_accepted"`
}

// Has reports whether the verdict has a finding of that name.
func (v *Verdict) Has(name string) bool {
	for i := range v.Findings {
		if v.Findings[i].Name == name {
			return true
		}
	}
	return false
}

// Line is the verdict in one line: PASS or FAIL, what was found, the counts.
func (v *Verdict) Line() string {
	var b strings.Builder
	b.WriteString("PASS")
	if !v.Passed {
		b.Reset()
		b.WriteString("FAIL")
		for i := range v.Findings {
			fmt.Fprintf(&b, " %s=%d", v.Findings[i].Name, v.Findings[i].Count)
		}
	}
	c := &v.Counts
	fmt.Fprintf(&b, " calls=%d accepted=%d confirmed=%d rows=%d rejected=%d unknown=%d replays=%d sold_out=%d lost_accepted=%d",
		c.Calls, c.Accepted, c.Confirmed, c.Rows, c.Rejected, c.Unknown, c.Replays, c.SoldOut, c.LostAccepted)
	return b.String()
}
