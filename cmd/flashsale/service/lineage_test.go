package service

import (
	"errors"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/cmd/flashsale/config"
	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/inventory"
)

// No command is sent on a new connection to the Redis of another database, and the process gets
// the error that ends it. A Redis without data and a node of a cluster that has no key of the
// service are used.
func TestLineageGuard_Connected(t *testing.T) {
	t.Parallel()
	g := newLineageGuard(&config.Settings{})
	lineage := "ours"
	g.lineage.Store(&lineage)
	for name, c := range map[string]struct {
		recorded string
		want     error
	}{"none": {"", nil}, "ours": {lineage, nil}, "another": {"another", inventory.ErrLineage}} {
		server := redistest.Real(t)
		o := redistest.Options(server.Addr())
		direct := redis.NewClient(o)
		guarded := *o
		guarded.OnConnect = g.connected
		rdb := redis.NewClient(&guarded)
		t.Cleanup(func() {
			if err := errors.Join(direct.Close(), rdb.Close()); err != nil {
				t.Error(err)
			}
		})
		ctx := await.Context(t)
		if c.recorded != "" {
			if err := inventory.CheckLineage(ctx, direct, c.recorded); err != nil {
				t.Fatal(err)
			}
		}
		if err := rdb.Incr(ctx, "n").Err(); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		sent := direct.Exists(ctx, "n").Val() == 1
		if sent != (c.want == nil) {
			t.Errorf("%s: sent %t", name, sent)
		}
	}
	if err := <-g.foreign; !errors.Is(err, inventory.ErrLineage) {
		t.Errorf("the process gets %v, want ErrLineage", err)
	}
	cluster := redistest.OwnCluster(t)
	for _, addr := range cluster.Addrs() {
		o := cluster.NodeOptions(addr)
		o.OnConnect = g.connected
		rdb := redis.NewClient(o)
		if err := errors.Join(rdb.Ping(await.Context(t)).Err(), rdb.Close()); err != nil {
			t.Errorf("a node of a cluster: %v", err)
		}
	}
}
