//go:build chaos && unix

package chaos

import (
	"context"
	"os"
)

func init() {
	register(fault{
		ID: "F5", Name: "Redis emptied", Small: true, Shuts: true, MayLoseAccepted: true,
		Expect: noDeadLetters,
		Strike: func(ctx context.Context, r *run) {
			blows := []func(context.Context, *run){flushAll, deleteLog}
			if r.plan.Numbers[0]%2 == 1 {
				blows[0], blows[1] = blows[1], blows[0]
			}
			for i, blow := range blows {
				r.answers(ctx, r.plan.Moments[i])
				if i == r.plan.Numbers[1]%2 {
					r.pileUp(ctx)
				}
				blow(ctx, r)
				r.recovered(ctx)
			}
		},
	})
}

// flushAll empties a running Redis.
func flushAll(ctx context.Context, r *run) {
	r.t.Helper()
	if err := r.shop.rdb.FlushAll(ctx).Err(); err != nil {
		r.t.Fatalf("empty Redis: %v", err)
	}
	r.struck("Redis emptied by FLUSHALL")
	r.goOn()
	r.over()
}

// deleteLog kills Redis, deletes its append-only file, and starts it empty.
func deleteLog(ctx context.Context, r *run) {
	r.t.Helper()
	folder := r.shop.dataOfRedis(ctx)
	r.redisAway(ctx, func() {
		if err := os.RemoveAll(folder); err != nil {
			r.t.Fatalf("delete the log: %v", err)
		}
	})
}
