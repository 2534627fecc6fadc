package queue_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/queue"
)

// sell is a script as another package would compose it: it takes n units and adds a task
// for each, or does nothing if the stock or the room in the queue is insufficient.
var sell = redis.NewScript(queue.EnqueueLua + `
local n, ids, payloads = tonumber(ARGV[2]), {}, {}
for i = 1, n do
  ids[i], payloads[i] = ARGV[2 * i + 1], ARGV[2 * i + 2]
end
if queue_room(1, tonumber(ARGV[1])) < n then
  return 'full'
end
local known = queue_known(1, n, ids)
for i = 1, n do
  if known[i] then return 'duplicate' end
end
if tonumber(redis.call('GET', KEYS[1]) or '0') < n then
  return 'sold out'
end
local t = redis.call('TIME')
redis.call('DECRBY', KEYS[1], n)
queue_add(1, tonumber(t[1]) * 1000000 + tonumber(t[2]), n, ids, payloads)
return 'sold'
`)

func TestEnqueueLua(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx := await.Context(t)
		prefix := redistest.Prefix(t)
		q := newQueue(t, rdb, queue.Config{Prefix: prefix + "q:", MaxLength: 700})
		stock := prefix + "stock"
		must(t, rdb.Set(ctx, stock, 600, 0).Err())
		buy := func(tasks []queue.Task) string {
			args := []any{q.MaxLength(), len(tasks)}
			for _, task := range tasks {
				args = append(args, task.ID, task.Payload)
			}
			answer, err := sell.Run(ctx, rdb, append([]string{stock}, q.EnqueueKeys()...), args...).Text()
			must(t, err)
			return answer
		}
		tasks := numbered(512)
		if got := buy(tasks); got != "sold" {
			t.Fatal(got)
		}
		if got := buy(tasks[:3]); got != "duplicate" {
			t.Fatal(got)
		}
		more := make([]queue.Task, 88)
		for i := range more {
			more[i].ID = fmt.Sprintf("more %d", i)
		}
		if got := buy(more); got != "sold" {
			t.Fatal(got)
		}
		if got := buy([]queue.Task{{ID: "one more"}}); got != "sold out" {
			t.Fatal(got)
		}
		if got := buy(numbered(101)); got != "full" {
			t.Fatal(got)
		}
		if left, err := rdb.Get(ctx, stock).Int(); err != nil || left != 0 {
			t.Fatalf("stock %d, %v", left, err)
		}
		wantStats(t, q, queue.Stats{Ready: 600})
		var got []string
		for len(got) < 600 {
			f := dequeue(t, q, 512)
			got = append(got, names(f.Tasks)...)
		}
		want := idsOf(append(tasks, more...))
		if !slices.Equal(got, want) {
			t.Fatal("not in the order in which they were added")
		}
	})
}

func TestEnqueueLua_Wakes(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx := await.Context(t)
		prefix := redistest.Prefix(t)
		q := newQueue(t, rdb, queue.Config{Prefix: prefix + "q:"})
		must(t, rdb.Set(ctx, prefix+"stock", 1, 0).Err())
		woken := make(chan error, 1)
		go func() { woken <- q.Wait(ctx, 10*limit) }()
		answer, err := sell.Run(ctx, rdb, append([]string{prefix + "stock"}, q.EnqueueKeys()...),
			q.MaxLength(), 1, "a", "payload").Text()
		if err != nil || answer != "sold" {
			t.Fatal(answer, err)
		}
		// Without a wake-up, Wait would fail at the end of the test's context.
		must(t, <-woken)
		take(t, q, "a")
	})
}

func TestQueue_EnqueueKeysCopied(t *testing.T) {
	t.Parallel()
	q := newQueue(t, redistest.Embedded(t), queue.Config{Prefix: "fs:{p0}:q:"})
	keys := q.EnqueueKeys()
	want := []string{"ready", "delayed", "leased", "body", "meta", "clock", "wake", "counts"}
	for i := range want {
		want[i] = "fs:{p0}:q:" + want[i]
	}
	if !slices.Equal(keys, want) {
		t.Fatalf("%v, want %v", keys, want)
	}
	keys[0] = "changed"
	if !slices.Equal(q.EnqueueKeys(), want) {
		t.Fatal("the caller can change the queue's keys")
	}
}
