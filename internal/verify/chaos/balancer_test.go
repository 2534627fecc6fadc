//go:build chaos && unix

package chaos

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// healthEvery is the pause between two readiness checks. The balancer must notice that a
// process is stopping before the process closes its listener.
const healthEvery = 50 * time.Millisecond

// balancer selects the API processes to call as a load balancer does: those that report that
// they are ready.
type balancer struct {
	ready []atomic.Bool
	// elsewhere counts the calls whose first process refused the connection.
	elsewhere atomic.Int64
}

// newBalancer checks the processes until the test ends.
func newBalancer(t *testing.T, urls []string) *balancer {
	t.Helper()
	b := &balancer{ready: make([]atomic.Bool, len(urls))}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for i, url := range urls {
		b.ready[i].Store(true)
		all.Go(func() {
			tick := time.NewTicker(healthEvery)
			defer tick.Stop()
			for {
				b.ready[i].Store(healthy(ctx, client, url+"/readyz"))
				select {
				case <-tick.C:
				case <-ctx.Done():
					return
				}
			}
		})
	}
	t.Cleanup(func() {
		cancel()
		all.Wait()
	})
	return b
}

func healthy(ctx context.Context, client *http.Client, url string) bool {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return false
	}
	resp, err := client.Do(q)
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// connect opens a connection for one call, to the given process or to the next one that is
// ready. If a process refuses the connection, nothing was sent, and connect tries the others.
func (b *balancer) connect(ctx context.Context, c *caller, api int) (int, error) {
	n := len(c.targets)
	order := make([]int, 0, 2*n)
	for _, wanted := range []bool{true, false} {
		for i := range n {
			if at := (api + i) % n; b.ready[at].Load() == wanted {
				order = append(order, at)
			}
		}
	}
	var err error
	for i, at := range order {
		if i > 0 {
			b.elsewhere.Add(1)
		}
		if err = c.dial(ctx, at); !errors.Is(err, syscall.ECONNREFUSED) {
			return at, err
		}
	}
	return api, err
}
