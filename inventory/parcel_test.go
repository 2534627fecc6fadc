package inventory

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/queue"
)

func TestOrdersOf(t *testing.T) {
	t.Parallel()
	single := func(id, task, payload string) []Accepted {
		return []Accepted{{OrderID: id, TaskID: task, Payload: payload}}
	}
	for _, c := range []struct {
		name, task, payload string
		want                []Accepted
	}{
		{"a parcel", "t", "p1\t7.8\na\tx\ty\nb\tz", []Accepted{
			{OrderID: "a", TaskID: "t", Payload: "x\ty", Stamp: "7.8"}, {OrderID: "b", TaskID: "t", Payload: "z", Stamp: "7.8"},
		}},
		{"without a stamp", "t", "p1\t\na\tx", []Accepted{{OrderID: "a", TaskID: "t", Payload: "x"}}},
		{"one order", "id", "2\tx", single("id", "id", "2\tx")},
		{"split off a parcel", "o:id", "2\tx", single("id", "o:id", "2\tx")},
		{"a line without an order", "t", "p1\t7.8\na\tx\nb", single("t", "t", "p1\t7.8\na\tx\nb")},
		{"no lines", "t", "p1\t7.8\n", single("t", "t", "p1\t7.8\n")},
		{"nothing", "t", "", single("t", "t", "")},
	} {
		if got := OrdersOf(c.task, []byte(c.payload)); !slices.Equal(got, c.want) {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
	a := Accepted{OrderID: "id", Payload: "2\tx", Stamp: "7.8"}
	if id, payload := SingleTask(a); id != "o:id" || string(payload) != "2\tx\t7.8" {
		t.Errorf("split off: %q %q", id, payload)
	}
}

// splitting is a client whose queue splits an order off its task after a command.
type splitting struct {
	after func(cmd redis.Cmder)
}

func (*splitting) DialHook(next redis.DialHook) redis.DialHook { return next }
func (*splitting) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
func (h *splitting) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		h.after(cmd)
		return err
	}
}

// TestOrders_Moved: an order is found although it moves to a task of its own meanwhile.
func TestOrders_Moved(t *testing.T) {
	t.Parallel()
	for _, reader := range []struct{ name, command string }{{"Find", "hmget"}, {"Scan", "hscan"}} {
		t.Run(reader.name, func(t *testing.T) {
			t.Parallel()
			redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
				s := newShop(t, rdb, open(10, 1), 0)
				v := s.inventory(t, Config{})
				r := s.request("u", "k", 1)
				mustBuy(t, v, r)
				client := redistest.Second(t, rdb)
				var moved atomic.Bool
				client.AddHook(&splitting{after: func(cmd redis.Cmder) {
					if cmd.Name() != reader.command || moved.Swap(true) {
						return
					}
					f, err := s.queue.Dequeue(context.Background(), 1)
					if err != nil || len(f.Tasks) != 1 {
						t.Errorf("dequeue: %+v, %v", f, err)
						return
					}
					id, payload := SingleTask(OrdersOf(f.Tasks[0].ID, f.Tasks[0].Payload)[0])
					done := queue.Completion{Task: f.Tasks[0], Split: []queue.Task{{ID: id, Payload: payload}}}
					if _, err := s.queue.Complete(context.Background(), done); err != nil {
						t.Error(err)
					}
				}})
				q, err := queue.New(client, queue.Config{Prefix: s.queue.Prefix()})
				if err != nil {
					t.Fatal(err)
				}
				var last Accepted
				if reader.name == "Find" {
					found, err := NewOrders(q).Find(await.Context(t), r.OrderID)
					if err != nil {
						t.Fatal(err)
					}
					last = found[0]
				} else if err := NewOrders(q).Scan(await.Context(t), func(a Accepted) error { last = a; return nil }); err != nil {
					t.Fatal(err)
				}
				if !moved.Load() || last.OrderID != r.OrderID || last.TaskID != singlePrefix+r.OrderID {
					t.Errorf("found %+v, moved %v, want order %s in its own task", last, moved.Load(), r.OrderID)
				}
			})
		})
	}
}
