package lock

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
)

// replied is an error that Redis replied with.
type replied string

func (r replied) Error() string { return string(r) }
func (replied) RedisError()     {}

// Given a cluster that moves slots or elects a master, then a call is repeated until that is done or its
// context ends. Other replies, and those of a single Redis, are returned at once.
func TestNode_repeated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ended, cancel := context.WithCancel(t.Context())
		calls := 0
		if err := new(node).repeated(ended, func() error { calls++; cancel(); return io.EOF }); calls != 1 || !errors.Is(err, io.EOF) {
			t.Errorf("a lost reply and the end of the context: %d calls, %v", calls, err)
		}
		cluster, single := &node{cluster: new(redis.ClusterClient)}, new(node)
		for text, temporary := range map[replied]bool{
			"TRYAGAIN Multiple keys": true, "CLUSTERDOWN Hash slot not served": true, "MOVED 1 a:1": true, "ASK 1 a:1": true,
			"READONLY You can't write": true, "MASTERDOWN Link with MASTER is down": true, "WRONGTYPE Operation": false,
		} {
			for n, want := range map[*node]int{cluster: 20, single: 1} {
				if !temporary {
					want = 1
				}
				calls := 0
				err := n.repeated(t.Context(), func() error {
					if calls++; calls == 20 {
						return nil
					}
					return text
				})
				if calls != want || (err == nil) != (want == 20) {
					t.Errorf("%q: %d calls, %v; want %d calls", text, calls, err, want)
				}
			}
			ctx, cancel := context.WithCancel(t.Context())
			if err := cluster.repeated(ctx, func() error { cancel(); return text }); !errors.Is(err, text) {
				t.Errorf("%q and the end of the context: %v", text, err)
			}
		}
	})
}

// Given a cluster without a master that can be reached, then a renewal fails, and the lock is not lost.
func TestNode_extendAll_NoMaster(t *testing.T) {
	t.Parallel()

	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:0"}, MaxRedirects: -1})
	defer rdb.Close()
	n := newNode(rdb, slow)
	for _, e := range n.extendAll(await.Context(t), []*holding{{keys: *mustKeys(t, resource(t))}}, slow.TTL) {
		if e.err == nil {
			t.Errorf("renewed: %+v, want an error", e)
		}
	}
}

// Given a reply that acquire.lua does not send, then it is an error and not a lock.
func TestNode_granted_UnknownReply(t *testing.T) {
	t.Parallel()
	for _, reply := range []any{int64(1), []any{int64(1), int64(2)}, "no number"} {
		cmd := redis.NewCmd(t.Context())
		cmd.SetVal(reply)
		if r, err := granted(cmd); err == nil {
			t.Errorf("%v: %+v, want an error", reply, r)
		}
	}
}
