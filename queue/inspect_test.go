package queue_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/queue"
)

func infoNames(tasks []queue.TaskInfo) []string {
	ids := make([]string, len(tasks))
	for i := range tasks {
		ids[i] = tasks[i].ID
	}
	return ids
}

// wantPages reads a state page by page, in both directions, and compares the order.
func wantPages(t testing.TB, q *queue.Queue, state queue.State, want ...string) {
	t.Helper()
	for _, p := range []queue.Page{{Limit: 1}, {Limit: 2}, {Limit: 512}, {Limit: 2, Reverse: true}, {Limit: 512, Reverse: true}} {
		var got []string
		for {
			p.Skip = len(got)
			page, err := q.List(await.Context(t), state, p)
			if err != nil {
				t.Fatal(err)
			}
			if len(page) > p.Limit || len(page) < min(p.Limit, len(want)-len(got)) {
				t.Fatalf("%s: a page of %d, want %d", state, len(page), p.Limit)
			}
			if len(page) == 0 {
				break
			}
			for _, info := range page {
				if info.State != state {
					t.Fatalf("%+v, want state %s", info, state)
				}
			}
			got = append(got, infoNames(page)...)
		}
		if p.Reverse {
			slices.Reverse(got)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%s, %+v: %v, want %v", state, p, got, want)
		}
	}
}

func TestQueue_List(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		q := newQueue(t, rdb, queue.Config{})
		for _, state := range []queue.State{queue.StateReady, queue.StateDelayed, queue.StateLeased, queue.StateDead} {
			wantPages(t, q, state)
		}
		// The test sets different times of death and ends of leases.
		at := func(key string, score float64, id string) {
			t.Helper()
			if err := rdb.ZAddXX(await.Context(t), key, redis.Z{Score: score, Member: id}).Err(); err != nil {
				t.Fatal(err)
			}
		}
		keys := q.EnqueueKeys()
		deadKey := keys[0][:len(keys[0])-len("ready")] + "dead"
		enqueue(t, q, queue.Task{ID: "x2"}, queue.Task{ID: "x3"}, queue.Task{ID: "x1"},
			queue.Task{ID: "l3"}, queue.Task{ID: "l1"}, queue.Task{ID: "l2"})
		for i, l := range take(t, q, "x2", "x3", "x1", "l3", "l1", "l2") {
			end := float64(time.Now().Add(time.Hour).UnixMilli())
			if i < 3 {
				reject(t, q, queue.Rejection{Task: l, Dead: true, Reason: "of " + l.ID})
				at(deadKey, 1000+float64(i), l.ID)
			} else {
				at(keys[2], end+float64(i), l.ID)
			}
		}
		now := time.Now()
		enqueue(t, q, queue.Task{ID: "r3", Payload: []byte("body")}, queue.Task{ID: "r1"}, queue.Task{ID: "r2", Priority: 1},
			queue.Task{ID: "d1", Due: now.Add(3 * time.Hour)}, queue.Task{ID: "d3", Due: now.Add(time.Hour)},
			queue.Task{ID: "d2", Due: now.Add(2 * time.Hour)})
		wantPages(t, q, queue.StateReady, "r2", "r3", "r1")
		wantPages(t, q, queue.StateDelayed, "d3", "d2", "d1")
		wantPages(t, q, queue.StateLeased, "l3", "l1", "l2")
		wantPages(t, q, queue.StateDead, "x2", "x3", "x1")

		// List and Get agree.
		for _, state := range []queue.State{queue.StateReady, queue.StateDelayed, queue.StateLeased, queue.StateDead} {
			for _, info := range list(t, q, state) {
				one := get(t, q, info.ID)
				if fmt.Sprintf("%+v", one) != fmt.Sprintf("%+v", info) {
					t.Errorf("List returns %+v, Get %+v", info, one)
				}
			}
		}
		if info := list(t, q, queue.StateDead)[2]; info.Reason != "of x1" || info.Attempt != 1 || info.At.UnixMilli() != 1002 {
			t.Errorf("dead: %+v", info)
		}
		if info := list(t, q, queue.StateDelayed)[0]; info.At.Before(now.Add(time.Hour)) || info.At.After(now.Add(time.Hour+2*time.Millisecond)) {
			t.Errorf("delayed: %+v, want due at %v", info, now.Add(time.Hour))
		}
		if info := list(t, q, queue.StateReady)[1]; string(info.Payload) != "body" {
			t.Errorf("ready: %+v", info)
		}
	})
}

// TestQueue_ListMany: on a page larger than one step of the script, each task has its own
// fields.
func TestQueue_ListMany(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{})
		tasks := numbered(520)
		for i := range tasks {
			tasks[i].Type = fmt.Sprint(i)
		}
		enqueue(t, q, tasks...)
		found, err := q.List(await.Context(t), queue.StateReady, queue.Page{Skip: 5, Limit: 512})
		if err != nil || len(found) != 512 {
			t.Fatalf("%d tasks, %v", len(found), err)
		}
		for i, info := range found {
			if want := tasks[i+5]; info.ID != want.ID || string(info.Payload) != string(want.Payload) || info.Type != want.Type {
				t.Fatalf("place %d: %+v, want %+v", i, info, want)
			}
		}
	})
}

