package service

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// TestLeaders_ClockSetBack: after the clock of Redis was set back, a leader takes its lock again, whose TTL would
// otherwise last longer by the difference.
func TestLeaders_ClockSetBack(t *testing.T) {
	t.Parallel()
	rdb := redistest.Embedded(t)
	var setBack atomic.Int64
	began := time.Now()
	now := func() time.Time { return began.Add(-time.Duration(setBack.Load())) }
	var ps parts
	l, err := newLeaders(&env{log: zerolog.Nop()}, rdb, now, &ps)
	if err != nil {
		t.Fatal(err)
	}
	l.clockEvery = time.Millisecond
	ctx, cancel := context.WithCancel(await.Context(t))
	held := make(chan time.Duration) // the TTL of the lock, when the work begins
	chore := l.lead("chore", func(ctx context.Context) {
		ttl, err := rdb.PTTL(ctx, leaderKey("chore")+":lock").Result()
		if err != nil {
			t.Error(err)
		}
		select {
		case held <- ttl:
		case <-ctx.Done():
		}
		<-ctx.Done()
	})
	ended := make(chan error, 1)
	go func() { ended <- chore.run(ctx) }()
	receive := func() time.Duration {
		t.Helper()
		select {
		case ttl := <-held:
			return ttl
		case <-ctx.Done():
			t.Fatal("the work does not begin")
			return 0
		}
	}
	usual := receive()
	if err := rdb.PExpire(ctx, leaderKey("chore")+":lock", time.Hour).Err(); err != nil {
		t.Fatal(err)
	}
	setBack.Store(int64(time.Hour))
	if again := receive(); usual <= 0 || again > 2*time.Minute {
		t.Errorf("the lock lasts for %v, and for %v after the clock was set back", usual, again)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
