package queue

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
)

// silence is a Redis that answers only the first fetch, with two tasks.
func silence() answering {
	var fetched atomic.Bool
	return func(ctx context.Context, cmd redis.Cmder) error {
		if c, ok := cmd.(*redis.Cmd); ok && cmd.Args()[1] == dequeueScript.Hash() && fetched.CompareAndSwap(false, true) {
			c.SetVal([]any{"0", "-1", "0", "2:5", "0", "a", "", "1,0", "b", "", "1,0"})
			return nil
		}
		<-ctx.Done()
		return ctx.Err()
	}
}

// TestRun_Time_SilentRedis: if Redis stops answering, Run returns within the time that its
// documentation states, with any number of queues.
func TestRun_Time_SilentRedis(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		answers := silence()
		var calls atomic.Int32
		release := make(chan struct{})
		defer close(release)
		handle := func(ctx context.Context, _ Leased) error {
			if calls.Add(1) == 1 {
				// Its acknowledgement is under way when the other task is handed back.
				<-ctx.Done()
				<-time.After(cancelGrace - time.Millisecond)
				return nil
			}
			<-release
			return nil
		}
		sources := make([]Source, 3)
		for i := range sources {
			q := queueAt(t, answers, Config{Prefix: "t:{time}:" + string(rune('a'+i)) + ":", Lease: time.Hour})
			sources[i] = Source{Queue: q, Each: handle}
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		drain := 2 * fetchLimit
		go func() {
			ended <- RunAll(ctx, sources, RunConfig{Workers: 2, Ahead: -1, Drain: drain, OnError: func(error) {}})
		}()
		synctest.Wait()
		if n := calls.Load(); n != 2 {
			t.Fatalf("%d handlers run, want 2", n)
		}
		began := time.Now()
		stop()
		err := <-ended
		want := drain + cancelGrace - time.Millisecond + 2*fetchLimit + recallLimit
		if got := time.Since(began); got != want || !errors.Is(err, ErrAbandoned) {
			t.Errorf("ended %v after the stop, want %v: %v", got, want, err)
		}
	})
}
