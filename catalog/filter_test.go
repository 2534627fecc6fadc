package catalog

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/longtest"
	"flashsale/internal/testing/redistest"
)

// TestPenetration: of thousands of invented ids almost none reaches the database, and no real
// item is refused, also if it is created meanwhile.
func TestPenetration(t *testing.T) {
	t.Parallel()
	testPenetration(t, 100, 10_000)
}

// The same with a filter that holds ten times as much.
func TestPenetration_Long(t *testing.T) {
	longtest.Only(t)
	t.Parallel()
	testPenetration(t, 1000, 100_000)
}

// testPenetration creates as many items again while the ids are asked for.
func testPenetration(t *testing.T, items, ghosts int) {
	for name, engine := range map[string]func(t *testing.T) redis.UniversalClient{
		"embedded": func(t *testing.T) redis.UniversalClient { return redistest.Embedded(t) },
		"redis": func(t *testing.T) redis.UniversalClient {
			// A Redis of its own: other tests that create items would make the filter
			// incomplete.
			rdb := redis.NewClient(redistest.Options(redistest.Real(t).Addr()))
			t.Cleanup(func() {
				if err := rdb.Close(); err != nil {
					t.Error(err)
				}
			})
			return rdb
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb := engine(t)
			s := newShop()
			var known []string
			for i := range items {
				known = append(known, fmt.Sprintf("real-%d", i))
				s.items[known[i]] = Item{ID: known[i], Version: 1}
			}
			a, b := runs(t, newProcess(t, s, rdb, patient())), runs(t, newProcess(t, s, rdb, patient()))
			a.known.InvalidateAll() // without this, the list would have loaded every item
			before := s.asked
			for i := range ghosts {
				wantUnknown(t, a, fmt.Sprintf("ghost-%x", rand.Uint64()))
				if i%(ghosts/items) == 0 {
					n := i / (ghosts / items)
					wantItem(t, a, known[n], 0)
					id := fmt.Sprintf("new-%d", n)
					s.set(func(s *shop) { s.items[id] = Item{ID: id, Version: 1} })
					b.Created(await.Context(t), id)
					wantItem(t, b, id, 0)
					// Until it is notified, its filter is incomplete and lets all ids pass.
					await.True(t, "the filter to be complete", func() bool { return complete(t, a) })
				}
			}
			for i := range items {
				id := fmt.Sprintf("new-%d", i)
				await.True(t, "a new item", func() bool {
					v, err := a.View(await.Context(t), id)
					return err == nil && v.Item.ID == id
				})
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			if reached := s.asked - before - 2*items; reached > ghosts/100 {
				t.Errorf("%d of %d invented ids reached the database", reached, ghosts)
			}
			if n := a.Stats(); n.Refused < int64(ghosts)*99/100 {
				t.Errorf("the filter refused %d ids", n.Refused)
			}
		})
	}
}

// complete reports whether a process's filter holds all creations that Redis has counted. It
// also requests an id, because a process detects a missed creation at a request.
func complete(t *testing.T, c *Catalog) bool {
	t.Helper()
	now, err := c.remote.announce(await.Context(t), "")
	if err != nil {
		t.Fatal(err)
	}
	c.refuses(await.Context(t), newID(t))
	c.filter.mu.RLock()
	defer c.filter.mu.RUnlock()
	return covers(c.filter.generation, now)
}

// TestFilter_MissedCreation: a process that has missed a creation does not refuse the item,
// and its filter is soon complete again.
func TestFilter_MissedCreation(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		s := newShop()
		a, deaf := newProcess(t, s, rdb, patient()), newProcess(t, s, rdb, patient())
		if err := deaf.buildFilterNow(await.Context(t)); err != nil {
			t.Fatal(err)
		}
		await.True(t, "the filter to refuse", func() bool {
			wantUnknown(t, deaf, newID(t))
			return deaf.Stats().Refused > 0
		})
		id := newID(t)
		s.set(func(s *shop) { s.items[id] = Item{ID: id, Version: 1} })
		a.Created(await.Context(t), id)
		await.True(t, "the new item", func() bool {
			_, err := deaf.View(await.Context(t), id)
			return err == nil
		})
		refused := deaf.Stats().Refused
		await.True(t, "the filter to refuse again", func() bool {
			wantUnknown(t, deaf, newID(t))
			return deaf.Stats().Refused > refused
		})
	})
}

// TestFilter_GenerationLost: after Redis has lost its data, a new count is not confused with
// the old one.
func TestFilter_GenerationLost(t *testing.T) {
	t.Parallel()
	rdb := redistest.Embedded(t)
	s := newShop()
	a, deaf := newProcess(t, s, rdb, patient()), newProcess(t, s, rdb, patient())
	a.Created(await.Context(t), "first")
	if err := deaf.buildFilterNow(await.Context(t)); err != nil {
		t.Fatal(err)
	}
	if err := rdb.FlushAll(await.Context(t)).Err(); err != nil { // this test has its own server
		t.Fatal(err)
	}
	s.set(func(s *shop) { s.items["second"] = Item{ID: "second", Version: 1} })
	a.Created(await.Context(t), "second")
	if got, err := rdb.HGet(await.Context(t), generationKey, "count").Result(); err != nil || got != "1" {
		t.Fatalf("the count is %q, %v, want the same as before the loss", got, err)
	}
	await.True(t, "the new item", func() bool {
		_, err := deaf.View(await.Context(t), "second")
		return err == nil
	})
}

