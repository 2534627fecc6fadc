//go:build chaos && unix

package chaos

import (
	"context"
	"time"

	"flashsale/internal/verify/history"
)

// sampleEvery is the pause between two samples of the fencing tokens.
const sampleEvery = 20 * time.Millisecond

// sample samples the fencing tokens until ctx ends, and keeps those that differ from the
// previous one: the checker verifies that none is lower. After Redis has restarted with older
// data, the first sample is not a token that was issued, so it is skipped. The next one is, and
// must be above all earlier ones.
func (r *run) sample(ctx context.Context) {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	type series struct{ item, source string }
	last := make(map[series]int64)
	seen := make(map[series]int64) // the value of rewound at the last sample
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
