package inventory

import (
	"bytes"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// TestInventory_OnChange: every process is notified of a change.
func TestInventory_OnChange(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		s := newShop(t, rdb, open(2, 1), 0)
		var mu sync.Mutex
		heard := map[string][]string{}
		hear := func(process string) func(string) {
			return func(item string) {
				mu.Lock()
				defer mu.Unlock()
				if item == s.item {
					heard[process] = append(heard[process], item)
				}
			}
		}
		said := func(process string) int {
			mu.Lock()
			defer mu.Unlock()
			return len(heard[process])
		}
		a := s.inventory(t, Config{MarkLife: forEver, Observe: Observers{OnChange: hear("a")}.For})
		own := redistest.Second(t, rdb)
		b := s.inventoryOn(t, own, newLocks(t, own, lockConfig), Config{MarkLife: forEver, Observe: Observers{OnChange: hear("b")}.For})
		awaitListening(t, s, a)
		awaitListening(t, s, b)
		sellOut(t, s, a, 2)
		marked(t, s, a, b)
		for _, process := range []string{"a", "b"} { // the load; nothing else has happened
			await.True(t, process+" to hear of the load", func() bool { return said(process) == 1 })
		}
		if err := a.Change(await.Context(t), s.item, Change{AddLeft: 1}, s.commits(1, 2)); err != nil {
			t.Fatal(err)
		}
		mustBuy(t, a, s.request("new", "k", 1))
		for _, process := range []string{"a", "b"} {
			await.True(t, process+" to hear of the change", func() bool { return said(process) == 2 })
		}
		if err := a.Change(await.Context(t), s.item, Change{PerUserLimit: ptr(int64(2))}, s.commits(0, 3)); err != nil {
			t.Fatal(err)
		}
		for _, process := range []string{"a", "b"} {
			await.True(t, process+" to hear of the limit", func() bool { return said(process) == 3 })
		}
	})
}

// TestInventory_Change_WithoutSubscription: the process that made a change sells under it immediately, even
// if it receives no message.
func TestInventory_Change_WithoutSubscription(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(2, 1), 0)
		p := newProxy(t, rdb.Options().Addr, func(sent []byte) cutAt {
			if bytes.Contains(bytes.ToLower(sent), []byte("\nsubscribe\r")) {
				return cutBefore
			}
			return cutNever
		})
		own := p.client(t)
		v := s.inventoryOn(t, own, newLocks(t, rdb, lockConfig), Config{MarkLife: forEver})
		sel, err := v.seller(s.item)
		if err != nil {
			t.Fatal(err)
		}
		mustBuy(t, v, s.request("u", "k", 1))
		mustBuy(t, v, s.request("w", "k", 1))
		if sel.mark.Load() == nil {
			t.Fatal("there is no mark")
		}
		if err := v.Change(await.Context(t), s.item, Change{AddLeft: 1}, s.commits(1, 2)); err != nil {
			t.Fatal(err)
		}
		if sel.mark.Load() != nil {
			t.Error("the mark is still there")
		}
		mustBuy(t, v, s.request("new", "k", 1))
	})
}