// TestFilter_BuiltAlone: a filter that was built while Redis was away is used once Redis is
// back.
func TestFilter_BuiltAlone(t *testing.T) {
	t.Parallel()
	rdb, proxy := away(t)
	cfg := patient()
	cfg.RedisTimeout = time.Second
	s := newShop()
	c := newProcess(t, s, rdb, cfg)
	proxy.Refuse(true)
	proxy.Sever()
	if err := c.buildFilterNow(await.Context(t)); err != nil || !c.filter.built() {
		t.Fatalf("built: %v, %v", c.filter.built(), err)
	}
	wantUnknown(t, c, newID(t))
	if n := c.Stats().Refused; n != 0 {
		t.Errorf("%d ids were refused by a filter of which nobody knows whether it is complete", n)
	}
	s.set(func(s *shop) { s.items["new"] = Item{ID: "new", Version: 1} })
	proxy.Refuse(false)
	await.True(t, "Redis to be asked again", func() bool { _, ok := c.generationNow(await.Context(t)); return ok })
	wantItem(t, c, "new", 0) // the filter does not hold it, and does not know that it is missing
	await.True(t, "the filter to refuse", func() bool {
		wantUnknown(t, c, newID(t))
		return c.Stats().Refused > 0
	})
}

// TestFilter_WhileBuilt: a filter includes the items that are created while its ids are read.
func TestFilter_WhileBuilt(t *testing.T) {
	t.Parallel()
	f := &filter{building: true}
	f.add(creation{"w:8", "during"})
	f.fill([]string{"before"}, "w:7")
	if f.generation != "w:8" || !f.bits.TestString("before") || !f.bits.TestString("during") {
		t.Errorf("generation %q, want w:8 and both ids", f.generation)
	}
	f.building = false
	f.add(creation{"w:10", "after a gap"})
	if f.generation != "w:8" || !f.bits.TestString("after a gap") {
		t.Errorf("generation %q after a gap, want w:8", f.generation)
	}
	f.add(creation{"v:9", "of another count"})
	f.add(creation{"", "of this process"})
	if f.generation != "w:8" {
		t.Errorf("generation %q, want w:8", f.generation)
	}
	for i := range minRoom {
		f.add(creation{id: fmt.Sprint(i)})
	}
	if !f.full() {
		t.Error("the filter holds more than it has room for, and does not say so")
	}
}

func TestFollows(t *testing.T) {
	t.Parallel()
	for _, q := range []struct {
		next, before string
		want         bool
	}{
		{"a:2", "a:1", true}, {"a:3", "a:1", false}, {"a:1", "a:1", false}, {"a:1", "a:2", false},
		{"b:2", "a:1", false}, {"", "", false}, {"a:1", "", false}, {"a:x", "a:1", false}, {"a2", "a1", false},
	} {
		if got := follows(q.next, q.before); got != q.want {
			t.Errorf("%q after %q: %v", q.next, q.before, got)
		}
	}
}

func TestCovers(t *testing.T) {
	t.Parallel()
	for _, q := range []struct {
		complete, now string
		want          bool
	}{{"a:2", "a:2", true}, {"a:3", "a:2", true}, {"a:1", "a:2", false}, {"b:2", "a:2", false}, {"", "", false}} {
		if got := covers(q.complete, q.now); got != q.want {
			t.Errorf("%q covers %q: %v", q.complete, q.now, got)
		}
	}
}

// away is a Redis behind a proxy that can go away.
func away(t *testing.T) (redis.UniversalClient, *redistest.Proxy) {
	t.Helper()
	proxy := redistest.NewProxy(t, redistest.Real(t).Addr())
	rdb := redis.NewClient(redistest.Options(proxy.Addr()))
	t.Cleanup(func() {
		if err := rdb.Close(); err != nil {
			t.Error(err)
		}
	})
	return rdb, proxy
}

