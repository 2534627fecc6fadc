package queue

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// TestAcker_GivesUp: when the first call fails at the end of the drain, the calls for the other
// outcomes are not made, because each could take as long again.
func TestAcker_GivesUp(t *testing.T) {
	t.Parallel()
	_, s := bench(t, RunConfig{}, 1)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	s[0].r.work = ended
	s[0].r.cfg.OnError = func(error) {}
	calls := 0
	s[0].Queue = queueAt(t, func(context.Context, redis.Cmder) error {
		calls++
		return redis.ErrClosed
	}, Config{})
	tasks := brought("a", 0, 3)
	for what, o := range map[string]results{
		"acknowledged":      {done: tasks[:1], then: []Completion{{Task: tasks[1]}}, back: []Rejection{{Task: tasks[2]}}},
		"with what follows": {then: []Completion{{Task: tasks[1]}}, back: []Rejection{{Task: tasks[2]}}},
	} {
		calls = 0
		s[0].acker.settle(time.Now().Add(time.Hour), o)
		if calls != 1 {
			t.Errorf("%s: %d calls, want 1", what, calls)
		}
	}
}
