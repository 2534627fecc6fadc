package lock

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
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
