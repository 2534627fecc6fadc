package accepted

import (
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/queue"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// sale adds orders to a queue as the purchase script does.
type sale struct {
	rdb   redis.UniversalClient
	queue *queue.Queue
}

func newSale(t testing.TB, rdb redis.UniversalClient) *sale {
	t.Helper()
	q, err := queue.New(rdb, queue.Config{Prefix: redistest.Prefix(t)})
	if err != nil {
		t.Fatal(err)
	}
	return &sale{rdb: rdb, queue: q}
}

// accept adds an order of a buyer, whose payload is the buyer's name, and returns its id.
func (s *sale) accept(t testing.TB, buyer string) string {
	t.Helper()
	return s.acceptAt(t, "*", buyer)
}

// acceptAt is accept with an id for the log's entry.
func (s *sale) acceptAt(t testing.TB, entry, buyer string) string {
	t.Helper()
	taskID, err := NewTaskID()
	if err != nil {
		t.Fatal(err)
	}
	id := string(AppendOrderID(nil, taskID, 1))
	task := queue.Task{ID: taskID, Type: TaskType, Payload: AppendLine([]byte(parcelHead+"7.8\n"), true, id, buyer)}
	if _, err := s.queue.Enqueue(await.Context(t), task); err != nil {
		t.Fatal(err)
	}
	if err := s.rdb.XAdd(await.Context(t), &redis.XAddArgs{
		Stream: LogKey(s.queue.Prefix()), ID: entry, Values: []any{recordField, AppendRecord(nil, buyer, id)},
	}).Err(); err != nil {
		t.Fatal(err)
	}
	return id
}

// queuedOf pages through a buyer's queued orders.
func queuedOf(t testing.TB, x *Index, buyer string, limit int) (ids []string) {
	t.Helper()
	for before := ""; ; {
		page := 0
		more, err := x.Orders(await.Context(t), buyer, before, limit, func(a Order) bool {
			if a.Payload != buyer {
				t.Errorf("order %s is %s's, not %s's", a.OrderID, a.Payload, buyer)
			}
			page++
			ids = append(ids, a.OrderID)
			return true
		})
		if err != nil {
			t.Fatal(err)
		}
		if page > limit {
			t.Errorf("%d orders on a page, limit %d", page, limit)
		}
		if more == "" {
			return ids
		}
		if before != "" && more >= before {
			t.Fatalf("page after %s goes on after %s", before, more)
		}
		before = more
	}
}

// wantQueued checks that the indexes find the buyer's orders, in the order of their purchases.
func wantQueued(t testing.TB, what string, buyer string, made []string, indexes ...*Index) {
	t.Helper()
	want := slices.Clone(made)
	slices.Reverse(want)
	for i, x := range indexes {
		for _, limit := range []int{1, 3, 100} {
			if got := queuedOf(t, x, buyer, limit); !slices.Equal(got, want) {
				t.Errorf("%s: index %d finds %v in pages of %d, want %v", what, i, got, limit, want)
			}
		}
	}
}

// finish completes so many tasks, as a worker does.
func (s *sale) finish(t testing.TB, n int) {
	t.Helper()
	f, err := s.queue.Dequeue(await.Context(t), n)
	if err != nil || len(f.Tasks) != n {
		t.Fatalf("%d tasks, %v, want %d", len(f.Tasks), err, n)
	}
	if _, err := s.queue.Ack(await.Context(t), f.Tasks...); err != nil {
		t.Fatal(err)
	}
}

// bury makes so many tasks dead letters.
func (s *sale) bury(t testing.TB, n int) {
	t.Helper()
	f, err := s.queue.Dequeue(await.Context(t), n)
	if err != nil || len(f.Tasks) != n {
		t.Fatalf("%d tasks, %v, want %d", len(f.Tasks), err, n)
	}
	for i := range f.Tasks {
		if _, err := s.queue.Reject(await.Context(t), queue.Rejection{Task: f.Tasks[i], Dead: true}); err != nil {
			t.Fatal(err)
		}
	}
}
