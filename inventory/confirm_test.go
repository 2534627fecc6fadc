package inventory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// TestInventory_ConfirmReplicas: a purchase is accepted once the replica has it. While the
// replica does not answer, the outcome is unknown; the units are taken once, and a repeat gets
// the same order.
func TestInventory_ConfirmReplicas(t *testing.T) {
	t.Parallel()
	server := redistest.Real(t)
	replica := server.Replica(t)
	rdb := redis.NewClient(redistest.Options(server.Addr()))
	t.Cleanup(func() {
		if err := rdb.Close(); err != nil {
			t.Error(err)
		}
	})
	s := newShop(t, rdb, open(10, 1), 0)
	v := s.inventory(t, Config{ConfirmReplicas: 1})
	hasty := s.inventory(t, Config{ConfirmReplicas: 1, Patience: 2 * confirmLimit})
	mustBuy(t, v, s.request("a", "k", 1))
	if err := replica.Pause(); err != nil {
		t.Fatal(err)
	}
	r := s.request("b", "k", 1)
	if o := buy(t, hasty, r); !errors.Is(o.Err, ErrUnavailable) {
		t.Errorf("a purchase that the replica has not confirmed: %+v, want %v", o, ErrUnavailable)
	}
	if err := replica.Continue(); err != nil {
		t.Fatal(err)
	}
	if o := own(r, decided(t, v, s.request("b", "k", 1))); o != (Outcome{}) {
		t.Errorf("the repeat: %+v, want the order of the first", o)
	}
	if st := s.audit(t); len(st.queue) != 2 || st.left(t) != 8 {
		t.Errorf("state %+v, want two orders", st)
	}
}

// TestInventory_ConfirmReplicas_Cluster: the question goes to the master that has the item.
// These masters have no replicas, so no outcome is known, and each purchase counts once.
func TestInventory_ConfirmReplicas_Cluster(t *testing.T) {
	t.Parallel()
	rdb := redistest.Cluster(t)
	s := newShop(t, rdb, open(10, 1), 0)
	v := s.inventory(t, Config{ConfirmReplicas: 1, Patience: 2 * confirmLimit})
	if err := v.Open(await.Context(t), s.item); err != nil {
		t.Fatal(err)
	}
	if o := buy(t, v, s.request("a", "k", 1)); !errors.Is(o.Err, ErrUnavailable) {
		t.Errorf("a purchase that no replica has confirmed: %+v, want %v", o, ErrUnavailable)
	}
	if st := s.audit(t); len(st.queue) != 1 || st.left(t) != 9 {
		t.Errorf("state %+v, want one order", st)
	}
}

// calls is a go-redis hook that records the commands of pipelines, and the options of SET.
type calls struct {
	mu      sync.Mutex
	names   [][]string
	options []string
}

func (c *calls) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (c *calls) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (c *calls) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		var names []string
		for _, cmd := range cmds {
			names = append(names, cmd.Name())
		}
		if names[0] == "client" { // sets up a new connection
			return next(ctx, cmds)
		}
		c.mu.Lock()
		c.names = append(c.names, names)
		for _, cmd := range cmds {
			if cmd.Name() == "set" {
				c.options = append(c.options, fmt.Sprint(cmd.Args()[3:]))
			}
		}
		c.mu.Unlock()
		return next(ctx, cmds)
	}
}

// TestInventory_ConfirmReplicas_Writes: newer servers than that of the tests confirm only what the
// same connection has written, so each question follows a write, even if the script writes nothing.
func TestInventory_ConfirmReplicas_Writes(t *testing.T) {
	t.Parallel()
	s := newShop(t, redistest.Redis(t), open(10, 1), 0)
	rdb, seen := redistest.Second(t, redistest.Redis(t)), new(calls)
	v := s.inventoryOn(t, rdb, newLocks(t, s.rdb, lockConfig), Config{ConfirmReplicas: 1, Patience: 2 * confirmLimit})
	if err := v.Open(await.Context(t), s.item); err != nil {
		t.Fatal(err)
	}
	if err := purchaseScript.Load(await.Context(t), rdb).Err(); err != nil {
		t.Fatal(err)
	}
	rdb.AddHook(seen)
	if o := buy(t, v, s.request("a", "k", 1)); !errors.Is(o.Err, ErrUnavailable) { // the server has no replica
		t.Errorf("%+v, want %v", o, ErrUnavailable)
	}
	seen.mu.Lock()
	defer seen.mu.Unlock()
	want := []string{"evalsha", "set", "wait"}
	if len(seen.names) == 0 {
		t.Error("nothing was sent")
	}
	for _, got := range seen.names {
		if !slices.Equal(got, want) {
			t.Errorf("a pipeline of %v, want %v", got, want)
		}
	}
	for _, got := range seen.options { // the key itself may be gone by now
		if got != "[ex 60]" {
			t.Errorf("the key is set with %q, want a TTL of a minute", got)
		}
	}
}
