//go:build chaos && unix

package chaos

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

func init() {
	register(fault{
		ID: "F10", Name: "lock's key harmed", Small: true, Lasts: 8 * time.Second,
		APIs:   1, // the only seller keeps the locks
		Strike: harmLocks,
		Expect: func(ctx context.Context, r *run) {
			noDeadLetters(ctx, r)
			refused, repaired := 0, 0.0
			for _, m := range r.shop.apis {
				refused += strings.Count(m.allLogs(), "purchase refused (lost)")
				repaired += r.metric(ctx, m, `flashsale_lock_events_total{event="repaired"}`)
			}
			r.notef("%d scripts refused for a lost lock, %.0f keys repaired", refused, repaired)
			if refused == 0 || repaired == 0 {
				r.voidf("the harm was not felt")
			}
		},
	})
}

// harm is a change to the key of a held lock.
type harm struct {
	name string
	do   func(ctx context.Context, rdb redis.UniversalClient, key string) error
}

const stranger = "a stranger's value"

var harms = []harm{
	{"expired early", func(ctx context.Context, rdb redis.UniversalClient, key string) error {
		return rdb.PExpire(ctx, key, time.Millisecond).Err()
	}},
	{"made persistent", func(ctx context.Context, rdb redis.UniversalClient, key string) error {
		return rdb.Persist(ctx, key).Err()
	}},
	{"deleted", func(ctx context.Context, rdb redis.UniversalClient, key string) error { return rdb.Del(ctx, key).Err() }},
	{"overwritten by a stranger for a while", func(ctx context.Context, rdb redis.UniversalClient, key string) error {
		return rdb.Set(ctx, key, stranger, lockLife).Err()
	}},
	{"overwritten by a stranger for good", func(ctx context.Context, rdb redis.UniversalClient, key string) error {
		return rdb.Set(ctx, key, stranger, 0).Err()
	}},
}

// harmLocks applies each harm to each item's lock while a process holds it.
func harmLocks(ctx context.Context, r *run) {
	blow := 0
	for _, i := range r.plan.order(len(harms)) {
		for _, item := range r.plan.Items {
			r.answers(ctx, r.plan.Moments[blow]/10)
			r.eventually(ctx, "a process holds "+item.ID, func() bool {
				v, err := r.shop.rdb.Get(ctx, r.shop.lockKey(item.ID)).Result()
				return err == nil && v != stranger
			})
			if err := harms[i].do(ctx, r.shop.rdb, r.shop.lockKey(item.ID)); err != nil {
				r.t.Fatalf("harm the lock of %s: %v", item.ID, err)
			}
			r.struck(fmt.Sprintf("lock of %s %s", item.ID, harms[i].name))
			blow++
		}
		r.over()
		r.recovered(ctx)
	}
}

// metric reads a metric of a process; 0 if it has no such metric.
func (r *run) metric(ctx context.Context, m *member, name string) float64 {
	text, err := fetch(ctx, m.OpsURL()+"/metrics")
	if err != nil {
		r.failf("read metrics: %v", err)
	}
	for line := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(line, name+" "); ok {
			var n float64
			if _, err := fmt.Sscan(v, &n); err != nil {
				r.failf("read metric %s: %v", name, err)
			}
			return n
		}
	}
	return 0
}
