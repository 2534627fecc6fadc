package queue

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"flashsale/internal/redistest"
)

// TestLeader_Round: a round waits until the next tick less the time ahead, adds at
// most so many ticks of one entry, and follows the last at once then.
func TestLeader_Round(t *testing.T) {
	t.Parallel()
	server := miniredis.RunT(t)
	rdb := redis.NewClient(redistest.Options(server.Addr()))
	defer rdb.Close()
	now := time.Date(2031, 5, 6, 7, 8, 57, 0, time.UTC)
	server.SetTime(now)
	q, err := New(rdb, Config{Prefix: "{p}:"})
	if err != nil {
		t.Fatal(err)
	}
	entries, err := parseEntries([]Periodic{{Name: "a", Spec: "* * * * *", Missed: MissedAll, Task: func(time.Time) Task { return Task{} }}})
	if err != nil {
		t.Fatal(err)
	}
	l := &leader{
		q: q, cfg: ScheduleConfig{Ahead: time.Second, OnError: func(err error) { t.Error(err) }},
		entries: entries, passed: make(map[string]time.Time), told: make(map[string]bool),
	}
	if wait, err := l.round(t.Context()); err != nil || wait <= 0 || wait > 2*time.Second {
		t.Fatalf("with a tick in 3 s: wait %v, %v", wait, err)
	}
	last := now.Truncate(time.Minute).Add(-250 * time.Minute)
	server.HSet(q.keys.ticks(), "a", "s"+millisOf(last))
	for _, want := range []int{100, 200, 250} {
		wait, err := l.round(t.Context())
		infos, err2 := q.Ticks(t.Context())
		if err = errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		if got := int(infos[0].Last.Sub(last) / time.Minute); got != want || want < 250 && wait > time.Millisecond {
			t.Fatalf("%d ticks added, want %d; wait %v", got, want, wait)
		}
	}
}

func millisOf(at time.Time) string { return strconv.FormatInt(at.UnixMilli(), 10) }

// TestSchedule_EndsWithContext: an error of Lead that only says that the context
// has ended is not told, whether it names the cause or not.
func TestSchedule_EndsWithContext(t *testing.T) {
	t.Parallel()
	q := &Queue{}
	cause := errors.New("shutting down")
	for _, end := range []func(ctx context.Context) error{context.Context.Err, context.Cause} {
		ctx, cancel := context.WithCancelCause(t.Context())
		err := q.Schedule(ctx, nil, ScheduleConfig{
			OnError: func(err error) { t.Error(err) },
			Lead: func(ctx context.Context, _ func(context.Context) error) error {
				cancel(cause)
				return end(ctx)
			},
		})
		if err != nil {
			t.Error(err)
		}
	}
}
