package queue_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/queue"
)

// TestQueue_ConflictsWriteNothing: adding a task whose id is in the queue, in any state,
// writes nothing.
func TestQueue_ConflictsWriteNothing(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		q := newQueue(t, rdb, queue.Config{Lease: never})
		later := time.Now().Add(time.Hour)
		enqueue(t, q, queue.Task{ID: "dead"}, queue.Task{ID: "leased"})
		l := take(t, q, "dead", "leased")
		reject(t, q, queue.Rejection{Task: l[0], Dead: true})
		enqueue(t, q, queue.Task{ID: "ready"}, queue.Task{ID: "delayed", Due: later})
		before := content(t, rdb, q.Prefix())
		for _, state := range []string{"ready", "delayed", "leased", "dead"} {
			for _, task := range []queue.Task{{ID: state}, {ID: state, Due: later, Priority: 4, Payload: []byte("x")}} {
				status, err := q.Enqueue(await.Context(t), task)
				if err != nil || status[0] != queue.StatusDuplicate {
					t.Fatalf("a second %s: %v, %v; want a duplicate", state, status, err)
				}
				wantContent(t, rdb, q.Prefix(), before)
			}
		}
		// Others in the same call are added, each id once.
		status, err := q.Enqueue(await.Context(t), queue.Task{ID: "leased"}, queue.Task{ID: "new"}, queue.Task{ID: "new"})
		wantStatus(t, status, err, queue.StatusDuplicate, queue.StatusOK, queue.StatusDuplicate)
		wantStats(t, q, queue.Stats{Ready: 2, Delayed: 1, Leased: 1, Dead: 1})
	})
}

// TestQueue_FullWritesNothing: in a full queue, adding, completing with more than one
// follow-up task, retrying a dead letter and adding from another script are refused, and
// change no key.
func TestQueue_FullWritesNothing(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{MaxLength: 3, Lease: never})
		later := time.Now().Add(time.Hour)
		enqueue(t, q, queue.Task{ID: "dead"}, queue.Task{ID: "leased"})
		l := take(t, q, "dead", "leased")
		reject(t, q, queue.Rejection{Task: l[0], Dead: true})
		enqueue(t, q, queue.Task{ID: "ready"}, queue.Task{ID: "delayed", Due: later})
		stock := "stock" + q.Prefix()
		must(t, rdb.Set(await.Context(t), stock, 5, 0).Err())
		many := []queue.Task{
			{ID: "1"}, {ID: "2"}, {ID: "3", Due: later}, {ID: "4", Priority: 9},
		}
		before := content(t, rdb, q.Prefix())
		for name, refused := range map[string]func() bool{
			"enqueue": func() bool {
				status, err := q.Enqueue(await.Context(t), many...)
				return errors.Is(err, queue.ErrFull) && slices.Equal(status, slices.Repeat([]queue.Status{queue.StatusFull}, len(many)))
			},
			"complete": func() bool {
				status, err := q.Complete(await.Context(t), queue.Completion{Task: l[1], Next: many})
				return err == nil && slices.Equal(status, []queue.Status{queue.StatusFull})
			},
			"run now": func() bool {
				status, err := q.RunNow(await.Context(t), time.Time{}, "dead")
				return errors.Is(err, queue.ErrFull) && slices.Equal(status, []queue.Status{queue.StatusFull})
			},
			"script": func() bool {
				answer, err := sell.Run(await.Context(t), rdb, append([]string{stock}, q.EnqueueKeys()...), q.MaxLength(), 1, "5", "payload").Text()
				return err == nil && answer == "full"
			},
		} {
			if !refused() {
				t.Errorf("%s: not refused as full", name)
			}
			wantContent(t, rdb, q.Prefix(), before)
		}
		if left, err := rdb.Get(await.Context(t), stock).Int(); err != nil || left != 5 {
			t.Errorf("the script that was refused left a stock of %d, %v", left, err)
		}
		// With room for one, the first is written completely and the others not at all.
		ack(t, q, l[1])
		status, err := q.Enqueue(await.Context(t), many...)
		want := []queue.Status{queue.StatusOK, queue.StatusFull, queue.StatusFull, queue.StatusFull}
		if !errors.Is(err, queue.ErrFull) || !slices.Equal(status, want) {
			t.Fatalf("with room for one: %v, %v", status, err)
		}
		now := content(t, rdb, q.Prefix())
		for _, key := range []string{"delayed", "leased", "dead"} {
			if now[key] != before[key] && key != "leased" {
				t.Errorf("with room for one %s went from %s to %s", key, before[key], now[key])
			}
		}
		if bodies, err := rdb.HKeys(await.Context(t), q.Prefix()+"body").Result(); err != nil || len(bodies) != 4 {
			t.Errorf("bodies %v, %v", bodies, err)
		}
		wantStats(t, q, queue.Stats{Ready: 2, Delayed: 1, Dead: 1})
		wantClean(t, q)
	})
}

