package queue_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/longtest"
	"flashsale/internal/testing/redistest"
	"flashsale/queue"
)

func TestMain(m *testing.M) {
	// Most tests spend most of their time waiting. The command line overrides this.
	if err := flag.Set("test.parallel", strconv.Itoa(8*runtime.GOMAXPROCS(0))); err != nil {
		panic(err)
	}
	longtest.Checks(10)
	queue.RaiseLimits()
	redistest.Main(m)
}

// limit is how long a test waits for an event that should be immediate.
const limit = 5 * time.Minute

// must ends the test if a step that it needs fails.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantErr fails the test unless err is this one.
func wantErr(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%v, want %v", err, want)
	}
}

// closeAtEnd closes a client when the test ends.
func closeAtEnd(t testing.TB, rdb *redis.Client) {
	t.Helper()
	t.Cleanup(func() {
		if err := rdb.Close(); err != nil {
			t.Error(err)
		}
	})
}

// succeed is a handler that does nothing.
func succeed(context.Context, []queue.Leased) []error { return nil }

// sendIDs is a handler that only passes on the ids of its tasks.
func sendIDs(to chan<- string) queue.BatchHandler {
	return func(_ context.Context, tasks []queue.Leased) []error {
		for i := range tasks {
			to <- tasks[i].ID
		}
		return nil
	}
}

// Three ways of dealing with the errors of a Run.
func ignore(error)                           {}
func failOn(t testing.TB) func(error)        { return func(err error) { t.Error(err) } }
func sendErrors(to chan<- error) func(error) { return func(err error) { to <- err } }

// collect closes a channel and returns what was in it.
func collect[T any](from chan T) (all []T) {
	close(from)
	for v := range from {
		all = append(all, v)
	}
	return all
}

// newQueue returns a queue whose leases do not end during the test, unless it sets them.
func newQueue(t testing.TB, rdb redis.UniversalClient, cfg queue.Config) *queue.Queue {
	t.Helper()
	if cfg.Lease == 0 {
		cfg.Lease = never
	}
	if cfg.Prefix == "" {
		cfg.Prefix = redistest.Prefix(t)
	}
	q, err := queue.New(rdb, cfg)
	must(t, err)
	return q
}

func numbered(n int) []queue.Task {
	tasks := make([]queue.Task, n)
	for i := range tasks {
		// Descending names, so that no accidental order by name passes for the order of arrival.
		tasks[i] = queue.Task{ID: fmt.Sprintf("t%06d", n-i), Payload: fmt.Appendf(nil, "payload %d", i)}
	}
	return tasks
}

func enqueue(t testing.TB, q *queue.Queue, tasks ...queue.Task) {
	t.Helper()
	status, err := q.Enqueue(await.Context(t), tasks...)
	must(t, err)
	for i, s := range status {
		if s != queue.StatusOK {
			t.Fatalf("enqueue %s: %v", tasks[i].ID, s)
		}
	}
}

func dequeue(t testing.TB, q *queue.Queue, n int) queue.Fetched {
	t.Helper()
	f, err := q.Dequeue(await.Context(t), n)
	must(t, err)
	return f
}

// take dequeues exactly the given ids, in that order, and waits for them if necessary.
func take(t testing.TB, q *queue.Queue, ids ...string) []queue.Leased {
	t.Helper()
	ctx := await.Context(t)
	var got []queue.Leased
	for len(got) < len(ids) {
		f, err := q.Dequeue(ctx, len(ids)-len(got))
		if err != nil {
			t.Fatalf("took %v, want %v: %v", names(got), ids, err)
		}
		got = append(got, f.Tasks...)
		if len(f.Tasks) > 0 || f.More {
			continue
		}
		wait := limit
		if f.Next >= 0 {
			wait = f.Next
		}
		if err := q.Wait(ctx, wait); err != nil {
			t.Fatalf("took %v, want %v: %v", names(got), ids, err)
		}
	}
	if !slices.Equal(names(got), ids) {
		t.Fatalf("took %v, want %v", names(got), ids)
	}
	return got
}

func idsOf(tasks []queue.Task) []string {
	ids := make([]string, len(tasks))
	for i := range tasks {
		ids[i] = tasks[i].ID
	}
	return ids
}

func names(tasks []queue.Leased) []string {
	ids := make([]string, len(tasks))
	for i := range tasks {
		ids[i] = tasks[i].ID
	}
	return ids
}

func wantStatus(t testing.TB, got []queue.Status, err error, want ...queue.Status) {
	t.Helper()
	must(t, err)
	if !slices.Equal(got, want) {
		t.Fatalf("statuses %v, want %v", got, want)
	}
}

