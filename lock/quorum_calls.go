package lock

import (
	"context"
	"fmt"
	"time"
)

// lane identifies the calls for one token on one node. They are sent one after the other,
// because an acquire or renewal that runs after the release would keep the lock there for
// its TTL.
type lane struct {
	token string
	node  int
}

// vote is the reply of one node.
type vote[T any] struct {
	node   int
	answer T
	err    error
}

// poll calls the chosen nodes concurrently, each for at most limit, and returns their votes
// as they arrive. The calls continue when the caller stops reading. With a token they enter
// its lanes before poll returns.
func poll[T any](ctx context.Context, q *quorum, token string, chosen []int, limit time.Duration, ask func(ctx context.Context, n *node) (T, error)) <-chan vote[T] {
	votes := make(chan vote[T], len(chosen))
	for _, i := range chosen {
		turn, done := func() {}, func() {}
		if token != "" {
			turn, done = q.lineUp(token, i)
		}
		q.m.background(func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
			defer cancel()
			defer done()
			turn()
			answer, err := ask(ctx, q.nodes[i])
			if err != nil {
				err = fmt.Errorf("node %d: %w", i, err)
			}
			votes <- vote[T]{i, answer, err}
		})
	}
	return votes
}

// next waits for a vote. It returns false if ctx ends first.
func next[T any](ctx context.Context, votes <-chan vote[T]) (vote[T], bool) {
	select {
	case v := <-votes:
		return v, true
	case <-ctx.Done():
		return vote[T]{}, false
	}
}

// lineUp adds a call to the lane of a token on a node. turn waits until the earlier calls have
// returned, and done starts the next one.
func (q *quorum) lineUp(token string, i int) (turn, done func()) {
	l, own := lane{token, i}, make(chan struct{})
	q.mu.Lock()
	defer q.mu.Unlock()
	before := q.lanes[l]
	q.lanes[l] = own
	turn = func() {
		if before != nil {
			<-before // within that call's timeout
		}
	}
	done = func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		close(own)
		if q.lanes[l] == own {
			delete(q.lanes, l)
		}
	}
	return turn, done
}
