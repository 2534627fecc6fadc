//go:build chaos && unix

package chaos

import (
	"context"
	"fmt"
	"time"
)

func init() {
	register(fault{
		ID: "F19", Name: "rolling restart", Small: true, APIs: 2, Workers: 2, Balanced: true, Lasts: 12 * time.Second,
		Strike: restartAll, Expect: expectNoneCutOff,
	})
}

// restartRounds is how often each process is replaced; with -full more often.
const restartRounds = 2

// restartAll replaces the processes one after another under load. Each is stopped, and its
// successor is ready before the next one is stopped.
func restartAll(ctx context.Context, r *run) {
	r.measure("rolling restart") // until the end of the run: buyers must not notice
	rounds := restartRounds
	if options.full {
		rounds *= 3
	}
	for range rounds {
		for i := range max(len(r.shop.apis), len(r.shop.workers)) {
			if i < len(r.shop.apis) {
				r.restart(ctx, fmt.Sprintf("API %d", i), r.shop.apis[i])
			}
			if i < len(r.shop.workers) {
				r.restart(ctx, fmt.Sprintf("worker %d", i), r.shop.workers[i])
			}
		}
	}
	r.over()
	r.recovered(ctx)
}

// restart stops a process with SIGTERM and starts its successor.
func (r *run) restart(ctx context.Context, name string, m *member) {
	r.t.Helper()
	r.answers(ctx, r.plan.Moments[int(r.tally.Strikes)%blows])
	r.struck(name + " is asked to end")
	began := time.Now()
	if code := m.Stop(); code != 0 {
		r.failf("%s: exit code %d after SIGTERM", name, code)
	}
	ended := time.Now()
	m.again("")
	if err := m.WaitReady(); err != nil {
		r.t.Fatalf("successor of %s: %v", name, err)
	}
	r.notef("%s: %.2f s to end, %.2f s to be ready", name, ended.Sub(began).Seconds(), time.Since(ended).Seconds())
}

// expectNoneCutOff fails the run if an admitted purchase had no definite answer.
func expectNoneCutOff(ctx context.Context, r *run) {
	expectNoError(ctx, r)
	r.notef("%d calls went to another process, because the first refused the connection", r.balance.elsewhere.Load())
}
