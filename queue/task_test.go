package queue_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/queue"
)

// oddities are strings that could break a format with separators.
var oddities = []string{
	"plain", ",", ";", "%", ":", " ", "+", "a,m1,t1,f;Lx", ",w1", "%2C%3B", "ünïcödé 日本", "nul\x00inside", "\xff\xfe", "\r\n", "(%d+)[.*]$",
}

// expire moves the end of a lease to the past.
func expire(t testing.TB, rdb redis.UniversalClient, q *queue.Queue, ids ...string) {
	t.Helper()
	for _, id := range ids {
		must(t, rdb.ZAdd(await.Context(t), q.EnqueueKeys()[2], redis.Z{Score: 1, Member: id}).Err())
	}
}

func list(t testing.TB, q *queue.Queue, state queue.State) []queue.TaskInfo {
	t.Helper()
	found, err := q.List(await.Context(t), queue.Query{State: state, Limit: 512})
	must(t, err)
	return found.Tasks
}

func dead(t testing.TB, q *queue.Queue) []queue.TaskInfo {
	t.Helper()
	return list(t, q, queue.StateDead)
}

// wantOptions checks one task in its state, by its id, in its state and by Dequeue.
func wantOptions(t testing.TB, q *queue.Queue, state queue.State, task queue.Task) {
	t.Helper()
	want := queue.Options{Type: task.Type, MaxAttempts: task.MaxAttempts, Timeout: task.Timeout}
	info := get(t, q, task.ID)
	if info.State != state || info.Options != want || info.Priority != task.Priority || string(info.Payload) != string(task.Payload) {
		t.Fatalf("Get: %+v, want %s and %+v", info, state, task)
	}
	found := list(t, q, state)
	if len(found) != 1 || found[0].ID != task.ID || found[0].Options != want || found[0].Priority != task.Priority {
		t.Fatalf("List: %+v, want %+v", found, task)
	}
}

func takeOptions(t testing.TB, q *queue.Queue, task queue.Task, attempt int) queue.Leased {
	t.Helper()
	l := take(t, q, task.ID)[0]
	want := queue.Options{Type: task.Type, MaxAttempts: task.MaxAttempts, Timeout: task.Timeout}
	if l.Options != want || l.Attempt != attempt || l.Priority != task.Priority {
		t.Fatalf("Dequeue: %+v, want attempt %d of %+v", l, attempt, task)
	}
	return l
}

// TestQueue_OptionsLast: a task keeps its options through every state.
func TestQueue_OptionsLast(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		for name, task := range map[string]queue.Task{
			"all":      {Type: "mail", MaxAttempts: 7, Timeout: 1500 * time.Millisecond, Priority: 3},
			"type":     {Type: "mail"},
			"attempts": {MaxAttempts: 9},
			"timeout":  {Timeout: 3 * time.Millisecond},
			"none":     {},
		} {
			q := newQueue(t, rdb, queue.Config{})
			task.ID, task.Payload = "id of "+name, []byte("body of "+name)
			task.Due = time.Now().Add(time.Hour)
			enqueue(t, q, task)
			wantOptions(t, q, queue.StateDelayed, task)
			// Due by hand.
			must(t, rdb.ZAdd(await.Context(t), q.EnqueueKeys()[1], redis.Z{Score: 1, Member: task.ID}).Err())
			takeOptions(t, q, task, 1)
			wantOptions(t, q, queue.StateLeased, task)
			expire(t, rdb, q, task.ID)
			l := takeOptions(t, q, task, 2)
			reject(t, q, queue.Rejection{Task: l})
			wantOptions(t, q, queue.StateReady, task)
			l = takeOptions(t, q, task, 3)
			reject(t, q, queue.Rejection{Task: l, Delay: time.Millisecond})
			wantOptions(t, q, queue.StateDelayed, task)
			l = takeOptions(t, q, task, 4)
			reject(t, q, queue.Rejection{Task: l, Dead: true, Reason: "enough"})
			wantOptions(t, q, queue.StateDead, task)
			runNow(t, q, task.ID)
			wantOptions(t, q, queue.StateReady, task)
			l = takeOptions(t, q, task, 1)
			reject(t, q, queue.Rejection{Task: l, Uncounted: true})
			status, err := q.Ack(await.Context(t), takeOptions(t, q, task, 1))
			wantStatus(t, status, err, queue.StatusOK)
			wantStats(t, q, queue.Stats{})
		}
	})
}

func TestQueue_OptionsOdd(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{MaxAttempts: 3})
		for i, odd := range oddities {
			task := queue.Task{ID: fmt.Sprintf("%d%s", i, odd), Type: odd, Payload: []byte(odd)}
			enqueue(t, q, task)
			wantOptions(t, q, queue.StateReady, task)
			l := takeOptions(t, q, task, 1)
			reject(t, q, queue.Rejection{Task: l, Reason: "odd: " + strings.ToValidUTF8(odd, "?")})
			l = takeOptions(t, q, task, 2)
			reject(t, q, queue.Rejection{Task: l, Dead: true, Reason: odd})
			wantOptions(t, q, queue.StateDead, task)
			deleteDead(t, q, task.ID)
		}
	})
}

