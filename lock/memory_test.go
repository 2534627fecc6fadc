package lock

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// Given a held lock, when Redis, or every node of a quorum, reaches its memory limit, then the lock is
// still renewed and can be released, and another acquire reports the cause. A renewal stores the lock's
// fencing token on nodes that did not have it before.
func TestLock_MemoryFull(t *testing.T) {
	t.Parallel()
	for name, size := range map[string]int{"One": 1, "Quorum": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, resource := await.Context(t), resource(t)
			var nodes quorumNodes
			for range size {
				nodes = append(nodes, quorumClient(t, redistest.Real(t).Addr(), nil))
			}
			var m *Manager
			if size > 1 {
				m = nodes.manager(t, quorumSlow)
			} else {
				m = newManager(t, nodes[0], slow)
			}
			l := mustAcquire(t, m, resource)
			nodes.awaitValue(t, resource, l.GuardValue())
			for _, rdb := range nodes {
				if size > 1 { // as if the node had granted the lock, but its fencing token had not been stored there
					must(t, rdb.Set(ctx, l.h.keys[keyLock], l.Token()+":1", redis.KeepTTL).Err())
					must(t, rdb.Set(ctx, l.h.keys[keyFence], "1", redis.KeepTTL).Err())
				}
				must(t, rdb.ConfigSet(ctx, "maxmemory", "1").Err())
			}
			before := l.ValidUntil()
			if renewNow(l); !l.ValidUntil().After(before) {
				t.Fatal("not renewed")
			}
			nodes.awaitValue(t, resource, l.GuardValue())
			for i, rdb := range nodes {
				if fence := quorumFence(t, rdb, resource); fence != l.Fence() {
					t.Errorf("node %d has the fencing token %d, want %d", i, fence, l.Fence())
				}
			}
			if _, err := m.TryAcquire(ctx, resource+"2"); err == nil || !strings.Contains(err.Error(), "OOM") {
				t.Errorf("acquire: %v, want the error of a full Redis", err)
			}
			mustRelease(t, l)
		})
	}
}
