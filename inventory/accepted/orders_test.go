package accepted

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/queue"
)

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
				s := newSale(t, rdb)
				order := s.accept(t, "u")
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
				var last Order
				if reader.name == "Find" {
					found, err := NewOrders(q).Find(await.Context(t), order)
					if err != nil {
						t.Fatal(err)
					}
					last = found[0]
				} else if err := NewOrders(q).Scan(await.Context(t), func(a Order) error { last = a; return nil }); err != nil {
					t.Fatal(err)
				}
				if !moved.Load() || last.OrderID != order || last.TaskID != singlePrefix+order {
					t.Errorf("found %+v, moved %v, want order %s in its own task", last, moved.Load(), order)
				}
			})
		})
	}
}
