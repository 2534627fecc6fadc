package queue_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/longtest"
	"flashsale/internal/testing/redistest"
	"flashsale/queue"
)

// model is the expected state of the queue: the state and the lease of each task.
type model struct {
	t   *testing.T
	rdb *redis.Client
	q   *queue.Queue

	maxLength, maxAttempts int

	ready   []string // in order
	leased  map[string]queue.Leased
	dead    map[string]bool
	attempt map[string]int
	task    map[string]queue.Task
	paused  bool
	prefix  string
	stale   []queue.Leased // ended leases, which must never be accepted
	next    int

	processed, failed, died, given int64 // the counters of Stats
}

// TestQueue_Model drives all operations against the model.
func TestQueue_Model(t *testing.T) {
	t.Parallel()
	testModel(t)
}

func TestQueue_Model_Long(t *testing.T) {
	longtest.Only(t)
	t.Parallel()
	testModel(t)
}

func testModel(t *testing.T) {
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		rapid.Check(t, func(rt *rapid.T) {
			m := &model{
				t: t, rdb: rdb, maxLength: 12, maxAttempts: 3,
				leased: make(map[string]queue.Leased), dead: make(map[string]bool), attempt: make(map[string]int),
				task: make(map[string]queue.Task), prefix: redistest.Prefix(t),
			}
			m.q = newQueue(t, rdb, queue.Config{Prefix: m.prefix, MaxLength: m.maxLength, MaxAttempts: m.maxAttempts})
			rt.Repeat(map[string]func(*rapid.T){
				"":        m.check,
				"enqueue": m.enqueue,
				"dequeue": m.dequeue,
				"ack":     m.ack,
				"reject":  m.reject,
				"extend":  m.extend,
				"expire":  m.expire,
				"late":    m.late,
				"dead":    m.settleDead,

				"complete": m.complete,
				"cancel":   m.cancel,
				"pause":    m.pause,
				"verify":   m.verify,
			})
		})
	})
}

func (m *model) enqueue(rt *rapid.T) {
	tasks := m.draw(rt, rapid.IntRange(1, 5).Draw(rt, "n"))
	var want []queue.Status
	for _, task := range tasks {
		want = append(want, m.admit(task))
	}
	got, err := m.q.Enqueue(await.Context(m.t), tasks...)
	if errors.Is(err, queue.ErrFull) == slices.Contains(want, queue.StatusFull) {
		err = nil
	}
	if err != nil || !slices.Equal(got, want) {
		rt.Fatalf("enqueue %v: %v, %v; want %v", tasks, got, err, want)
	}
}

// draw makes tasks, some with an id that is already in the queue.
func (m *model) draw(rt *rapid.T, n int) []queue.Task {
	var tasks []queue.Task
	known := m.known()
	for range n {
		task := queue.Task{
			MaxAttempts: rapid.IntRange(0, 4).Draw(rt, "attempts"),
		}
		if len(known) > 0 && rapid.IntRange(0, 3).Draw(rt, "old") == 0 {
			task.ID, task.Payload = rapid.SampledFrom(known).Draw(rt, "id"), []byte("other")
		} else {
			m.next++
			task.ID = fmt.Sprintf("%d", m.next*7919%10007) // in no order by name
			task.Payload = []byte("of " + task.ID)
		}
		tasks = append(tasks, task)
	}
	return tasks
}

// admit adds a task to the model and returns its status.
func (m *model) admit(task queue.Task) queue.Status {
	if _, known := m.attempt[task.ID]; known {
		return queue.StatusDuplicate
	}
	if len(m.ready)+len(m.leased) >= m.maxLength {
		return queue.StatusFull
	}
	m.ready = append(m.ready, task.ID)
	m.attempt[task.ID], m.task[task.ID] = 0, task
	return queue.StatusOK
}

// bury moves a task to the dead ones.
func (m *model) bury(id string) {
	m.dead[id] = true
	m.died++
}

// finish ends a task that is acknowledged.
func (m *model) finish(l queue.Leased) {
	m.processed++
	delete(m.leased, l.ID)
	m.stale = append(m.stale, l)
	m.forget(l.ID)
}

// forget removes a task that is in no state.
func (m *model) forget(id string) {
	delete(m.attempt, id)
	delete(m.task, id)
}

func (m *model) spent(id string) bool {
	bound := m.maxAttempts
	if n := m.task[id].MaxAttempts; n > 0 {
		bound = n
	}
	return m.attempt[id] >= bound
}

