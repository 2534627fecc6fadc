package queue

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// refusing is a hook that refuses every call with redis.ErrClosed, and counts them.
type refusing struct{ calls int }

func (*refusing) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r *refusing) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(context.Context, redis.Cmder) error {
		r.calls++
		return redis.ErrClosed
	}
}

func (*refusing) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// TestAcker_GivesUp: when the first call fails at the end of the drain, the calls for the other
// outcomes are not made, because each could take as long again.
func TestAcker_GivesUp(t *testing.T) {
	t.Parallel()
	_, s := bench(t, RunConfig{}, 1)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	s[0].r.work = ended
	s[0].r.cfg.OnError = func(error) {}
	rdb, r := redis.NewClient(&redis.Options{MaxRetries: -1}), new(refusing)
	defer rdb.Close()
	rdb.AddHook(r)
	var err error
	if s[0].Queue, err = New(rdb, Config{Prefix: "{p}:"}); err != nil {
		t.Fatal(err)
	}
	tasks := brought("a", 0, 3)
	for what, o := range map[string]results{
		"acknowledged":      {done: tasks[:1], then: []Completion{{Task: tasks[1]}}, back: []Rejection{{Task: tasks[2]}}},
		"with what follows": {then: []Completion{{Task: tasks[1]}}, back: []Rejection{{Task: tasks[2]}}},
	} {
		r.calls = 0
		s[0].acker.settle(time.Now().Add(time.Hour), o)
		if r.calls != 1 {
			t.Errorf("%s: %d calls, want 1", what, r.calls)
		}
	}
}
