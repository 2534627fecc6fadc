package lock

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Given calls for one token on one node, then each waits until those before it have ended, also if the
// first ends while two others wait, and nothing is left of them.
func TestQuorum_lineUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := &quorum{lanes: make(map[lane]chan struct{})}
		var began atomic.Int32
		var ends []func()
		for i := range 4 {
			if i == 2 {
				ends[0]()
			}
			turn, end := q.lineUp("token", 0)
			ends = append(ends, end)
			go func() {
				turn()
				began.Add(1)
			}()
		}
		for i, end := range ends[1:] {
			synctest.Wait()
			if n := began.Load(); int(n) != i+2 {
				t.Errorf("%d calls began when %d had ended", n, i+1)
			}
			end()
		}
		if len(q.lanes) != 0 {
			t.Errorf("%d lanes are left", len(q.lanes))
		}
	})
}

// Given a node that does not answer, then a call to it ends after its limit, and not with the caller's context; its
// error names the node.
func TestQuorum_poll_Limit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := &quorum{m: makeManager(slow), nodes: make([]*node, 2), lanes: make(map[lane]chan struct{})}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		began := time.Now()
		for _, token := range []string{"", "token"} {
			votes := poll(ended, q, token, []int{1}, time.Minute, func(ctx context.Context, _ *node) (bool, error) {
				select {
				case <-ctx.Done():
				case <-time.After(time.Hour):
				}
				return false, ctx.Err()
			})
			v := <-votes
			if took := time.Since(began); took != time.Minute || !errors.Is(v.err, context.DeadlineExceeded) || !strings.Contains(v.err.Error(), "node 1") {
				t.Errorf("token %q: %v after %s, want the end of a minute on node 1", token, v.err, took)
			}
			began = time.Now()
		}
	})
}