// complete ends a task with 0 to 4 follow-up tasks, of which one may have its id.
func (m *model) complete(rt *rapid.T) {
	l := m.anyLease(rt)
	next := m.draw(rt, rapid.IntRange(0, 4).Draw(rt, "next"))
	for i := range next {
		if next[i].ID == l.ID {
			next[i].Payload = []byte("of " + l.ID)
		}
	}
	want := queue.StatusOK
	if m.maxLength-len(m.ready)-len(m.leased)+1 < len(next) {
		want = queue.StatusFull
	}
	got, err := m.q.Complete(await.Context(m.t), queue.Completion{Task: l, Next: next})
	if err != nil || !slices.Equal(got, []queue.Status{want}) {
		rt.Fatalf("complete: %v, %v; want %v", got, err, want)
	}
	if want == queue.StatusFull {
		return
	}
	m.finish(l)
	for _, task := range next {
		if m.admit(task) == queue.StatusFull {
			rt.Fatal("the model has no room")
		}
	}
}

func (m *model) cancel(rt *rapid.T) {
	known := m.known()
	if len(known) == 0 {
		rt.Skip("no task")
	}
	id := rapid.SampledFrom(known).Draw(rt, "id")
	want := queue.StateReady
	if l, leased := m.leased[id]; leased {
		want = queue.StateLeased
		m.stale = append(m.stale, l)
	} else if m.dead[id] {
		want = queue.StateDead
	}
	got, err := m.q.Cancel(await.Context(m.t), id, "unknown")
	if err != nil || !slices.Equal(got, []queue.State{want, ""}) {
		rt.Fatalf("cancel %s: %q, %v; want %q", id, got, err, want)
	}
	m.ready = slices.DeleteFunc(m.ready, func(other string) bool { return other == id })
	delete(m.leased, id)
	delete(m.dead, id)
	m.forget(id)
}

func (m *model) pause(rt *rapid.T) {
	change := m.q.Resume
	if m.paused = !m.paused; m.paused {
		change = m.q.Pause
	}
	if err := change(await.Context(m.t)); err != nil {
		rt.Fatal(err)
	}
}

func (m *model) verify(rt *rapid.T) {
	r, err := m.q.Verify(await.Context(m.t), rapid.Bool().Draw(rt, "repair"))
	if err != nil || !r.Clean() {
		rt.Fatalf("verify: %+v, %v", r, err)
	}
}

func (m *model) dequeue(rt *rapid.T) {
	n := rapid.IntRange(1, 6).Draw(rt, "n")
	if rapid.Bool().Draw(rt, "woken") { // as a worker woken by the token
		if err := m.rdb.Del(await.Context(m.t), m.q.EnqueueKeys()[6]).Err(); err != nil {
			rt.Fatal(err)
		}
	}
	f, err := m.q.Dequeue(await.Context(m.t), n)
	want := m.ready[:min(n, len(m.ready))]
	if m.paused {
		want = nil
	}
	if err != nil || !slices.Equal(names(f.Tasks), want) {
		rt.Fatalf("dequeue %d: %v, %v; want %v", n, names(f.Tasks), err, want)
	}
	m.ready = slices.Clone(m.ready[len(want):])
	for _, l := range f.Tasks {
		m.attempt[l.ID]++
		if l.Attempt != m.attempt[l.ID] || string(l.Payload) != "of "+l.ID || l.MaxAttempts != m.task[l.ID].MaxAttempts {
			rt.Fatalf("%+v, want attempt %d", l, m.attempt[l.ID])
		}
		m.leased[l.ID] = l
		m.given++
	}
	if f.More != m.more() {
		rt.Fatalf("More is %v with %d ready, %d leased", f.More, len(m.ready), len(m.leased))
	}
}

// more reports whether another dequeue would find a task.
func (m *model) more() bool { return len(m.ready) > 0 && !m.paused }

func (m *model) ack(rt *rapid.T) {
	l := m.anyLease(rt)
	m.settled(rt, "ack", func() ([]queue.Status, error) { return m.q.Ack(await.Context(m.t), l) })
	m.finish(l)
}

func (m *model) reject(rt *rapid.T) {
	l := m.anyLease(rt)
	r := queue.Rejection{
		Task: l, Uncounted: rapid.Bool().Draw(rt, "uncounted"), Dead: rapid.IntRange(0, 3).Draw(rt, "dead") == 0,
	}
	m.settled(rt, "reject", func() ([]queue.Status, error) { return m.q.Reject(await.Context(m.t), r) })
	delete(m.leased, l.ID)
	m.stale = append(m.stale, l)
	if r.Dead || !r.Uncounted {
		m.failed++
	}
	switch {
	case r.Dead, !r.Uncounted && m.spent(l.ID):
		m.bury(l.ID)
	case r.Uncounted:
		m.attempt[l.ID]--
		m.ready = append([]string{l.ID}, m.ready...)
	default:
		m.ready = append(m.ready, l.ID)
	}
}

func (m *model) extend(rt *rapid.T) {
	l := m.anyLease(rt)
	m.settled(rt, "extend", func() ([]queue.Status, error) { return m.q.Extend(await.Context(m.t), l) })
}