// TestRedisAway: while Redis is away items come from memory and from the database, no new item
// is refused, and afterwards everything is as before.
func TestRedisAway(t *testing.T) {
	t.Parallel()
	rdb, proxy := away(t)
	s := newShop(Item{ID: "known", Version: 1})
	cfg := patient()
	cfg.RedisTimeout = time.Second
	a, b := runs(t, newProcess(t, s, rdb, cfg)), runs(t, newProcess(t, s, rdb, cfg))
	wantItem(t, a, "known", 0)
	wantItem(t, b, "known", 0)
	wantUnknown(t, b, "new")

	proxy.Refuse(true)
	proxy.Sever()
	wantItem(t, b, "known", 0)
	s.set(func(s *shop) { s.items["new"] = Item{ID: "new", Version: 1} })
	a.Created(await.Context(t), "new") // it cannot announce the item
	wantItem(t, a, "new", 0)
	s.set(func(s *shop) { s.items["other"] = Item{ID: "other", Version: 1} })
	await.True(t, "the filter not to be trusted", func() bool {
		v, err := b.View(await.Context(t), "other")
		return err == nil && v.Item.ID == "other"
	})

	proxy.Refuse(false)
	await.True(t, "what was said in vain", func() bool {
		v, err := b.View(await.Context(t), "new")
		return err == nil && v.Item.ID == "new"
	})
	await.True(t, "the filter to refuse", func() bool {
		before := b.Stats().Refused
		wantUnknown(t, b, newID(t))
		return b.Stats().Refused > before
	})
}

// TestRedisAway_Maker: if only one process is cut off from Redis, it repeats its announcements
// as soon as it can: the others have no other way to know.
func TestRedisAway_Maker(t *testing.T) {
	t.Parallel()
	t.Run("with the filter", func(t *testing.T) { testRedisAwayMaker(t, 0) })
	t.Run("with negative entries", func(t *testing.T) { testRedisAwayMaker(t, Bloom) }) // one of them hides the item
}

// testRedisAwayMaker uses a server of its own, because the processes of another run would still
// announce what they do.
func testRedisAwayMaker(t *testing.T, off Defence) {
	t.Helper()
	server := redistest.Real(t)
	proxy := redistest.NewProxy(t, server.Addr())
	cutOff := redis.NewClient(redistest.Options(proxy.Addr()))
	rdb := redis.NewClient(redistest.Options(server.Addr()))
	t.Cleanup(func() {
		if err := errors.Join(cutOff.Close(), rdb.Close()); err != nil {
			t.Error(err)
		}
	})
	s := newShop(Item{ID: "old", PriceMinor: 1, Version: 1})
	cfg := patient()
	cfg.RedisTimeout, cfg.Off = time.Second, off
	a, b := runs(t, newProcess(t, s, cutOff, cfg)), runs(t, newProcess(t, s, rdb, cfg))
	id := newID(t)
	await.True(t, "the id to be refused from memory", func() bool {
		wantUnknown(t, b, id)
		return b.Stats().Refused+b.Stats().Negative > 0
	})
	wantItem(t, b, "old", 0)
	proxy.Refuse(true)
	proxy.Sever()
	s.set(func(s *shop) {
		s.items[id] = Item{ID: id, Version: 1}
		s.items["old"] = Item{ID: "old", PriceMinor: 2, Version: 2}
	})
	a.Created(await.Context(t), id)
	a.Changed(await.Context(t), "old", 2)
	wantUnknown(t, b, id)
	proxy.Refuse(false)
	await.True(t, "the new item", func() bool { _, err := b.View(await.Context(t), id); return err == nil })
	await.True(t, "the new price", func() bool {
		i, err := b.Item(await.Context(t), "old")
		return err == nil && i.PriceMinor == 2
	})
}

// TestRedisHangs: a Redis that does not answer costs the first reader a time-out, and later
// readers none.
func TestRedisHangs(t *testing.T) {
	t.Parallel()
	rdb, proxy := away(t)
	s := newShop()
	for i := range 100 {
		id := fmt.Sprintf("i%d", i)
		s.items[id] = Item{ID: id, Version: 1}
	}
	cfg := patient()
	cfg.RedisTimeout = 500 * time.Millisecond
	c := newProcess(t, s, rdb, cfg)
	proxy.Blackhole(true)
	start := time.Now()
	for i := range 100 {
		wantItem(t, c, fmt.Sprintf("i%d", i), 0)
	}
	// One reader in a hundred waits, or a few: not a hundred, which would be 50 s.
	if d := time.Since(start); d > 25*time.Second {
		t.Errorf("100 items took %v", d)
	}
}

// TestKeys: an item's keys are in the slot of its partition, like its sale.
func TestKeys(t *testing.T) {
	t.Parallel()
	k := keys{func(string) string { return "p3" }}
	for _, key := range []string{k.item("a"), k.lock("a")} {
		if !strings.HasPrefix(key, "fs:{p3}:item") || !strings.HasSuffix(key, ":a") {
			t.Errorf("key %q", key)
		}
	}
}

// An error of the generation's read does not speak of an item that has no id.
func TestRemote_Announce_NamesWhatFailed(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{})
	if err := rdb.Close(); err != nil {
		t.Fatal(err)
	}
	r := newRemote(Config{Redis: rdb, RedisTimeout: time.Second})
	for id, want := range map[string]string{"": "read the generation of the items", "new-1": "announce the new item new-1"} {
		if _, err := r.announce(t.Context(), id); err == nil || !strings.HasPrefix(err.Error(), want+": ") {
			t.Errorf("id %q: %v, want %q", id, err, want)
		}
	}
}
