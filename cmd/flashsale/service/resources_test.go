//go:build unix

package service

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// The node of a cluster that is shown is the one nearest to its limit.
func TestNodeMemory_Fuller(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		n, other nodeMemory
		want     bool
	}{
		"nearer to its limit":       {nodeMemory{50, 100}, nodeMemory{400, 1000}, true},
		"further from it":           {nodeMemory{400, 1000}, nodeMemory{50, 100}, false},
		"no limits, larger":         {nodeMemory{used: 2}, nodeMemory{used: 1}, true},
		"no limits, smaller":        {nodeMemory{used: 1}, nodeMemory{used: 2}, false},
		"only this one has a limit": {nodeMemory{1, 100}, nodeMemory{used: 1000}, true},
		"only the other has one":    {nodeMemory{used: 1000}, nodeMemory{1, 100}, false},
	} {
		if got := c.n.fuller(c.other); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// The memory of a single server and of a cluster can be read. Without a maxmemory, the limit is 0.
func TestFullestNode(t *testing.T) {
	t.Parallel()
	for name, connect := range map[string]func(testing.TB) redis.UniversalClient{
		"single":  func(t testing.TB) redis.UniversalClient { return redistest.Redis(t) },
		"cluster": func(t testing.TB) redis.UniversalClient { return redistest.Cluster(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, err := fullestNode(await.Context(t), connect(t))
			if err != nil || n.used <= 0 || n.limit != 0 {
				t.Errorf("%+v, %v", n, err)
			}
		})
	}
}
