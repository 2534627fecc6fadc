//go:build chaos && unix

package chaos

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"flashsale/internal/testing/process"
)

// fault is one kind of harm. The zero value of a field means what its comment
// says; ID, Name and Strike are required.
type fault struct {
	ID   string // "F1"
	Name string // what is done, in a few words
	// Small puts the fault into the set of continuous integration.
	Small bool

	// APIs and Workers are how many processes of each there are; zero: 2 and 1.
	APIs, Workers int
	// APIArgs and WorkerArgs are settings on top of the suite's own.
	APIArgs, WorkerArgs []string
	// RedisArgs are appended to redis-server's command line.
	RedisArgs []string
	// Redis returns more of the same for each run; nil: nothing.
	Redis func(t *testing.T) []string
	// ProxyAPI and ProxyWorker put a proxy between Redis and these processes.
	ProxyAPI, ProxyWorker bool
	// DB names the database, by -db, that alone can be harmed so; empty: any.
	DB string
	// Folder returns where the database lives; nil: a temporary folder.
	Folder func(t *testing.T) string
	// Tune changes what a process is started with; nil: nothing.
	Tune func(spec *process.Spec)

	// Draw changes the plan before the purchases are drawn, by p.rng alone, so
	// that a seed repeats it; nil: the common shape.
	Draw func(p *plan)
	// Points are the named places of which a run strikes at one, drawn from the
	// seed, or, with -full, at all in an order drawn from it.
	Points []string
	// Lasts is about how long the strike takes, at each of the points if there are
	// any: the new purchases that are meant for its time are spread over it.
	// Zero: 4 s.
	Lasts time.Duration
	// Shuts says that nothing can be accepted during the strike, which is
	// therefore not void for that.
	Shuts bool
	// Balanced has the buyers call as through a load balancer, which asks the
	// API processes whether they are ready, opens a connection for each call, and
	// goes elsewhere where nobody listens.
	Balanced bool
	// Stays says that units may be left at the end, because of what was done to
	// the sales: nobody asks for them, and the checker does not.
	Stays bool
	// MayLoseAccepted says that Redis itself loses what it had acknowledged.
	MayLoseAccepted bool
	// Redelivers says that orders have to be seen to be delivered again; a run
	// without one is void.
	Redelivers bool
	// RecoversIn is the promised time from the fault's end to the first definite
	// answer on each item; zero: 2 s. A longer one is shown, and fails the run
	// with -times alone.
	RecoversIn time.Duration

	// Strike does the harm and undoes it, while the buyers go on. It calls
	// run.struck at each blow and run.over where the harm ends. It runs in the
	// test's goroutine.
	Strike func(ctx context.Context, r *run)
	// Expect looks at what is beyond the checker, once everything is quiet, by
	// run.failf and run.voidf; nil: nothing.
	Expect func(ctx context.Context, r *run)
}

// faults are all that are known, by the number in their ID.
var faults []*fault

// register takes a fault into the suite.
func register(f fault) {
	if f.APIs == 0 {
		f.APIs = 2
	}
	if f.Workers == 0 {
		f.Workers = 1
	}
	if f.Lasts == 0 {
		f.Lasts = 4 * time.Second
	}
	if f.RecoversIn == 0 {
		f.RecoversIn = 2 * time.Second
	}
	faults = append(faults, &f)
	slices.SortFunc(faults, func(a, b *fault) int {
		// "F2" before "F12a" before "F12b".
		number := func(id string) int { return len(strings.TrimRight(id, "abc")) }
		if d := number(a.ID) - number(b.ID); d != 0 {
			return d
		}
		return strings.Compare(a.ID, b.ID)
	})
}
