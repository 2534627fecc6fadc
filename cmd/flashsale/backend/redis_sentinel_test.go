package backend

import (
	"errors"
	"net"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/breaker"
	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// TestOpenRedis_FailoverEndsSubscriptions: a failover that leaves the former master running ends the subscriptions
// to it at once, and not when the Sentinels make it a replica.
func TestOpenRedis_FailoverEndsSubscriptions(t *testing.T) {
	t.Parallel()
	master := redistest.Real(t)
	master.Replica(t)
	sentinels := redistest.Sentinels(t, master, 1, redistest.SentinelConfig{})
	rdb, closers, err := OpenRedis("sentinel+redis://"+sentinels.Addrs()[0]+"?master_name="+redistest.SentinelMaster, breaker.New(breaker.Config{}), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, end := range closers {
			if err := end(); err != nil {
				t.Error(err)
			}
		}
	})
	ctx := await.Context(t)
	sub := rdb.Subscribe(ctx, "news")
	t.Cleanup(func() { _ = sub.Close() }) //nolint:errcheck // its connection is closed
	if _, err := sub.Receive(ctx); err != nil {
		t.Fatal(err)
	}
	s := redis.NewSentinelClient(redistest.Options(sentinels.Addrs()[0]))
	await.True(t, "the failover begins", func() bool { return s.Failover(ctx, redistest.SentinelMaster).Err() == nil })
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := sub.Receive(ctx)
		ended <- err
	}()
	await.True(t, "the client uses the new master", func() bool {
		return rdb.Set(ctx, "key", "value", 0).Err() == nil && len(ended) == 1
	})
	// A server that becomes a replica would close the connection itself, and that is io.EOF.
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("the subscription ended with %v", err)
	}
}
