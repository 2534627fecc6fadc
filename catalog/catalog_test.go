package catalog

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"flashsale/lock"
)

var errTest = errors.New("the database is away")

// shop is a database and a live stock, and counts the queries.
type shop struct {
	mu       sync.Mutex
	items    map[string]Item
	live     map[string]int64 // left by item; none: not loaded
	err      error
	stockErr error
	// pause delays every query to the database until it is closed.
	pause chan struct{}
	// stockHangs makes the stock answer only when its context ends.
	stockHangs bool

	byID, lists, stocks int
	asked               int // ids over all queries
	idsErr              error
}

func newShop(items ...Item) *shop {
	s := &shop{items: map[string]Item{}, live: map[string]int64{}}
	for _, i := range items {
		s.items[i.ID] = i
	}
	return s
}

func (s *shop) set(f func(*shop)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s)
}

// holdBack delays the database's answers until the channel is closed. It is called inside the
// bubble, to which its channel must belong.
func (s *shop) holdBack() chan struct{} {
	gate := make(chan struct{})
	s.set(func(s *shop) { s.pause = gate })
	return gate
}

// read reads now and answers later, as over a slow network.
func (s *shop) read(ctx context.Context, ids []string) ([]Item, error) {
	s.mu.Lock()
	var found []Item
	for _, id := range ids {
		if i, ok := s.items[id]; ok {
			found = append(found, i)
		}
	}
	err, pause := s.err, s.pause
	s.mu.Unlock()
	if pause != nil {
		select {
		case <-pause:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	return found, nil
}

func (s *shop) Items(ctx context.Context) ([]Item, error) {
	s.mu.Lock()
	s.lists++
	all := slices.Sorted(maps.Keys(s.items))
	s.mu.Unlock()
	return s.read(ctx, all)
}

func (s *shop) ItemsByID(ctx context.Context, ids []string) ([]Item, error) {
	s.mu.Lock()
	s.byID++
	s.asked += len(ids)
	s.mu.Unlock()
	return s.read(ctx, ids)
}

func (s *shop) ItemIDs(_ context.Context, after string, limit int) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.idsErr != nil {
		return nil, s.idsErr
	}
	var ids []string
	for _, id := range slices.Sorted(maps.Keys(s.items)) {
		if id > after && len(ids) < limit {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

func (s *shop) Left(ctx context.Context, items []string) ([]int64, error) {
	s.mu.Lock()
	s.stocks++
	err, hangs := s.stockErr, s.stockHangs
	left := make([]int64, len(items))
	for i, id := range items {
		left[i] = -1
		if n, ok := s.live[id]; ok {
			left[i] = n
		}
	}
	s.mu.Unlock()
	if hangs {
		<-ctx.Done()
		err = ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	return left, nil
}

// counts are the queries so far.
func (s *shop) counts() (byID, lists int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byID, s.lists
}

// inBubble runs f with a catalogue on a fake clock.
func inBubble(t *testing.T, s *shop, cfg Config, f func(t *testing.T, c *Catalog)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c, err := New(t.Context(), s, s, cfg)
		if err != nil {
			t.Fatal(err)
		}
		f(t, c)
		if err := c.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// pass advances the fake clock.
func pass(d time.Duration) { <-time.After(d) }

func wantItem(t *testing.T, c *Catalog, id string, left int64) {
	t.Helper()
	v, err := c.View(t.Context(), id)
	if err != nil || v.Item.ID != id || v.Item.StockLeft != left {
		t.Errorf("item %s: %+v, %v, want %d left", id, v, err, left)
	}
}

func wantUnknown(t *testing.T, c *Catalog, id string) {
	t.Helper()
	if v, err := c.View(t.Context(), id); !errors.Is(err, ErrItemNotFound) {
		t.Errorf("item %s: %+v, %v, want ErrItemNotFound", id, v, err)
	}
}

func wantList(t *testing.T, c *Catalog, want string) {
	t.Helper()
	v, err := c.List(t.Context())
	if err != nil {
		t.Errorf("items: %v", err)
		return
	}
	var got []string
	for _, i := range v.Items {
		got = append(got, fmt.Sprint(i.ID, i.StockLeft))
	}
	if strings.Join(got, " ") != want {
		t.Errorf("items %v, want %s", got, want)
	}
}

func wantCalls(t *testing.T, s *shop, byID, lists int) {
	t.Helper()
	if b, l := s.counts(); b != byID || l != lists {
		t.Errorf("the source was asked %d times by id and %d times for all, want %d and %d", b, l, byID, lists)
	}
}

// TestCatalog_View_RenewedBehind: a displayed item is reloaded in the background, and no
// reader waits for it.
func TestCatalog_View_RenewedBehind(t *testing.T) {
	t.Parallel()
	s := newShop(Item{ID: "a", StockLeft: 5, Version: 1})
	inBubble(t, s, Config{Fresh: 10 * time.Second, LoadTimeout: time.Minute}, func(t *testing.T, c *Catalog) {
		for range 100 {
			wantItem(t, c, "a", 5)
		}
		wantCalls(t, s, 1, 0)
		s.set(func(s *shop) { s.items["a"] = Item{ID: "a", StockLeft: 4, Version: 2} })
		pass(7900 * time.Millisecond) // jitter takes a fifth at most
		wantItem(t, c, "a", 5)
		synctest.Wait()
		wantCalls(t, s, 1, 0)

		pass(2200 * time.Millisecond)
		gate := s.holdBack()
		for range 100 {
			wantItem(t, c, "a", 5)
		}
		synctest.Wait()
		wantCalls(t, s, 2, 0)
		s.set(func(s *shop) { s.pause = nil })
		close(gate)
		synctest.Wait()
		wantItem(t, c, "a", 4)
		if n := c.Stats(); n.Stale != 100 || n.Memory != 201 {
			t.Errorf("counts %+v, want 100 stale of 201 answers from memory", n)
		}
	})
}

// TestCatalog_Item_Life: no purchase uses an item older than Life; while an item is bought, it
// is reloaded ahead of time and no buyer waits.
func TestCatalog_Item_Life(t *testing.T) {
	t.Parallel()
	s := newShop(Item{ID: "a", PriceMinor: 10, Version: 1})
	inBubble(t, s, Config{Life: time.Second, LoadTimeout: time.Minute, Wait: time.Minute}, func(t *testing.T, c *Catalog) {
		price := func() int64 {
			i, err := c.Item(t.Context(), "a")
			if err != nil {
				t.Error(err)
			}
			return i.PriceMinor
		}
		price()
		wantCalls(t, s, 1, 0)
		s.set(func(s *shop) { s.items["a"] = Item{ID: "a", PriceMinor: 20, Version: 2} })
		pass(999 * time.Millisecond)
		gate := s.holdBack()
		if p := price(); p != 10 {
			t.Errorf("price %d, want the one in memory", p)
		}
		synctest.Wait()
		wantCalls(t, s, 2, 0)
		pass(time.Millisecond)
		bought := make(chan int64)
		go func() { bought <- price() }()
		synctest.Wait()
		select {
		case p := <-bought:
			close(gate)
			t.Fatalf("somebody bought at %d by an item that is a second old", p)
		default:
		}
		close(gate)
		if p := <-bought; p != 20 {
			t.Errorf("price %d, want the new one", p)
		}
	})
}

func TestCatalog_Negative(t *testing.T) {
	t.Parallel()
	s := newShop()
	inBubble(t, s, Config{Negative: time.Minute}, func(t *testing.T, c *Catalog) {
		for range 100 {
			wantUnknown(t, c, "a")
			if _, err := c.Item(t.Context(), "a"); !errors.Is(err, ErrItemNotFound) {
				t.Errorf("buy: %v, want ErrItemNotFound", err)
			}
		}
		wantCalls(t, s, 1, 0)
		s.set(func(s *shop) { s.items["a"] = Item{ID: "a", StockLeft: 1, Version: 1} })
		pass(47 * time.Second)
		wantUnknown(t, c, "a")
		pass(14 * time.Second)
		wantItem(t, c, "a", 1)
		wantCalls(t, s, 2, 0)
	})
}

// TestCatalog_Created_EndsNegative: creation removes the negative entry of an id.
func TestCatalog_Created_EndsNegative(t *testing.T) {
	t.Parallel()
	s := newShop()
	inBubble(t, s, Config{}, func(t *testing.T, c *Catalog) {
		wantUnknown(t, c, "a")
		wantUnknown(t, c, "b")
		s.set(func(s *shop) {
			s.items["a"] = Item{ID: "a", StockLeft: 1, Version: 1}
			s.items["b"] = Item{ID: "b", StockLeft: 1, Version: 1}
		})
		c.Created(t.Context(), "a")
		wantItem(t, c, "a", 1)
		wantUnknown(t, c, "b")
	})
}

// TestCatalog_UnknownCrowd: a crowd that requests unknown ids costs a few queries, and an item
// that exists is found among them.
func TestCatalog_UnknownCrowd(t *testing.T) {
	t.Parallel()
	s := newShop(Item{ID: "real", StockLeft: 2})
	inBubble(t, s, Config{LoadTimeout: time.Hour, Wait: time.Hour, LoadLimit: 2}, func(t *testing.T, c *Catalog) {
		gate := s.holdBack()
		const crowd = 1000
		var wg sync.WaitGroup
		for i := range crowd {
			wg.Go(func() { wantUnknown(t, c, fmt.Sprintf("ghost-%d", i)) })
		}
		wg.Go(func() { wantItem(t, c, "real", 2) })
		synctest.Wait() // all wait for the first queries
		s.set(func(s *shop) { s.pause = nil })
		close(gate)
		wg.Wait()
		if b, _ := s.counts(); b > 5 {
			t.Errorf("%d ids cost %d questions", crowd, b)
		}
		if s.asked != crowd+1 {
			t.Errorf("%d ids were asked for, want each once: %d", s.asked, crowd+1)
		}
		before, _ := s.counts()
		for i := range crowd {
			wantUnknown(t, c, fmt.Sprintf("ghost-%d", i))
		}
		wantCalls(t, s, before, 0)
	})
}

// TestCatalog_OneQuestion: concurrent readers of one id share a query.
func TestCatalog_OneQuestion(t *testing.T) {
	t.Parallel()
	s := newShop(Item{ID: "a", StockLeft: 2})
	inBubble(t, s, Config{LoadTimeout: time.Hour, Wait: time.Hour}, func(t *testing.T, c *Catalog) {
		gate := s.holdBack()
		var wg sync.WaitGroup
		for range 500 {
			wg.Go(func() { wantItem(t, c, "a", 2) })
			wg.Go(func() { wantList(t, c, "a2") })
		}
		synctest.Wait()
		close(gate)
		wg.Wait()
		wantCalls(t, s, 1, 1)
	})
}

// TestCatalog_LoadLimit: the source gets no more than LoadLimit concurrent queries, with and
// without the defence that gathers the readers.
func TestCatalog_LoadLimit(t *testing.T) {
	t.Parallel()
	for name, off := range map[string]Defence{"gathered": 0, "each alone": Breakdown} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop()
			inBubble(t, s, Config{LoadTimeout: time.Hour, Wait: time.Hour, LoadLimit: 3, Off: off}, func(t *testing.T, c *Catalog) {
				gate := s.holdBack()
				var wg sync.WaitGroup
				for i := range 100 {
					wg.Go(func() { wantUnknown(t, c, fmt.Sprintf("ghost-%d", i)) })
					if i < 3 {
						synctest.Wait() // otherwise one query may take the ids of several readers
					}
				}
				synctest.Wait()
				wantCalls(t, s, 3, 0)
				close(gate)
				wg.Wait()
			})
		})
	}
}

func TestCatalog_List(t *testing.T) {
	t.Parallel()
	s := newShop(Item{ID: "b", StockLeft: 5}, Item{ID: "a", StockLeft: 7})
	s.live["a"] = 4
	inBubble(t, s, Config{Fresh: 10 * time.Second}, func(t *testing.T, c *Catalog) {
		for range 50 {
			wantList(t, c, "a4 b5")
		}
		wantCalls(t, s, 0, 1)
		s.set(func(s *shop) { s.live["b"] = 0 })
		pass(time.Second)
		wantList(t, c, "a4 b0") // the stock is a second old at most, whatever the age of the rest
		wantCalls(t, s, 0, 1)
		s.set(func(s *shop) { s.items["c"] = Item{ID: "c", StockLeft: 1} })
		pass(9 * time.Second)
		gate := s.holdBack()
		wantList(t, c, "a4 b0") // the old list, while it is read again
		close(gate)
		synctest.Wait()
		wantList(t, c, "a4 b0 c1")
		wantCalls(t, s, 0, 2)
		// Items that the list has loaded need no further query.
		wantItem(t, c, "c", 1)
		wantCalls(t, s, 0, 2)
	})
}

func TestCatalog_Changed(t *testing.T) {
	t.Parallel()
	s := newShop(Item{ID: "a", StockLeft: 5, Version: 1})
	inBubble(t, s, Config{Life: time.Hour}, func(t *testing.T, c *Catalog) {
		wantItem(t, c, "a", 5)
		wantUnknown(t, c, "b")
		wantList(t, c, "a5")
		s.set(func(s *shop) {
			s.items["a"] = Item{ID: "a", StockLeft: 50, Version: 2}
			s.items["b"] = Item{ID: "b", StockLeft: 60, Version: 1}
		})
		c.Created(t.Context(), "b")
		wantItem(t, c, "a", 5) // the other item stays in memory
		wantItem(t, c, "b", 60)
		wantList(t, c, "a50 b60")
		c.Changed(t.Context(), "a", 2)
		wantItem(t, c, "a", 50)
		if i, err := c.Item(t.Context(), "a"); err != nil || i.Version != 2 {
			t.Errorf("bought by %+v, %v, want version 2", i, err)
		}
		c.Changed(t.Context(), "unknown", 2)
	})
}

// TestCatalog_Changed_Once: the process that made a change, and has loaded it, does not load
// the item again for its own message.
func TestCatalog_Changed_Once(t *testing.T) {
	t.Parallel()
	s := newShop(Item{ID: "a", StockLeft: 5, Version: 2})
	inBubble(t, s, Config{Life: time.Hour}, func(t *testing.T, c *Catalog) {
		wantItem(t, c, "a", 5)
		c.handle("changed 2 a")
		wantItem(t, c, "a", 5)
		wantCalls(t, s, 1, 0)
		c.handle("changed 3 a")
		wantItem(t, c, "a", 5)
		wantCalls(t, s, 2, 0)
		for _, nonsense := range []string{"", "changed", "changed x a", "changed 9", "what 1 a", "changed 9 A", "created"} {
			c.handle(nonsense)
		}
		wantItem(t, c, "a", 5)
		wantCalls(t, s, 2, 0)
	})
}

// TestCatalog_Created_DuringLook: a result that was read before the change must not be cached
// after it.
func TestCatalog_Created_DuringLook(t *testing.T) {
	t.Parallel()
	for name, look := range map[string]func(t *testing.T, c *Catalog) (known bool){
		"Item": func(t *testing.T, c *Catalog) bool {
			_, err := c.Item(t.Context(), "new")
			return err == nil
		},
		"View": func(t *testing.T, c *Catalog) bool {
			_, err := c.View(t.Context(), "new")
			return err == nil
		},
		"List": func(t *testing.T, c *Catalog) bool {
			v, err := c.List(t.Context())
			return err == nil && len(v.Items) == 1
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop()
			inBubble(t, s, Config{Life: time.Hour, LoadTimeout: time.Hour, Wait: time.Hour}, func(t *testing.T, c *Catalog) {
				gate := s.holdBack()
				done := make(chan struct{})
				go func() {
					defer close(done)
					look(t, c) // it may find either
				}()
				synctest.Wait() // the query is under way, and its answer is fixed
				s.set(func(s *shop) {
					s.items["new"] = Item{ID: "new", StockLeft: 1, Version: 1}
					s.pause = nil
				})
				c.Created(t.Context(), "new")
				if !look(t, c) {
					t.Error("an item created during a look is unknown to who asks after its creation")
				}
				close(gate)
				<-done
				if !look(t, c) {
					t.Error("an item created during a look is unknown after the look")
				}
			})
		})
	}
}

func TestNew_Errors(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]Config{
		"life": {Life: -1}, "items": {MaxItems: -1}, "time-out": {LoadTimeout: -1},
		"stock time-out": {StockTimeout: -1}, "limit": {LoadLimit: -1}, "wait": {Wait: -1},
		"negative": {Negative: maxNegative + 1}, "fresh below life": {Life: time.Minute, Fresh: time.Second},
		"keep below fresh": {Fresh: time.Minute, Keep: time.Second}, "locks alone": {Locks: &lock.Manager{}},
	} {
		if _, err := New(t.Context(), newShop(), newShop(), cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestParseDefences(t *testing.T) {
	t.Parallel()
	for _, q := range []struct {
		names []string
		want  Defence
		ok    bool
	}{
		{nil, 0, true},
		{[]string{"avalanche", "breakdown"}, Avalanche | Breakdown, true},
		{[]string{"penetration"}, Bloom | Negatives, true},
		{[]string{"bloom", "moat"}, 0, false},
	} {
		if got, err := ParseDefences(q.names); got != q.want || (err == nil) != q.ok {
			t.Errorf("%v: %b, %v, want %b", q.names, got, err, q.want)
		}
	}
}

// TestCatalog_Allocations: reads from memory allocate nothing: every purchase and every page
// makes them.
func TestCatalog_Allocations(t *testing.T) {
	s := newShop(Item{ID: "a", StockLeft: 3})
	c, err := New(t.Context(), s, s, Config{Life: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	wantItem(t, c, "a", 3)
	ctx := t.Context()
	for name, read := range map[string]func() error{
		"Item": func() error { _, err := c.Item(ctx, "a"); return err },
		"View": func() error { _, err := c.View(ctx, "a"); return err },
	} {
		if n := testing.AllocsPerRun(1000, func() { err = read() }); n > 0.1 || err != nil {
			t.Errorf("%s: %v allocations, %v", name, n, err)
		}
	}
}
