package lock

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// Given a held lock, when Redis, or every node of a quorum, reaches its memory limit, then the lock is
// still renewed and can be released, and another acquire reports the cause.
func TestLock_MemoryFull(t *testing.T) {
	t.Parallel()
	for name, size := range map[string]int{"One": 1, "Quorum": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, resource := await.Context(t), resource(t)
			var clients []redis.UniversalClient
			for range size {
				clients = append(clients, quorumClient(t, redistest.Real(t).Addr(), nil))
			}
			cfg := Config{TTL: 6 * time.Second} // renewed every 2 s
			m, err := New(clients[0], cfg)
			if size > 1 {
				m, err = NewQuorum(clients, cfg)
			}
			must(t, err)
			t.Cleanup(func() { closeQuorum(t, m) })
			l := mustAcquire(t, m, resource)
			for _, rdb := range clients {
				await.True(t, "the lock on each node", func() bool { return rdb.Exists(ctx, l.h.keys[keyLock]).Val() == 1 })
				must(t, rdb.ConfigSet(ctx, "maxmemory", "1").Err())
			}
			// Two renewals: the first may have begun before the memory was full.
			for range 2 {
				before := l.ValidUntil()
				await.True(t, "it is renewed", func() bool { return l.ValidUntil().After(before) || l.Context().Err() != nil })
			}
			if err := l.Context().Err(); err != nil {
				t.Fatal("lost: ", err)
			}
			if _, err := m.TryAcquire(ctx, resource+"2"); err == nil || !strings.Contains(err.Error(), "OOM") {
				t.Errorf("acquire: %v, want the error of a full Redis", err)
			}
			mustRelease(t, l)
		})
	}
}