// TestQueue_OptionsDamaged: an empty option, as a manual command may leave it, hides neither the task nor its other options.
func TestQueue_OptionsDamaged(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{})
		enqueue(t, q, queue.Task{ID: "a"})
		must(t, rdb.HSet(await.Context(t), q.EnqueueKeys()[4], "a", "0,2,,ymail,;R").Err())
		if info := get(t, q, "a"); info.Type != "mail" || info.Priority != 2 {
			t.Errorf("%+v", info)
		}
		if l := take(t, q, "a")[0]; l.Type != "mail" || l.Priority != 2 {
			t.Errorf("%+v", l)
		}
	})
}

// TestQueue_MaxAttemptsOfTask: the task's bound overrides the queue's, lower or higher.
func TestQueue_MaxAttemptsOfTask(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		for name, tt := range map[string]struct{ ofQueue, ofTask, want int }{
			"lower":  {5, 1, 1},
			"higher": {1, 3, 3},
			"none":   {2, 0, 2},
		} {
			for _, how := range []string{"failed", "expired"} {
				q := newQueue(t, rdb, queue.Config{MaxAttempts: tt.ofQueue})
				enqueue(t, q, queue.Task{ID: "a", MaxAttempts: tt.ofTask, Payload: []byte("pay")})
				for attempt := 1; attempt <= tt.want; attempt++ {
					l := take(t, q, "a")[0]
					if l.Attempt != attempt {
						t.Fatalf("%s, %s: attempt %d, want %d", name, how, l.Attempt, attempt)
					}
					if how == "failed" {
						reject(t, q, queue.Rejection{Task: l, Reason: "failed"})
					} else {
						expire(t, rdb, q, "a")
					}
				}
				if f := dequeue(t, q, 1); len(f.Tasks) != 0 {
					t.Fatalf("%s, %s: delivered once too often", name, how)
				}
				want := map[string]string{"failed": "failed", "expired": "lease expired"}[how]
				if info := get(t, q, "a"); info.State != queue.StateDead || info.Attempt != tt.want || info.Reason != want ||
					string(info.Payload) != "pay" || info.At.IsZero() {
					t.Fatalf("%s, %s: %+v", name, how, info)
				}
			}
		}
	})
}

func TestQueue_OptionsInvalid(t *testing.T) {
	t.Parallel()
	rdb := redistest.Embedded(t)
	q := newQueue(t, rdb, queue.Config{})
	enqueue(t, q, queue.Task{ID: "leased"})
	l := take(t, q, "leased")[0]
	for name, task := range map[string]queue.Task{
		"no id":             {},
		"long id":           {ID: strings.Repeat("a", 256)},
		"priority":          {ID: "bad", Priority: 10},
		"negative priority": {ID: "bad", Priority: -1},
		"type":              {Type: strings.Repeat("t", 65)},
		"attempts":          {MaxAttempts: 1_000_001},
		"negative attempts": {MaxAttempts: -1},
		"negative timeout":  {Timeout: -1},
		"due too late":      {Due: time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC)},
		"entries":           {Entries: 1<<16 + 1},
		"negative entries":  {Entries: -1},
	} {
		if task.ID == "" && name != "no id" {
			task.ID = "bad"
		}
		good := queue.Task{ID: "good"}
		if status, err := q.Enqueue(await.Context(t), good, task); !errors.Is(err, queue.ErrInvalidTask) || status[0] != queue.StatusUnknown {
			t.Errorf("%s: %v, %v; want ErrInvalidTask", name, status, err)
		}
		next := queue.Completion{Task: l, Next: []queue.Task{good, task}}
		if status, err := q.Complete(await.Context(t), next); !errors.Is(err, queue.ErrInvalidTask) || status[0] != queue.StatusUnknown {
			t.Errorf("complete, %s: %v, %v; want ErrInvalidTask", name, status, err)
		}
		wantStats(t, q, queue.Stats{Leased: 1})
		wantKeys(t, rdb, q.Prefix(), "body", "clock", "leased", "meta", "wake")
	}
	// The bounds themselves are allowed.
	enqueue(t, q, queue.Task{
		ID: "good", Type: strings.Repeat("\xff", 64), MaxAttempts: 1_000_000, Timeout: 1,
	})
	if info := get(t, q, "good"); info.Timeout != time.Millisecond || info.MaxAttempts != 1_000_000 {
		t.Fatalf("%+v, want a timeout rounded up to 1ms", info)
	}
}