// wantAll fails unless each of the statuses is this one.
func wantAll(t testing.TB, got []queue.Status, want queue.Status) {
	t.Helper()
	wantStatus(t, got, nil, slices.Repeat([]queue.Status{want}, len(got))...)
}

func ack(t testing.TB, q *queue.Queue, tasks ...queue.Leased) []queue.Status {
	t.Helper()
	status, err := q.Ack(await.Context(t), tasks...)
	must(t, err)
	return status
}

func reject(t testing.TB, q *queue.Queue, r ...queue.Rejection) {
	t.Helper()
	status, err := q.Reject(await.Context(t), r...)
	must(t, err)
	wantAll(t, status, queue.StatusOK)
}

// buryAll makes all ready tasks dead letters, and returns their ids in the order of the queue.
func buryAll(t testing.TB, q *queue.Queue) (ids []string) {
	t.Helper()
	for f := dequeue(t, q, 512); len(f.Tasks) > 0; f = dequeue(t, q, 512) {
		var back []queue.Rejection
		for _, l := range f.Tasks {
			back = append(back, queue.Rejection{Task: l, Dead: true})
		}
		reject(t, q, back...)
		ids = append(ids, names(f.Tasks)...)
	}
	return ids
}

// lookUp lists tasks by their ids.
func lookUp(t testing.TB, q *queue.Queue, ids ...string) []queue.TaskInfo {
	t.Helper()
	page, err := q.List(await.Context(t), queue.Query{IDs: ids})
	if err != nil || len(page.Tasks) != len(ids) || page.More != 0 || page.Next != (queue.Place{}) {
		t.Fatalf("list %d ids: %d tasks, %d more, %v", len(ids), len(page.Tasks), page.More, err)
	}
	return page.Tasks
}

func get(t testing.TB, q *queue.Queue, id string) queue.TaskInfo {
	t.Helper()
	info := lookUp(t, q, id)[0]
	if info.State == "" {
		t.Fatalf("get %s: %+v", id, info)
	}
	return info
}

func wantGone(t testing.TB, q *queue.Queue, id string) {
	t.Helper()
	if info := lookUp(t, q, id)[0]; info.State != "" {
		t.Fatalf("task %s: %+v; want none", id, info)
	}
}

// stats returns the number of tasks per state, without the counters.
func stats(t testing.TB, q *queue.Queue) queue.Stats {
	t.Helper()
	s := counted(t, q)
	return queue.Stats{Ready: s.Ready, Delayed: s.Delayed, Leased: s.Leased, Dead: s.Dead, Paused: s.Paused}
}

func counted(t testing.TB, q *queue.Queue) queue.Stats {
	t.Helper()
	s, err := q.Stats(await.Context(t))
	must(t, err)
	return s
}

func wantStats(t testing.TB, q *queue.Queue, want queue.Stats) {
	t.Helper()
	if got := stats(t, q); got != want {
		t.Fatalf("stats %+v, want %+v", got, want)
	}
}

// awaitStats waits for these numbers of tasks per state.
func awaitStats(t testing.TB, q *queue.Queue, want queue.Stats) {
	t.Helper()
	waitFor(t, func() bool { return stats(t, q) == want })
}

// wantKeys fails unless exactly these keys of the queue exist, apart from the counters.
func wantKeys(t testing.TB, rdb *redis.Client, prefix string, want ...string) {
	t.Helper()
	got, err := rdb.Keys(await.Context(t), prefix+"*").Result()
	must(t, err)
	for i := range got {
		got[i] = got[i][len(prefix):]
	}
	got = slices.DeleteFunc(got, func(name string) bool { return name == "counts" })
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Fatalf("keys %v, want %v", got, want)
	}
}

// serverTime is the server's clock.
func serverTime(t testing.TB, rdb redis.UniversalClient) time.Time {
	t.Helper()
	now, err := rdb.Time(await.Context(t)).Result()
	must(t, err)
	return now
}

func runNow(t testing.TB, q *queue.Queue, ids ...string) {
	t.Helper()
	status, err := q.RunNow(await.Context(t), time.Time{}, ids...)
	must(t, err)
	wantAll(t, status, queue.StatusOK)
}

func deleteDead(t testing.TB, q *queue.Queue, ids ...string) {
	t.Helper()
	status, err := q.DeleteDead(await.Context(t), ids...)
	must(t, err)
	wantAll(t, status, queue.StatusOK)
}
