package queue_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"flashsale/queue"
)

// attempts counts how often each attempt of each task was handled.
type attempts struct {
	mu   sync.Mutex
	runs map[string]map[int]int
}

func (a *attempts) add(tasks []queue.Leased) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.runs == nil {
		a.runs = make(map[string]map[int]int)
	}
	for _, task := range tasks {
		if a.runs[task.ID] == nil {
			a.runs[task.ID] = make(map[int]int)
		}
		a.runs[task.ID][task.Attempt]++
	}
}

// handle is a handler that counts its tasks.
func (a *attempts) handle(_ context.Context, tasks []queue.Leased) []error {
	a.add(tasks)
	return nil
}

// times is how often a task was handled.
func (a *attempts) times(id string) (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, runs := range a.runs[id] {
		n += runs
	}
	return n
}

// wantOnce fails unless this number of tasks was handled, each once.
func (a *attempts) wantOnce(t *testing.T, total int) {
	t.Helper()
	if n := a.distinct(); n != total {
		t.Errorf("%d of %d tasks were handled", n, total)
	}
	for id := range a.runs {
		if n := a.times(id); n != 1 {
			t.Errorf("%s was handled %d times", id, n)
		}
	}
}

func (a *attempts) distinct() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.runs)
}

// wantAll fails unless this number of tasks was handled, and no attempt twice.
func (a *attempts) wantAll(t *testing.T, total int) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.runs) != total {
		t.Errorf("%d of %d tasks were handled", len(a.runs), total)
	}
	for id, runs := range a.runs {
		for attempt, n := range runs {
			if n > 1 {
				t.Errorf("%s: attempt %d was handled %d times", id, attempt, n)
			}
		}
	}
}

// check fails unless every confirmed task was handled, no task that was never added, and no
// attempt twice. A task that was added again after an unknown outcome may be handled once
// per addition, because it may have been done in between.
func (a *attempts) check(t *testing.T, p *producer) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	again := 0
	for id, runs := range a.runs {
		if !p.sure[id] && !p.maybe[id] {
			t.Errorf("%s was handled and never added", id)
		}
		for attempt, n := range runs {
			if n > 1+p.repeated[id] {
				t.Errorf("%s, added %d times: attempt %d was handled %d times", id, 1+p.repeated[id], attempt, n)
			}
		}
		again += len(runs) - 1
	}
	lost := 0
	for id := range p.sure {
		if a.runs[id] == nil {
			lost++
		}
	}
	if lost > 0 {
		t.Errorf("%d of %d tasks whose adding was confirmed were never handled", lost, len(p.sure))
	}
	t.Logf("%d tasks added for sure, %d perhaps, %d handled, %d further attempts", len(p.sure), len(p.maybe), len(a.runs), again)
}

// onlyTimeouts is the OnError of a Run without faults: it allows only timeouts, which occur on a
// busy machine.
func onlyTimeouts(t *testing.T) func(error) {
	return func(err error) {
		var network net.Error
		if errors.Is(err, context.DeadlineExceeded) || errors.As(err, &network) && network.Timeout() {
			t.Log(err)
			return
		}
		t.Error(err)
	}
}

// producer adds tasks until end is called, and records which of them Redis has confirmed. It
// repeats every second call whose outcome is unknown.
type producer struct {
	q           *queue.Queue
	name        string
	onError     func(error)
	sure, maybe map[string]bool
	repeated    map[string]int // id -> number of repeated additions after an unknown outcome
	confirmed   atomic.Int64
	failures    atomic.Int64
	stop        chan struct{}
	ended       chan struct{}
}

// produce starts a producer. It waits while the queue is full, so that the queue's length
// bounds the load.
func produce(t *testing.T, q *queue.Queue, name string, onError func(error)) *producer {
	p := &producer{
		q: q, name: name, onError: onError, sure: make(map[string]bool), maybe: make(map[string]bool), repeated: make(map[string]int),
		stop: make(chan struct{}), ended: make(chan struct{}),
	}
	go func() {
		defer close(p.ended)
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-p.stop:
				return
			case <-t.Context().Done():
				return
			case <-tick.C:
			}
			tasks := make([]queue.Task, 5)
			for i := range tasks {
				tasks[i].ID = fmt.Sprintf("%s-%06d", name, 5*n+i)
			}
			p.add(t.Context(), tasks, tick.C)
		}
	}()
	return p
}

func (p *producer) add(ctx context.Context, tasks []queue.Task, pause <-chan time.Time) {
	unknown := false
	for len(tasks) > 0 && ctx.Err() == nil {
		limited, cancel := context.WithTimeout(ctx, 3*time.Second)
		status, err := p.q.Enqueue(limited, tasks...)
		cancel()
		var rest []queue.Task
		for i, s := range status {
			switch {
			case s == queue.StatusOK || s == queue.StatusDuplicate && unknown:
				p.sure[tasks[i].ID] = true
				p.confirmed.Add(1)
			case s == queue.StatusFull:
				rest = append(rest, tasks[i])
			case s == queue.StatusUnknown && p.failures.Load()%2 == 0:
				rest = append(rest, tasks[i])
				p.repeated[tasks[i].ID]++
			default:
				p.maybe[tasks[i].ID] = true
			}
		}
		if err != nil && !errors.Is(err, queue.ErrFull) {
			unknown = true
			p.onError(err)
			p.failures.Add(1)
		}
		if tasks = rest; len(tasks) > 0 {
			<-pause
		}
	}
}

// end stops the producer and waits for it. Only then may the maps be read.
func (p *producer) end() {
	close(p.stop)
	<-p.ended
}
