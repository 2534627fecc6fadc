package main

import (
	"container/heap"
	"context"
	"sync"
	"time"
)

// schedule hands out the requests when they are due: those of the plan, and retries. Idle
// workers wait here. It implements the open loop: if every connection is busy, a request
// is handed out late, and its latency counts from when it was due.
type schedule struct {
	start time.Time
	shots []shot

	// turn is held by the one worker that waits for the next due time, so that a due
	// request wakes one worker and not all. It is a channel of capacity one and not a
	// mutex, so that the context can end the wait for it.
	turn    chan struct{}
	changed chan struct{} // wakes the holder of turn: a retry came, or the end

	mu      sync.Mutex
	next    int // index of the next planned shot
	retries retryHeap
	open    int // shots without a final outcome
}

// ticket is the right to send one request once.
type ticket struct {
	shot    int
	attempt int           // 0 for the first
	due     time.Duration // of this attempt, after the start
}

func newSchedule(start time.Time, shots []shot) *schedule {
	return &schedule{start: start, shots: shots, turn: make(chan struct{}, 1), changed: make(chan struct{}, 1), open: len(shots)}
}

// take waits for the next due request. False: all have their outcome, or the context ended.
func (s *schedule) take(ctx context.Context) (ticket, bool) {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return ticket{}, false
	}
	defer func() { <-s.turn }()
	for ctx.Err() == nil {
		t, wait, over := s.pop()
		if over {
			return ticket{}, false
		}
		if wait <= 0 {
			return t, true
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-s.changed:
		case <-ctx.Done():
		}
		timer.Stop()
	}
	return ticket{}, false
}

// pop takes the earliest request if it is due, and otherwise says how long to wait.
func (s *schedule) pop() (t ticket, wait time.Duration, over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == 0 {
		return ticket{}, 0, true
	}
	now := time.Since(s.start)
	planned := s.next < len(s.shots)
	if len(s.retries) > 0 && (!planned || s.retries[0].due <= s.shots[s.next].due) {
		if wait = s.retries[0].due - now; wait <= 0 {
			t = heap.Pop(&s.retries).(ticket)
		}
		return t, wait, false
	}
	if !planned {
		// Everything is in flight; a retry or the end is signalled on changed.
		return t, time.Hour, false
	}
	if wait = s.shots[s.next].due - now; wait <= 0 {
		t = ticket{shot: s.next, due: s.shots[s.next].due}
		s.next++
	}
	return t, wait, false
}

// again puts a request back, to be sent once more at the given time after the start.
func (s *schedule) again(t ticket, due time.Duration) {
	s.mu.Lock()
	heap.Push(&s.retries, ticket{t.shot, t.attempt + 1, due})
	s.mu.Unlock()
	s.announce()
}

// settle notes that a request has its final outcome.
func (s *schedule) settle() {
	s.mu.Lock()
	s.open--
	over := s.open == 0
	s.mu.Unlock()
	if over {
		s.announce()
	}
}

func (s *schedule) announce() {
	select {
	case s.changed <- struct{}{}:
	default: // one announcement is waiting already, and one is enough
	}
}

// retryHeap orders retries by due time, for container/heap.
type retryHeap []ticket

func (h retryHeap) Len() int           { return len(h) }
func (h retryHeap) Less(i, j int) bool { return h[i].due < h[j].due }
func (h retryHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *retryHeap) Push(x any)        { *h = append(*h, x.(ticket)) }
func (h *retryHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}
