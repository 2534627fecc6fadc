//go:build chaos && unix

package chaos

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// lockLife is how long an item's lock outlives a silent holder.
const lockLife = time.Second

// lateTries bounds how often a script is tried to be sent late.
const lateTries = 6

func init() {
	register(fault{
		ID: "F8", Name: "API stopped beyond its lock", Small: true, Lasts: 10 * time.Second,
		Strike: stopAPIs,
		Expect: func(ctx context.Context, r *run) {
			nothingBuried(ctx, r)
			n := strings.Count(r.shop.apis[0].allLogs(), "purchase refused")
			r.notef("%d late scripts refused", n)
			if n == 0 {
				r.voidf("no late script was seen to be refused")
			}
		},
	})
}

// stopAPIs stops an API process that holds an item's lock, right before its
// script is sent. Once it goes on as soon as another process has the lock: then
// the script goes out, too late. And once for three lives of the lock: then the
// process has no time left for the purchase, and must know it by itself.
func stopAPIs(ctx context.Context, r *run) {
	m := r.shop.apis[0]
	r.answers(ctx, r.plan.Moments[0])
	for i := 0; i < lateTries && !strings.Contains(m.allLogs(), "purchase refused"); i++ {
		items := r.stopBeforeSending(ctx, m, r.plan.Numbers[i])
		r.eventually(ctx, "another process sells what the stopped one held", func() bool {
			return len(r.heldBy(ctx, m.Pid())) == 0
		})
		r.letGoOn(ctx, m)
		r.t.Logf("held %q, stopped for one life of the lock; refused: %d", items, strings.Count(m.allLogs(), "purchase refused"))
	}
	r.stopBeforeSending(ctx, m, r.plan.Numbers[lateTries])
	r.lasts(ctx, 3*lockLife)
	r.letGoOn(ctx, m)
}

// stopBeforeSending puts a successor in the process's place, which stops itself
// where it is about to send a script, and returns the items it holds then.
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

// letGoOn lets a stopped process go on until it is ready, and waits for
// recovery. Recovery is measured from here: meanwhile others sell.
func (r *run) letGoOn(ctx context.Context, m *member) {
	r.t.Helper()
	m.Continue()
	r.over()
	r.recovered(ctx)
	if err := m.WaitReady(); err != nil {
		r.t.Fatal(err)
	}
}

// heldBy lists the items whose lock a process holds, which it marks with its number.
func (r *run) heldBy(ctx context.Context, pid int) []string {
	var held []string
	for _, item := range r.plan.Items {
		v, err := r.shop.rdb.Get(ctx, lockKey(item.ID)).Result()
		if err == nil && strings.HasSuffix(v, fmt.Sprintf(" pid %d", pid)) {
			held = append(held, item.ID)
		}
	}
	return held
}
