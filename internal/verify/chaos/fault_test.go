//go:build chaos && unix

package chaos

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"flashsale/internal/testing/postgrestest"
	"flashsale/internal/testing/process"
)

// fault is one kind of fault. Each comment gives the meaning of a field's zero value; ID, Name
// and Strike are required.
type fault struct {
	ID   string // "F1"
	Name string // a short description
	// Small adds the fault to the set of continuous integration.
	Small bool

	// APIs and Workers are the numbers of processes; zero: 2 and 1.
	APIs, Workers int
	// APIArgs and WorkerArgs are settings added to the suite's own.
	APIArgs, WorkerArgs []string
	// RedisArgs are appended to redis-server's command line.
	RedisArgs []string
	// Redis returns further arguments for each run; it may be nil.
	Redis func(t *testing.T) []string
	// Cluster runs the service on a Redis Cluster, on which RedisArgs, Redis and the proxies have
	// no effect.
	Cluster bool
	// Buckets is the number of buckets of each item; zero: its stock is not divided.
	Buckets int
	// ProxyAPI and ProxyWorker put a proxy between Redis and these processes.
	ProxyAPI, ProxyWorker bool
	// DB is the name of the only database, as in -db, to which the fault applies; empty: any.
	DB string
	// Folder returns the folder of an SQLite database; nil: a temporary folder.
	Folder func(t *testing.T) string
	// Postgres returns the fault's own server and the URL of an empty database on it; nil: a
	// database on the server that the faults share.
	Postgres func(t *testing.T) (server *postgrestest.Instance, url string)
	// Front returns the URL by which the service reaches its Postgres database; nil: directly.
	Front func(t *testing.T, s *store) string
	// Tune changes the configuration of a process; it may be nil.
	Tune func(spec *process.Spec)

	// Draw changes the plan before the purchases are drawn. It may only use p.rng, so that a
	// seed repeats it; nil: the common shape.
	Draw func(p *plan)
	// Points are named places. A run strikes at one of them, drawn from the seed, or with -full
	// at all of them in an order drawn from it.
	Points []string
	// Lasts is the approximate duration of the strike, at each of the points if there are any.
	// The new purchases for this time are spread over it. Zero: 4 s.
	Lasts time.Duration
	// Shuts means that no purchase can be accepted during the strike, so that a run without
	// accepted purchases is not void.
	Shuts bool
	// Balanced makes the buyers call as if through a load balancer, which checks the readiness
	// of the API processes, opens a connection for each call, and tries another process if one
	// refuses the connection.
	Balanced bool
	// Stays means that units may be left at the end because of the changes to the sales: the
	// run does not buy them, and the checker does not require it.
	Stays bool
	// MayLoseAccepted means that Redis itself loses acknowledged data.
	MayLoseAccepted bool
	// Redelivers means that the run must observe orders that are delivered again; a run without
	// one is void.
	Redelivers bool
	// RecoversIn is the promised time from the end of the fault to the first definite answer on
	// each item; zero: 2 s. A longer time is reported, but only fails the run with -times.
	RecoversIn time.Duration

	// Strike applies the fault and removes it while the buyers continue. It calls run.struck at
	// each strike and run.over when the fault ends. It runs in the test's goroutine.
	Strike func(ctx context.Context, r *run)
	// Expect makes checks beyond the checker's, after all processing has ended, with run.failf
	// and run.voidf; it may be nil.
	Expect func(ctx context.Context, r *run)
}

// faults are all registered faults, by the number in their ID.
var faults []*fault

// register adds a fault to the suite.
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
		number := func(id string) int { return len(strings.TrimRight(id, "abcdefghi")) }
		if d := number(a.ID) - number(b.ID); d != 0 {
			return d
		}
		return strings.Compare(a.ID, b.ID)
	})
}
