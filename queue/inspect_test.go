package queue_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
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
	for _, p := range []queue.Query{{Limit: 1}, {Limit: 2}, {Limit: 512}, {Limit: 2, Reverse: true}, {Limit: 512, Reverse: true}} {
		p.State = state
		var got []string
		for {
			page, err := q.List(await.Context(t), p)
			must(t, err)
			if n := len(page.Tasks); n != min(p.Limit, len(want)-len(got)) || page.More != len(want)-len(got)-n {
				t.Fatalf("%s: a page of %d, and %d more behind %d; want %d of %d", state, n, page.More, len(got), p.Limit, len(want))
			}
			for _, info := range page.Tasks {
				if info.State != state {
					t.Fatalf("%+v, want state %s", info, state)
				}
			}
			got = append(got, infoNames(page.Tasks)...)
			if p.After = page.Next; p.After == (queue.Place{}) {
				break
			}
		}
		if p.Reverse {
			slices.Reverse(got)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%s, %+v: %v, want %v", state, p, got, want)
		}
	}
	if none, err := q.List(await.Context(t), queue.Query{State: state}); err != nil || none.More != len(want) || len(none.Tasks) > 0 {
		t.Fatalf("%s: %+v, %v; want only the number %d", state, none, err, len(want))
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
			must(t, rdb.ZAddXX(await.Context(t), key, redis.Z{Score: score, Member: id}).Err())
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

		// A state and an id list the same.
		for _, state := range []queue.State{queue.StateReady, queue.StateDelayed, queue.StateLeased, queue.StateDead} {
			for _, info := range list(t, q, state) {
				one := get(t, q, info.ID)
				if fmt.Sprintf("%+v", one) != fmt.Sprintf("%+v", info) {
					t.Errorf("listed as %+v, by its id %+v", info, one)
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

func TestQueue_ListErrConfig(t *testing.T) {
	t.Parallel()
	q := newQueue(t, redistest.Embedded(t), queue.Config{})
	for name, s := range map[string]queue.Query{
		"state":    {State: "lost", Limit: 1},
		"limit":    {State: queue.StateReady, Limit: 513},
		"negative": {State: queue.StateReady, Limit: -1},
		"place":    {State: queue.StateReady, Limit: 1, After: queue.Place{ID: "x"}},
		"DiedBy":   {State: queue.StateLeased, Limit: 1, DiedBy: time.Now()},
		"reverse":  {Limit: 1, Reverse: true},
		"ids":      {IDs: []string{"a"}, State: queue.StateReady},
		"id limit": {IDs: []string{"a"}, Limit: 1},
		"fields":   {Limit: 1, Fields: queue.PayloadField + 1},
	} {
		if found, err := q.List(await.Context(t), s); !errors.Is(err, queue.ErrConfig) || found.Tasks != nil {
			t.Errorf("%s: %v, %v; want ErrConfig", name, found, err)
		}
	}
}

// TestQueue_ListIDs: List takes more ids than one call carries and keeps their order.
func TestQueue_ListIDs(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{Lease: never})
		tasks := numbered(1100)
		enqueue(t, q, tasks...)
		ids := idsOf(tasks)
		l := dequeue(t, q, 3).Tasks
		reject(t, q, queue.Rejection{Task: l[0], Dead: true})
		ack(t, q, l[1])
		found := lookUp(t, q, append(ids, "none")...)
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
		if none := lookUp(t, q); len(none) != 0 {
			t.Errorf("of no ids: %v", none)
		}
		page, err := q.List(await.Context(t), queue.Query{IDs: append(ids, "none"), Fields: queue.PayloadField})
		if err != nil || len(page.Tasks) != len(found) {
			t.Fatalf("%d payloads, %v", len(page.Tasks), err)
		}
		for i, p := range page.Tasks {
			if p.ID != found[i].ID || string(p.Payload) != string(found[i].Payload) || (p.Payload == nil) != (found[i].State == "") {
				t.Fatalf("payload %d: %q, want %q", i, p.Payload, found[i].Payload)
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
		page, err := q.List(await.Context(t), queue.Query{IDs: ids, Fields: queue.PayloadField})
		if err != nil || page.Tasks[0].Payload == nil || len(page.Tasks[0].Payload) != 0 || string(page.Tasks[1].Payload) != binary {
			t.Fatalf("payloads %+v, %v", page, err)
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

// TestQueue_ListAll: all tasks are listed, whatever state they are in.
func TestQueue_ListAll(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{Lease: never})
		tasks := numbered(2000)
		enqueue(t, q, tasks...)
		l := dequeue(t, q, 2).Tasks
		reject(t, q, queue.Rejection{Task: l[0], Dead: true, Reason: "bad"})
		want := map[string]queue.State{l[0].ID: queue.StateDead, l[1].ID: queue.StateLeased}
		for _, fields := range []queue.Fields{queue.AllFields, queue.BriefFields, queue.PayloadField} {
			seen := make(map[string]queue.TaskInfo)
			all, more := queue.Query{Limit: 100, Fields: fields}, true
			for more {
				page, err := q.List(await.Context(t), all)
				must(t, err)
				for _, info := range page.Tasks {
					seen[info.ID] = info
				}
				all.After, more = page.Next, page.Next != (queue.Place{})
			}
			if len(seen) != len(tasks) {
				t.Fatalf("%d tasks, want %d", len(seen), len(tasks))
			}
			for _, task := range tasks {
				info, state := seen[task.ID], want[task.ID]
				if state == "" {
					state = queue.StateReady
				}
				if fields != queue.PayloadField && info.State != state || fields != queue.BriefFields && string(info.Payload) != string(task.Payload) {
					t.Fatalf("%+v, want %+v %s", info, task, state)
				}
			}
		}
	})
}

// TestQueue_ListBytes: a page of a state ends before its payloads exceed 4 MiB, and has one task at least; by ids all are
// listed, in several steps. On a page larger than one step of the script, each task has its own fields. Without payloads
// no page is cut.
func TestQueue_ListBytes(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{})
		sizes := []int{3 << 20, 1<<20 + 1, 5 << 20, 10, 2 << 20, 2 << 20}
		tasks := numbered(len(sizes) + 200)
		ids := idsOf(tasks)
		for i := range tasks {
			tasks[i].Type = fmt.Sprint(i)
			if i < len(sizes) {
				tasks[i].Payload = []byte(strings.Repeat("x", sizes[i]))
			}
		}
		enqueue(t, q, tasks...)
		same := func(got queue.TaskInfo, want queue.Task) bool {
			return got.ID == want.ID && got.Type == want.Type && string(got.Payload) == string(want.Payload)
		}
		ready := queue.Query{State: queue.StateReady, Limit: 512}
		var lengths, left []int
		var got []queue.TaskInfo
		for len(lengths) < 10 {
			page, err := q.List(await.Context(t), ready)
			must(t, err)
			lengths, left = append(lengths, len(page.Tasks)), append(left, page.More)
			got = append(got, page.Tasks...)
			if ready.After = page.Next; page.More == 0 {
				break
			}
		}
		if !slices.Equal(lengths, []int{1, 1, 1, 2, 201}) || !slices.Equal(left, []int{205, 204, 203, 201, 0}) {
			t.Errorf("pages of %d tasks, %d left", lengths, left)
		}
		if !slices.EqualFunc(got, tasks, same) || !slices.EqualFunc(lookUp(t, q, ids...), tasks, same) {
			t.Error("the tasks of the pages, or those listed by ids, are not those that were added")
		}
		brief, err := q.List(await.Context(t), queue.Query{State: queue.StateReady, Limit: 512, Fields: queue.BriefFields})
		if err != nil || len(brief.Tasks) != len(ids) || brief.More != 0 {
			t.Errorf("%d brief tasks and %d more, %v", len(brief.Tasks), brief.More, err)
		}
	})
}
