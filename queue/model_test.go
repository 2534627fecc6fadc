package queue_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"flashsale/internal/redistest"
	"flashsale/queue"
)

// model is the queue as it should be: which task is where, with which lease.
type model struct {
	t   *testing.T
	rdb *redis.Client
	q   *queue.Queue

	maxLength, maxAttempts int

	ready   []string // in order
	leased  map[string]queue.Leased
	dead    map[string]bool
	attempt map[string]int
	stale   []queue.Leased // leases that must never work again
	next    int
}

// TestQueue_Model drives all operations against the model.
func TestQueue_Model(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		rapid.Check(t, func(rt *rapid.T) {
			m := &model{
				t: t, rdb: rdb, maxLength: 12, maxAttempts: 3,
				leased: make(map[string]queue.Leased), dead: make(map[string]bool), attempt: make(map[string]int),
			}
			m.q = newQueue(t, rdb, queue.Config{MaxLength: m.maxLength, MaxAttempts: m.maxAttempts})
			rt.Repeat(map[string]func(*rapid.T){
				"":        m.check,
				"enqueue": m.enqueue,
				"dequeue": m.dequeue,
				"ack":     m.ack,
				"reject":  m.reject,
				"extend":  m.extend,
				"expire":  m.expire,
				"late":    m.late,
				"dead":    m.mend,
			})
		})
	})
}

func (m *model) enqueue(rt *rapid.T) {
	n := rapid.IntRange(1, 5).Draw(rt, "n")
	var tasks []queue.Task
	var want []queue.EnqueueStatus
	for range n {
		known := m.known()
		if len(known) > 0 && rapid.IntRange(0, 3).Draw(rt, "old") == 0 {
			tasks = append(tasks, queue.Task{ID: rapid.SampledFrom(known).Draw(rt, "id"), Payload: []byte("other")})
			want = append(want, queue.StatusDuplicate)
			continue
		}
		m.next++
		id := fmt.Sprintf("%d", m.next*7919%10007) // in no order by name
		tasks = append(tasks, queue.Task{ID: id, Payload: []byte("of " + id)})
		if len(m.ready)+len(m.leased) >= m.maxLength {
			want = append(want, queue.StatusFull)
			continue
		}
		want = append(want, queue.StatusOK)
		m.ready = append(m.ready, id)
		m.attempt[id] = 0
	}
	got, err := m.q.Enqueue(testContext(m.t), tasks...)
	if err != nil || !slices.Equal(got, want) {
		rt.Fatalf("enqueue %v: %v, %v; want %v", tasks, got, err, want)
	}
}

func (m *model) dequeue(rt *rapid.T) {
	n := rapid.IntRange(1, 6).Draw(rt, "n")
	f, err := m.q.Dequeue(testContext(m.t), n)
	want := m.ready[:min(n, len(m.ready))]
	if err != nil || !slices.Equal(names(f.Tasks), want) {
		rt.Fatalf("dequeue %d: %v, %v; want %v", n, names(f.Tasks), err, want)
	}
	m.ready = slices.Clone(m.ready[len(want):])
	if f.More != (len(m.ready) > 0) {
		rt.Fatalf("More is %v with %d ready", f.More, len(m.ready))
	}
	for _, l := range f.Tasks {
		m.attempt[l.ID]++
		if l.Attempt != m.attempt[l.ID] || string(l.Payload) != "of "+l.ID {
			rt.Fatalf("%+v, want attempt %d", l, m.attempt[l.ID])
		}
		m.leased[l.ID] = l
	}
}

func (m *model) ack(rt *rapid.T) {
	l := m.anyLease(rt)
	m.settled(rt, "ack", func() ([]queue.AckStatus, error) { return m.q.Ack(testContext(m.t), l) })
	delete(m.leased, l.ID)
	delete(m.attempt, l.ID)
	m.stale = append(m.stale, l)
}

func (m *model) reject(rt *rapid.T) {
	l := m.anyLease(rt)
	r := queue.Rejection{
		Task: l, Uncounted: rapid.Bool().Draw(rt, "uncounted"), Dead: rapid.IntRange(0, 3).Draw(rt, "dead") == 0,
	}
	m.settled(rt, "reject", func() ([]queue.AckStatus, error) { return m.q.Reject(testContext(m.t), r) })
	delete(m.leased, l.ID)
	m.stale = append(m.stale, l)
	switch {
	case r.Dead, !r.Uncounted && m.attempt[l.ID] >= m.maxAttempts:
		m.dead[l.ID] = true
	case r.Uncounted:
		m.attempt[l.ID]--
		m.ready = append([]string{l.ID}, m.ready...)
	default:
		m.ready = append(m.ready, l.ID)
	}
}

func (m *model) extend(rt *rapid.T) {
	l := m.anyLease(rt)
	m.settled(rt, "extend", func() ([]queue.AckStatus, error) { return m.q.Extend(testContext(m.t), l) })
}

// expire moves one lease's end to the past and has somebody dequeue.
func (m *model) expire(rt *rapid.T) {
	l := m.anyLease(rt)
	if err := m.rdb.ZAdd(testContext(m.t), m.q.EnqueueKeys()[2], redis.Z{Score: 1, Member: l.ID}).Err(); err != nil {
		rt.Fatal(err)
	}
	delete(m.leased, l.ID)
	m.stale = append(m.stale, l)
	if m.attempt[l.ID] >= m.maxAttempts {
		m.dead[l.ID] = true
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
	ctx := testContext(m.t)
	for op, f := range map[string]func() ([]queue.AckStatus, error){
		"ack":    func() ([]queue.AckStatus, error) { return m.q.Ack(ctx, l) },
		"extend": func() ([]queue.AckStatus, error) { return m.q.Extend(ctx, l) },
		"reject": func() ([]queue.AckStatus, error) { return m.q.Reject(ctx, queue.Rejection{Task: l}) },
	} {
		if got, err := f(); err != nil || len(got) != 1 || got[0] != queue.Stale && got[0] != queue.Missing {
			rt.Fatalf("late %s: %v, %v", op, got, err)
		}
	}
}

// mend retries or discards a dead task.
func (m *model) mend(rt *rapid.T) {
	if len(m.dead) == 0 {
		rt.Skip("nothing is dead")
	}
	id := rapid.SampledFrom(sorted(m.dead)).Draw(rt, "id")
	full := len(m.ready)+len(m.leased) >= m.maxLength
	if full || rapid.Bool().Draw(rt, "discard") {
		if err := m.q.Discard(testContext(m.t), id); err != nil {
			rt.Fatal(err)
		}
		delete(m.attempt, id)
	} else {
		if err := m.q.Retry(testContext(m.t), id); err != nil {
			rt.Fatal(err)
		}
		m.ready = append(m.ready, id)
		m.attempt[id] = 0
	}
	delete(m.dead, id)
}

// check compares the whole of Redis with the model.
func (m *model) check(rt *rapid.T) {
	ctx := testContext(m.t)
	want := queue.Stats{Ready: len(m.ready), Leased: len(m.leased), Dead: len(m.dead)}
	if got := stats(m.t, m.q); got != want {
		rt.Fatalf("stats %+v, want %+v", got, want)
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
	} else if n == 0 && len(m.ready) > 0 {
		rt.Fatalf("%d ready and nobody would be woken", len(m.ready))
	}
}

func (m *model) settled(rt *rapid.T, op string, f func() ([]queue.AckStatus, error)) {
	if got, err := f(); err != nil || !slices.Equal(got, []queue.AckStatus{queue.Done}) {
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
