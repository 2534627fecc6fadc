//go:build chaos && unix

package chaos

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// lockLife is the time after which the lock of a silent holder expires.
const lockLife = time.Second

// instantLife is the time after which the script of an instant batch must not run.
const instantLife = time.Second

// lateTries bounds the attempts to send a script late.
const lateTries = 6

func init() {
	register(fault{
		ID: "F8", Name: "API stopped beyond its lock", Small: true, Lasts: 10 * time.Second,
		Strike: stopAPIs,
		Expect: func(ctx context.Context, r *run) {
			noDeadLetters(ctx, r)
			n := strings.Count(r.shop.apis[0].allLogs(), "purchase refused")
			r.notef("%d late scripts refused", n)
			if n == 0 {
				r.voidf("no late script was seen to be refused")
			}
		},
	})
}

// stopAPIs stops an API process immediately before it sends a purchase script. In one variant
// the process continues when its script is too late: another process has the lock that it held, or,
// if it held none because the item is shared, the time of an instant batch is over. In the other it
// continues after three lock lifetimes: its request has then timed out, and it must detect that
// without Redis.
func stopAPIs(ctx context.Context, r *run) {
	m := r.shop.apis[0]
	r.answers(ctx, r.plan.Moments[0])
	for i := 0; i < lateTries && !strings.Contains(m.allLogs(), "purchase refused"); i++ {
		items := r.stopBeforeSending(ctx, m, r.plan.Numbers[i])
		if len(items) == 0 {
			r.lasts(ctx, instantLife+instantLife/5) // less than a purchase's patience
		}
		r.eventually(ctx, "another process sells what the stopped one held", func() bool {
			return len(r.heldBy(ctx, m.Pid())) == 0
		})
		r.letGoOn(ctx, m)
		r.t.Logf("held %q; refused: %d", items, strings.Count(m.allLogs(), "purchase refused"))
	}
	r.stopBeforeSending(ctx, m, r.plan.Numbers[lateTries])
	r.lasts(ctx, 3*lockLife)
	r.letGoOn(ctx, m)
}

// stopBeforeSending replaces the process by a successor that stops itself immediately before it
// sends a script, and returns the items whose locks it holds then.
func (r *run) stopBeforeSending(ctx context.Context, m *member, number int) []string {
	r.t.Helper()
	if code := m.Stop(); code != 0 {
		r.failf("an API process ended with code %d on SIGTERM", code)
	}
	m.again(fmt.Sprintf("inventory.send:%d:stop", 5+number%40))
	r.eventually(ctx, "the API stops before it sends a script", m.Stopped)
	r.struck("API stopped before it sends a script")
	return r.heldBy(ctx, m.Pid())
}

// letGoOn continues a stopped process until it is ready, and waits for recovery. The recovery
// time starts here, because other processes sell while this one is stopped.
func (r *run) letGoOn(ctx context.Context, m *member) {
	r.t.Helper()
	m.Continue()
	r.over()
	r.recovered(ctx)
	if err := m.WaitReady(); err != nil {
		r.t.Fatal(err)
	}
}

// heldBy lists the items whose lock a process holds. The lock's value contains its process id.
func (r *run) heldBy(ctx context.Context, pid int) []string {
	var held []string
	for _, item := range r.plan.Items {
		v, err := r.shop.rdb.Get(ctx, r.shop.lockKey(item.ID)).Result()
		if err == nil && strings.HasSuffix(v, fmt.Sprintf(" pid %d", pid)) {
			held = append(held, item.ID)
		}
	}
	return held
}
