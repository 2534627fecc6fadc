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

// wantPages reads a state page by page and compares the order.
func wantPages(t testing.TB, q *queue.Queue, state queue.State, want ...string) {
	t.Helper()
	for _, limit := range []int{1, 2, 512} {
		var got []string
		for {
			page, err := q.List(await.Context(t), state, len(got), limit)
			if err != nil {
				t.Fatal(err)
			}
			if len(page) > limit || len(page) < min(limit, len(want)-len(got)) {
				t.Fatalf("%s: a page of %d, want %d", state, len(page), limit)
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
		if !slices.Equal(got, want) {
			t.Fatalf("%s by %d: %v, want %v", state, limit, got, want)
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
		wantPages(t, q, queue.StateDead, "x1", "x3", "x2")

		// List and Get agree.
		for _, state := range []queue.State{queue.StateReady, queue.StateDelayed, queue.StateLeased, queue.StateDead} {
			for _, info := range list(t, q, state) {
				one := get(t, q, info.ID)
				if fmt.Sprintf("%+v", one) != fmt.Sprintf("%+v", info) {
					t.Errorf("List returns %+v, Get %+v", info, one)
				}
			}
		}
		if info := list(t, q, queue.StateDead)[0]; info.Reason != "of x1" || info.Attempt != 1 || info.At.UnixMilli() != 1002 {
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
		found, err := q.List(await.Context(t), queue.StateReady, 5, 512)
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
		state         queue.State
		offset, limit int
	}{
		"state": {"lost", 0, 1}, "no state": {"", 0, 1}, "offset": {queue.StateReady, -1, 1},
		"no limit": {queue.StateReady, 0, 0}, "limit": {queue.StateReady, 0, 513},
	} {
		if found, err := q.List(await.Context(t), tt.state, tt.offset, tt.limit); !errors.Is(err, queue.ErrConfig) || found != nil {
			t.Errorf("%s: %v, %v; want ErrConfig", name, found, err)
		}
	}
}

// TestQueue_DeadAfter pages through the dead letters while some are added and removed: each
// one that stays is listed once, even if several died in the same millisecond.
func TestQueue_DeadAfter(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		q := newQueue(t, rdb, queue.Config{})
		deadKey := q.EnqueueKeys()[0][:len(q.EnqueueKeys()[0])-len("ready")] + "dead"
		die := func(at int64, ids ...string) {
			t.Helper()
			for _, id := range ids {
				enqueue(t, q, queue.Task{ID: id, Payload: []byte("of " + id)})
				reject(t, q, queue.Rejection{Task: take(t, q, id)[0], Dead: true, Reason: "bad"})
				if err := rdb.ZAddXX(await.Context(t), deadKey, redis.Z{Score: float64(at), Member: id}).Err(); err != nil {
					t.Fatal(err)
				}
			}
		}
		die(1000, "a1", "a2", "a3")
		die(1001, "b1", "b2")
		die(2000, "c1")
		var place queue.DeadPlace
		next := func(by int64, limit int, want ...string) {
			t.Helper()
			page, err := q.DeadAfter(await.Context(t), place, time.UnixMilli(by), limit)
			if err != nil {
				t.Fatal(err)
			}
			if got := infoNames(page); !slices.Equal(got, want) {
				t.Errorf("behind %v: %v, want %v", place, got, want)
			}
			for _, info := range page {
				if info.State != queue.StateDead || info.Reason != "bad" || string(info.Payload) != "of "+info.ID {
					t.Errorf("letter %+v", info)
				}
				place = queue.DeadPlace{At: info.At, ID: info.ID}
			}
		}
		next(999, 9)
		next(1500, 2, "a1", "a2")
		deleteDead(t, q, "a1") // before the place
		next(1500, 1, "a3")
		runNow(t, q, "a3") // the place itself
		next(1500, 9, "b1", "b2")
		next(1500, 9)
		next(5000, 9, "c1")
		next(5000, 9)
		for _, limit := range []int{0, 513} {
			if _, err := q.DeadAfter(await.Context(t), place, time.Now(), limit); !errors.Is(err, queue.ErrConfig) {
				t.Errorf("limit %d: %v", limit, err)
			}
		}
	})
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
		l := take(t, q, "nil", binary)
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
