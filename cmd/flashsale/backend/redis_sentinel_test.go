package backend

import (
	"context"
	"errors"
	"net"
	"testing"

	"github.com/redis/go-redis/v9"

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
	rdb := opened(t, "sentinel+redis://"+sentinels.Addrs()[0]+"?master_name="+redistest.SentinelMaster)
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

// addressed is a connection to an address.
type addressed struct {
	net.Conn
	addr   string
	closed bool
}

func (c *addressed) RemoteAddr() net.Addr { return &net.UnixAddr{Name: c.addr} }

func (c *addressed) Close() error {
	c.closed = true
	return nil
}

// TestOneMaster_SlowDial: a connection to the former master that takes longer than the first one to the new
// master is closed, and the new one stays.
func TestOneMaster_SlowDial(t *testing.T) {
	t.Parallel()
	m := &oneMaster{open: make(map[*masterConn]struct{})}
	conns := map[string]*addressed{"old": {addr: "old"}, "slow": {addr: "old"}, "new": {addr: "new"}}
	dial := func(name string, during func()) error {
		_, err := m.DialHook(func(context.Context, string, string) (net.Conn, error) {
			during()
			return conns[name], nil
		})(t.Context(), "tcp", "master")
		return err
	}
	none := func() {}
	if err := dial("old", none); err != nil {
		t.Fatal(err)
	}
	err := dial("slow", func() {
		if err := dial("new", none); err != nil {
			t.Error(err)
		}
	})
	if !errors.Is(err, errFormerMaster) {
		t.Errorf("the slow dial: %v, want %v", err, errFormerMaster)
	}
	for name, want := range map[string]bool{"old": true, "slow": true, "new": false} {
		if conns[name].closed != want {
			t.Errorf("%s closed: %v, want %v", name, conns[name].closed, want)
		}
	}
}