// TestQueue_BodyDeleted: payloads of tasks in every state are deleted by hand. Dequeuing makes the
// waiting ones dead letters with that reason, the other tasks run, and the queue is consistent
// afterwards. TestQueue_VerifyFinds has the repair.
func TestQueue_BodyDeleted(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		q := newQueue(t, rdb, queue.Config{Lease: never})
		enqueue(t, q, queue.Task{ID: "leased"}, queue.Task{ID: "worked on"}, queue.Task{ID: "dead"})
		l := take(t, q, "leased", "worked on", "dead")
		reject(t, q, queue.Rejection{Task: l[2], Dead: true, Reason: "bad"})
		enqueue(t, q, queue.Task{ID: "ready"}, queue.Task{ID: "well 1"}, queue.Task{ID: "delayed", Due: time.Now().Add(time.Hour), Priority: 2}, queue.Task{ID: "well 2"})
		must(t, rdb.HDel(await.Context(t), q.Prefix()+"body", "leased", "worked on", "dead", "ready", "delayed").Err())
		wantBodiless := []string{"delayed", "leased", "ready", "worked on"}
		if r := verify(t, q, false); !slices.Equal(r.Bodiless, wantBodiless) || len(r.Lost)+len(r.Doubled) > 0 {
			t.Fatalf("found %+v", r)
		}
		if status, err := q.Enqueue(await.Context(t), queue.Task{ID: "worked on"}); err != nil || status[0] != queue.StatusDuplicate {
			t.Errorf("a second task with that id: %v, %v; want a duplicate", status, err)
		}
		// A worker that has such a task may finish it.
		status, err := q.Ack(await.Context(t), l[1])
		wantStatus(t, status, err, queue.StatusOK)
		expire(t, rdb, q, "leased")
		moveAll(t, rdb, q.Prefix()+"delayed", 1)
		take(t, q, "well 1", "well 2")
		wantStats(t, q, queue.Stats{Leased: 2, Dead: 4})
		wantClean(t, q)
		got := make(map[string]string)
		for _, letter := range dead(t, q) {
			got[letter.ID] = letter.Reason
			if letter.Payload != nil {
				t.Errorf("%s has a body: %q", letter.ID, letter.Payload)
			}
		}
		want := map[string]string{"leased": "body missing", "ready": "body missing", "delayed": "body missing", "dead": "bad"}
		if !maps.Equal(got, want) {
			t.Errorf("dead letters %v, want %v", got, want)
		}
		// A retry does not restore the payload.
		runNow(t, q, "dead")
		if f := dequeue(t, q, 10); len(f.Tasks) != 0 {
			t.Errorf("took %v", names(f.Tasks))
		}
		if info := get(t, q, "dead"); info.State != queue.StateDead || info.Reason != "body missing" {
			t.Errorf("retried without a body: %+v", info)
		}
		wantClean(t, q)
	})
}