func TestQueue_ListErrConfig(t *testing.T) {
	t.Parallel()
	q := newQueue(t, redistest.Embedded(t), queue.Config{})
	for name, tt := range map[string]struct {
		state queue.State
		page  queue.Page
	}{
		"state": {"lost", queue.Page{Limit: 1}}, "no state": {"", queue.Page{Limit: 1}},
		"skip": {queue.StateReady, queue.Page{Skip: -1, Limit: 1}}, "no limit": {queue.StateDead, queue.Page{}},
		"limit":  {queue.StateReady, queue.Page{Limit: 513}},
		"place":  {queue.StateReady, queue.Page{Limit: 1, After: queue.DeadPlace{ID: "x"}}},
		"DiedBy": {queue.StateLeased, queue.Page{Limit: 1, DiedBy: time.Now()}},
	} {
		if found, err := q.List(await.Context(t), tt.state, tt.page); !errors.Is(err, queue.ErrConfig) || found != nil {
			t.Errorf("%s: %v, %v; want ErrConfig", name, found, err)
		}
	}
}

// TestQueue_GetMany: Get takes more ids than one call carries and keeps their order.
func TestQueue_GetMany(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{Lease: never})
		tasks := numbered(1100)
		enqueue(t, q, tasks...)
		ids := make([]string, len(tasks), len(tasks)+1)
		for i := range tasks {
			ids[i] = tasks[i].ID
		}
		l := dequeue(t, q, 3).Tasks
		reject(t, q, queue.Rejection{Task: l[0], Dead: true})
		ack(t, q, l[1])
		found, err := q.Get(await.Context(t), append(ids, "none")...)
		if err != nil || len(found) != len(ids)+1 {
			t.Fatalf("%d answers, %v", len(found), err)
		}
		special := map[string]queue.State{l[0].ID: queue.StateDead, l[1].ID: "", l[2].ID: queue.StateLeased, "none": ""}
		for i, info := range found {
			want, there := special[info.ID]
			if !there {
				want = queue.StateReady
			}
			if want == "" && !info.At.IsZero() {
				t.Fatalf("%+v, want no time", info)
			}
			if i < len(ids) && (info.ID != ids[i] || want != "" && string(info.Payload) != string(tasks[i].Payload)) || info.State != want {
				t.Fatalf("answer %d: %+v, want it %q", i, info, want)
			}
		}
		if none, err := q.Get(await.Context(t)); err != nil || len(none) != 0 {
			t.Errorf("of no ids: %v, %v", none, err)
		}
		payloads, err := q.Payloads(await.Context(t), append(ids, "none")...)
		if err != nil || len(payloads) != len(found) {
			t.Fatalf("%d payloads, %v", len(payloads), err)
		}
		for i := range found {
			if string(payloads[i]) != string(found[i].Payload) || (payloads[i] == nil) != (found[i].State == "") {
				t.Fatalf("payload %d: %q, want %q", i, payloads[i], found[i].Payload)
			}
		}
	})
}

func TestQueue_PayloadEmpty(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{})
		binary := string([]byte{0, 1, 255, '\r', '\n', 0})
		enqueue(t, q, queue.Task{ID: "nil"}, queue.Task{ID: binary, Payload: []byte(binary)})
		ids := []string{"nil", binary}
		payloads, err := q.Payloads(await.Context(t), ids...)
		if err != nil || payloads[0] == nil || len(payloads[0]) != 0 || string(payloads[1]) != binary {
			t.Fatalf("payloads %q, %v", payloads, err)
		}
		if info := get(t, q, "nil"); info.Payload == nil || len(info.Payload) != 0 {
			t.Fatalf("%+v, want an empty payload", info)
		}
		l := take(t, q, ids...)
		if l[0].Payload == nil || len(l[0].Payload) != 0 || string(l[1].Payload) != binary {
			t.Fatalf("payloads %q and %q", l[0].Payload, l[1].Payload)
		}
	})
}

func TestQueue_Scan(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{})
		tasks := numbered(2000)
		enqueue(t, q, tasks...)
		seen := make(map[string]string)
		if err := q.Scan(await.Context(t), func(id string, payload []byte) error {
			seen[id] = string(payload)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		for _, task := range tasks {
			if seen[task.ID] != string(task.Payload) {
				t.Fatalf("%s has payload %q, want %q", task.ID, seen[task.ID], task.Payload)
			}
		}
		stop := fmt.Errorf("stop")
		if err := q.Scan(await.Context(t), func(string, []byte) error { return stop }); !errors.Is(err, stop) {
			t.Fatalf("scan goes on after %v", err)
		}
	})
}
