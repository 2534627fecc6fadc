//go:build chaos && unix

package chaos

import (
	"context"
)

func init() {
	register(fault{
		ID: "F3", Name: "Redis killed, log synced always", Small: true, Shuts: true,
		Expect: noDeadLetters,
		Strike: func(ctx context.Context, r *run) {
			for blow := range 2 {
				r.answers(ctx, r.plan.Moments[blow])
				r.pileUp(ctx)
				r.redisAway(ctx, nil)
				r.recovered(ctx)
			}
		},
	})
}

// piled is the number of orders that must wait in the queue when the fault hits Redis. Those
// orders are only in Redis.
const piled = 40

// pileUp stops the workers until the fault hits Redis, and returns when enough orders wait in
// the queue.
func (r *run) pileUp(ctx context.Context) {
	r.t.Helper()
	for _, m := range r.shop.workers {
		m.Pause()
	}
	waiting := int64(0)
	r.eventually(ctx, "orders wait in the queue", func() bool {
		n, err := r.shop.underway(ctx)
		waiting = n
		return err == nil && n >= piled
	})
	r.notef("%d orders were in the queue", waiting)
}

// goOn continues the workers.
func (r *run) goOn() {
	r.t.Helper()
	for _, m := range r.shop.workers {
		m.Continue()
	}
}

// refused is the number of 503 answers that the service must have given before Redis restarts.
const refused = 20

// redisAway kills Redis, waits until the service answers 503, calls meanwhile, and restarts
// Redis.
func (r *run) redisAway(ctx context.Context, meanwhile func()) {
	r.t.Helper()
	before := r.count(503, "unavailable")
	if err := r.shop.redis.Kill(); err != nil {
		r.t.Fatalf("kill Redis: %v", err)
	}
	r.struck("Redis killed")
	r.goOn()
	r.eventually(ctx, "the service says that it is unavailable", func() bool { return r.count(503, "unavailable") >= before+refused })
	if meanwhile != nil {
		r.rewound.Add(1)
		meanwhile()
	}
	if err := r.shop.redis.Start(); err != nil {
		r.t.Fatalf("start Redis: %v", err)
	}
	r.over()
}
