//go:build chaos && unix

package chaos

import (
	"context"
	"time"

	"flashsale/internal/verify/history"
)

// sampleEvery is the pause between two looks at the fencing tokens.
const sampleEvery = 20 * time.Millisecond

// sample looks at the fencing tokens until ctx ends, and keeps those that
// differ from the one before: the checker wants to see that none falls. What a
// Redis that was set back remembers is no token that was given out; the next one
// is, and must be above all that were seen.
func (r *run) sample(ctx context.Context) {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	type series struct{ item, source string }
	last := make(map[series]int64)
	seen := make(map[series]int64) // how often Redis had been set back then
	for {
		for _, item := range r.plan.Items {
			sold, minted := r.shop.fence(ctx, item.ID)
			for source, fence := range map[string]int64{"sale": sold, "lock": minted} {
				key := series{item.ID, source}
				if fence == 0 || fence == last[key] {
					continue
				}
				last[key] = fence
				if n := r.rewound.Load(); seen[key] != n {
					seen[key] = n
					continue
				}
				r.mu.Lock()
				r.fences = append(r.fences, history.FenceSample{At: r.now(), Item: item.ID, Source: source, Fence: fence})
				r.mu.Unlock()
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