// expire moves the end of one lease to the past and dequeues.
func (m *model) expire(rt *rapid.T) {
	if m.paused {
		rt.Skip("a paused queue reclaims nothing")
	}
	l := m.anyLease(rt)
	if err := m.rdb.ZAdd(await.Context(m.t), m.q.EnqueueKeys()[2], redis.Z{Score: 1, Member: l.ID}).Err(); err != nil {
		rt.Fatal(err)
	}
	delete(m.leased, l.ID)
	m.stale = append(m.stale, l)
	m.failed++
	if m.spent(l.ID) {
		m.bury(l.ID)
	} else {
		m.ready = append([]string{l.ID}, m.ready...)
	}
	m.dequeue(rt)
}

// late uses a lease that ended.
func (m *model) late(rt *rapid.T) {
	if len(m.stale) == 0 {
		rt.Skip("no lease has ended")
	}
	l := rapid.SampledFrom(m.stale).Draw(rt, "lease")
	ctx := await.Context(m.t)
	for op, f := range map[string]func() ([]queue.Status, error){
		"ack":    func() ([]queue.Status, error) { return m.q.Ack(ctx, l) },
		"extend": func() ([]queue.Status, error) { return m.q.Extend(ctx, l) },
		"reject": func() ([]queue.Status, error) { return m.q.Reject(ctx, queue.Rejection{Task: l}) },
	} {
		if got, err := f(); err != nil || len(got) != 1 || got[0] != queue.StatusStale && got[0] != queue.StatusMissing {
			rt.Fatalf("late %s: %v, %v", op, got, err)
		}
	}
}

// settleDead retries or discards a dead task.
func (m *model) settleDead(rt *rapid.T) {
	if len(m.dead) == 0 {
		rt.Skip("nothing is dead")
	}
	id := rapid.SampledFrom(sorted(m.dead)).Draw(rt, "id")
	full := len(m.ready)+len(m.leased) >= m.maxLength
	if full || rapid.Bool().Draw(rt, "discard") {
		deleteDead(m.t, m.q, id)
		m.forget(id)
	} else {
		runNow(m.t, m.q, id)
		m.ready = append(m.ready, id)
		m.attempt[id] = 0
	}
	delete(m.dead, id)
}

// check compares the whole of Redis with the model.
func (m *model) check(rt *rapid.T) {
	ctx := await.Context(m.t)
	want := queue.Stats{Ready: len(m.ready), Leased: len(m.leased), Dead: len(m.dead), Paused: m.paused}
	if got := stats(m.t, m.q); got != want {
		rt.Fatalf("stats %+v, want %+v", got, want)
	}
	if s := counted(m.t, m.q); s.Processed != m.processed || s.Failed != m.failed || s.Died != m.died || s.Waits.Total() != m.given {
		rt.Fatalf("counted %+v, want %d processed, %d failed, %d dead, %d taken", s, m.processed, m.failed, m.died, m.given)
	}
	keys := m.q.EnqueueKeys()
	ready, err := m.rdb.ZRange(ctx, keys[0], 0, -1).Result()
	if err != nil || !slices.Equal(ready, m.ready) {
		rt.Fatalf("ready %v, %v; want %v", ready, err, m.ready)
	}
	bodies, err := m.rdb.HKeys(ctx, keys[3]).Result()
	slices.Sort(bodies)
	if err != nil || !slices.Equal(bodies, m.known()) {
		rt.Fatalf("bodies %v, %v; want %v", bodies, err, m.known())
	}
	metas, err := m.rdb.HKeys(ctx, keys[4]).Result()
	if err != nil {
		rt.Fatal(err)
	}
	for _, id := range metas {
		if !slices.Contains(bodies, id) {
			rt.Fatalf("meta of %s, which does not exist", id)
		}
	}
	if n, err := m.rdb.LLen(ctx, keys[6]).Result(); err != nil || n > 1 {
		rt.Fatalf("%d wake tokens, %v", n, err)
	} else if n == 0 && m.more() {
		rt.Fatalf("%d ready and no worker would be woken", len(m.ready))
	}
}

func (m *model) settled(rt *rapid.T, op string, f func() ([]queue.Status, error)) {
	if got, err := f(); err != nil || !slices.Equal(got, []queue.Status{queue.StatusOK}) {
		rt.Fatalf("%s: %v, %v", op, got, err)
	}
}

func (m *model) anyLease(rt *rapid.T) queue.Leased {
	if len(m.leased) == 0 {
		rt.Skip("nothing is leased")
	}
	return m.leased[rapid.SampledFrom(sorted(m.leased)).Draw(rt, "lease")]
}

func (m *model) known() []string { return sorted(m.attempt) }

func sorted[V any](set map[string]V) []string {
	var ids []string
	for id := range set {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}