// TestQueue_KeyOfAnotherType: while one of the queue's keys has another type, a call succeeds or
// changes nothing. It succeeds if it does not need the key.
func TestQueue_KeyOfAnotherType(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx := await.Context(t)
		calls := map[string]struct {
			call     func(q *queue.Queue, l []queue.Leased) error
			needless []string // keys that the call does not need unless a task dies
		}{
			"enqueue": {func(q *queue.Queue, _ []queue.Leased) error {
				_, err := q.Enqueue(ctx, queue.Task{ID: "new"}, queue.Task{ID: "later", Due: time.Now().Add(time.Hour)})
				return err
			}, []string{"dead", "counts"}},
			"dequeue": {func(q *queue.Queue, _ []queue.Leased) error {
				f, err := q.Dequeue(ctx, 1)
				if err == nil && len(f.Tasks) != 1 {
					err = fmt.Errorf("took %v", names(f.Tasks))
				}
				return err
			}, []string{"dead", "clock", "counts"}},
			"discard": {func(q *queue.Queue, l []queue.Leased) error {
				_, err := q.Reject(ctx, queue.Rejection{Task: l[1]}, queue.Rejection{Task: l[0], Dead: true})
				return err
			}, []string{"clock", "counts"}},
			"retry at once": {func(q *queue.Queue, l []queue.Leased) error {
				_, err := q.Reject(ctx, queue.Rejection{Task: l[0]}, queue.Rejection{Task: l[1]})
				return err
			}, []string{"dead", "body", "clock", "counts"}},
			"retry later": {func(q *queue.Queue, l []queue.Leased) error {
				_, err := q.Reject(ctx, queue.Rejection{Task: l[0], Delay: time.Hour}, queue.Rejection{Task: l[1], Delay: time.Hour})
				return err
			}, []string{"dead", "body", "clock", "counts"}},
			"split": {func(q *queue.Queue, l []queue.Leased) error {
				_, err := q.Complete(ctx, queue.Completion{Task: l[1]}, queue.Completion{Task: l[0], Split: []queue.Task{{ID: "half"}}})
				return err
			}, []string{"dead", "counts"}},
			"then": {func(q *queue.Queue, l []queue.Leased) error {
				_, err := q.Complete(ctx, queue.Completion{Task: l[1]}, queue.Completion{Task: l[0], Next: []queue.Task{{ID: "next"}}})
				return err
			}, []string{"dead", "counts"}},
			"run now": {func(q *queue.Queue, _ []queue.Leased) error {
				_, err := q.RunNow(ctx, time.Time{}, "dead", "delayed")
				return err
			}, []string{"counts"}},
		}
		keys := []string{"ready", "delayed", "leased", "dead", "body", "meta", "clock", "wake", "counts"}
		test := func(name, key string, dying bool) {
			q := newQueue(t, rdb, queue.Config{MaxAttempts: 3, MaxDead: 1, Lease: never})
			last := 2
			if dying {
				last = 1
			}
			enqueue(t, q, queue.Task{ID: "dead"}, queue.Task{ID: "mine"}, queue.Task{ID: "expired", MaxAttempts: last})
			l := take(t, q, "dead", "mine", "expired")
			reject(t, q, queue.Rejection{Task: l[0], Dead: true})
			enqueue(t, q, queue.Task{ID: "ready"}, queue.Task{ID: "bodiless"}, queue.Task{ID: "delayed", Due: time.Now().Add(time.Hour)})
			must(t, rdb.HDel(ctx, q.Prefix()+"body", "bodiless").Err())
			expire(t, rdb, q, "expired")
			moveAll(t, rdb, q.Prefix()+"delayed", 1)
			before := content(t, rdb, q.Prefix())
			foreign := q.Prefix() + key
			kept := rdb.Rename(ctx, foreign, foreign+"kept").Err() == nil
			must(t, rdb.SAdd(ctx, foreign, "of another type").Err())
			err := calls[name].call(q, l[1:])
			must(t, rdb.Del(ctx, foreign).Err())
			if kept {
				must(t, rdb.Rename(ctx, foreign+"kept", foreign).Err())
			}
			if now := content(t, rdb, q.Prefix()); err != nil && !maps.Equal(now, before) {
				t.Errorf("%s without %s: %v, and %v became %v", name, key, err, before, now)
			}
			if err != nil && !dying && slices.Contains(calls[name].needless, key) {
				t.Errorf("%s without %s: %v, want success", name, key, err)
			}
		}
		for name := range calls {
			for _, key := range keys {
				test(name, key, true)
				test(name, key, false)
			}
		}
	})
}
