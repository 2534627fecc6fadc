package queue

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/redistest"
)

// TestLeased_Settled: ending a lease marks all copies of the task, and only then.
func TestLeased_Settled(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		t.Cleanup(cancel)
		q, err := New(rdb, Config{Prefix: redistest.Prefix(t)})
		if err != nil {
			t.Fatal(err)
		}
		for name, tt := range map[string]struct {
			end  func(l Leased) ([]Status, error)
			want bool
		}{
			"ack":      {func(l Leased) ([]Status, error) { return q.Ack(ctx, l) }, true},
			"complete": {func(l Leased) ([]Status, error) { return q.Complete(ctx, Completion{Task: l}) }, true},
			"reject": {func(l Leased) ([]Status, error) {
				return q.Reject(ctx, Rejection{Task: l, Delay: time.Hour})
			}, true},
			"ack of a missing one": {func(l Leased) ([]Status, error) {
				if _, err := q.Cancel(ctx, l.ID); err != nil {
					return nil, err
				}
				return q.Ack(ctx, l)
			}, true},
			"reject of a missing one": {func(l Leased) ([]Status, error) {
				if _, err := q.Cancel(ctx, l.ID); err != nil {
					return nil, err
				}
				return q.Reject(ctx, Rejection{Task: l})
			}, true},
			"extend": {func(l Leased) ([]Status, error) { return q.Extend(ctx, l) }, false},
			"stale ack": {func(l Leased) ([]Status, error) {
				l.Token += "x"
				return q.Ack(ctx, l)
			}, false},
			"stale reject": {func(l Leased) ([]Status, error) {
				l.Token += "x"
				return q.Reject(ctx, Rejection{Task: l})
			}, false},
			"failed ack": {func(l Leased) ([]Status, error) {
				ended, end := context.WithCancel(ctx)
				end()
				if _, err := q.Ack(ended, l); err == nil {
					t.Error("acknowledged on an ended context")
				}
				return nil, nil
			}, false},
		} {
			if _, err := q.Enqueue(ctx, Task{ID: name}, Task{ID: name + " beside it"}); err != nil {
				t.Fatal(err)
			}
			f, err := q.Dequeue(ctx, 2)
			if err != nil || len(f.Tasks) != 2 {
				t.Fatalf("%+v, %v", f, err)
			}
			if status, err := tt.end(f.Tasks[0]); err != nil {
				t.Fatalf("%s: %v, %v", name, status, err)
			}
			if got := f.Tasks[0].settled(); got != tt.want {
				t.Errorf("%s: settled is %v, want %v", name, got, tt.want)
			}
			if f.Tasks[1].settled() {
				t.Errorf("%s: another task is settled", name)
			}
			// A task that was not returned by Dequeue has no hold.
			if _, err := q.Ack(ctx, Leased{ID: f.Tasks[1].ID, Token: f.Tasks[1].Token}); err != nil {
				t.Fatal(err)
			}
		}
	})
}
