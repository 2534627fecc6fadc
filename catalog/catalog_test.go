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
)

var errTest = errors.New("the database is away")

// shop is a database and a live stock, and counts how often it is asked.
type shop struct {
	mu       sync.Mutex
	items    map[string]Item
	live     map[string]int64 // left by item; none: not loaded
	err      error
	stockErr error
	// pause holds back every question to the database until it is closed.
	pause chan struct{}
	// stockHangs makes the stock answer only when its context ends.
	stockHangs bool

	byID, lists, stocks int
	asked               int // ids asked for, over all questions
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

// holdBack makes the database silent until the channel is closed. It is called
// in the bubble, to which its channel must belong.
func (s *shop) holdBack() chan struct{} {
	gate := make(chan struct{})
	s.set(func(s *shop) { s.pause = gate })
	return gate
}

// read answers as of now and waits then, as a slow network does.
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

// counts are the questions asked so far.
func (s *shop) counts() (byID, lists int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byID, s.lists
}

// inBubble runs f with a catalogue on a fake clock.
func inBubble(t *testing.T, s *shop, cfg Config, f func(t *testing.T, c *Catalog)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c, err := New(s, s, cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer c.cache.StopAllGoroutines()
		f(t, c)
		synctest.Wait()
	})
}

// pass lets time go by on the fake clock.
func pass(d time.Duration) { <-time.After(d) }

func wantItem(t *testing.T, c *Catalog, id string, left int64) {
	t.Helper()
	i, err := c.Item(t.Context(), id)
	if err != nil || i.ID != id || i.StockLeft != left {
		t.Errorf("item %s: %d left, %v, want %d", id, i.StockLeft, err, left)
	}
}

func wantUnknown(t *testing.T, c *Catalog, id string) {
	t.Helper()
	if i, err := c.Item(t.Context(), id); !errors.Is(err, ErrItemNotFound) {
		t.Errorf("item %s: %+v, %v, want ErrItemNotFound", id, i, err)
	}
}

func wantCalls(t *testing.T, s *shop, byID, lists int) {
	t.Helper()
	if b, l := s.counts(); b != byID || l != lists {
		t.Errorf("the source was asked %d times by id and %d times for all, want %d and %d", b, l, byID, lists)
	}
}

func TestCatalog_Item_CachedForLife(t *testing.T) {
	t.Parallel()
	s := newShop(Item{ID: "a", StockLeft: 5})
	inBubble(t, s, Config{Life: time.Second}, func(t *testing.T, c *Catalog) {
		for range 100 {
			wantItem(t, c, "a", 5)
		}
		wantCalls(t, s, 1, 0)
		s.set(func(s *shop) { s.live["a"] = 3 })
		pass(999 * time.Millisecond)
		wantItem(t, c, "a", 5)
		wantCalls(t, s, 1, 0)
		// Reading does not lengthen the life.
		pass(2 * time.Millisecond)
		wantItem(t, c, "a", 3)
		wantItem(t, c, "a", 3)
		wantCalls(t, s, 2, 0)
	})
}

func TestCatalog_Item_NegativeExpires(t *testing.T) {
	t.Parallel()
	s := newShop()
	inBubble(t, s, Config{Life: time.Second}, func(t *testing.T, c *Catalog) {
		for range 100 {
			wantUnknown(t, c, "a")
		}
		wantCalls(t, s, 1, 0)
		s.set(func(s *shop) { s.items["a"] = Item{ID: "a", StockLeft: 1} })
		pass(99 * time.Millisecond)
		wantUnknown(t, c, "a")
		pass(2 * time.Millisecond)
		wantItem(t, c, "a", 1)
		wantCalls(t, s, 2, 0)
	})
}

// TestCatalog_Item_UnknownCrowd: a crowd that asks for ids that do not exist
// costs a few questions, and an item that does exist is found among them.
func TestCatalog_Item_UnknownCrowd(t *testing.T) {
	t.Parallel()
	s := newShop(Item{ID: "real", StockLeft: 2})
	inBubble(t, s, Config{LoadTimeout: time.Hour}, func(t *testing.T, c *Catalog) {
		gate := s.holdBack()
		const crowd = 1000
		var wg sync.WaitGroup
		for i := range crowd {
			wg.Go(func() { wantUnknown(t, c, fmt.Sprintf("ghost-%d", i)) })
		}
		wg.Go(func() { wantItem(t, c, "real", 2) })
		synctest.Wait() // all wait for the first question
		s.set(func(s *shop) { s.pause = nil })
		close(gate)
		wg.Wait()
		if b, _ := s.counts(); b > 10 {
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

// TestCatalog_Item_OneQuestion: those who ask for one id at once share a question.
func TestCatalog_Item_OneQuestion(t *testing.T) {
	t.Parallel()
	s := newShop(Item{ID: "a", StockLeft: 2})
	inBubble(t, s, Config{LoadTimeout: time.Hour}, func(t *testing.T, c *Catalog) {
		gate := s.holdBack()
		var wg sync.WaitGroup
		for range 500 {
			wg.Go(func() { wantItem(t, c, "a", 2) })
			wg.Go(func() {
				items, err := c.Items(t.Context())
				if err != nil || len(items) != 1 {
					t.Errorf("items %v, %v", items, err)
				}
			})
		}
		synctest.Wait()
		close(gate)
		wg.Wait()
		// One question may be under way when the next gathers.
		if b, l := s.counts(); b > 2 || l != 1 {
			t.Errorf("500 readers cost %d questions by id and %d for all", b, l)
		}
	})
}

func TestCatalog_Items_CachedForLife(t *testing.T) {
	t.Parallel()
	s := newShop(Item{ID: "b", StockLeft: 5}, Item{ID: "a", StockLeft: 7})
	s.live["a"] = 4
	inBubble(t, s, Config{Life: time.Second}, func(t *testing.T, c *Catalog) {
		want := func(want string) {
			t.Helper()
			items, err := c.Items(t.Context())
			var got []string
			for _, i := range items {
				got = append(got, fmt.Sprint(i.ID, i.StockLeft))
			}
			if err != nil || strings.Join(got, " ") != want {
				t.Errorf("items %v, %v, want %s", got, err, want)
			}
		}
		for range 50 {
			want("a4 b5")
		}
		s.set(func(s *shop) { s.live["b"] = 0 })
		pass(999 * time.Millisecond)
		want("a4 b5")
		wantCalls(t, s, 0, 1)
		pass(2 * time.Millisecond)
		want("a4 b0")
		wantCalls(t, s, 0, 2)
	})
}

func TestCatalog_Forget(t *testing.T) {
	t.Parallel()
	s := newShop(Item{ID: "a", StockLeft: 5})
	inBubble(t, s, Config{Life: time.Hour}, func(t *testing.T, c *Catalog) {
		wantItem(t, c, "a", 5)
		wantUnknown(t, c, "b")
		if items, err := c.Items(t.Context()); err != nil || len(items) != 1 {
			t.Fatalf("items %v, %v", items, err)
		}
		s.set(func(s *shop) {
			s.items["a"] = Item{ID: "a", StockLeft: 50}
			s.items["b"] = Item{ID: "b", StockLeft: 60}
		})
		c.Forget("b")
		wantItem(t, c, "a", 5) // another's memory stays
		wantItem(t, c, "b", 60)
		if items, err := c.Items(t.Context()); err != nil || len(items) != 2 {
			t.Errorf("items %v, %v, want both", items, err)
		}
		c.Forget("a")
		wantItem(t, c, "a", 50)
		c.Forget("never heard of")
	})
}

// TestCatalog_Forget_DuringLook: what was read before the change must not be
// remembered after it.
func TestCatalog_Forget_DuringLook(t *testing.T) {
	t.Parallel()
	for name, look := range map[string]func(t *testing.T, c *Catalog) (known bool){
		"Item": func(t *testing.T, c *Catalog) bool {
			_, err := c.Item(t.Context(), "new")
			return err == nil
		},
		"Items": func(t *testing.T, c *Catalog) bool {
			items, err := c.Items(t.Context())
			return err == nil && len(items) == 1
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop()
			inBubble(t, s, Config{Life: time.Hour, LoadTimeout: time.Hour}, func(t *testing.T, c *Catalog) {
				gate := s.holdBack()
				done := make(chan struct{})
				go func() {
					defer close(done)
					look(t, c) // it may say either
				}()
				synctest.Wait() // the question is on its way, its answer settled
				s.set(func(s *shop) {
					s.items["new"] = Item{ID: "new", StockLeft: 1}
					s.pause = nil
				})
				c.Forget("new")
				close(gate)
				<-done
				if !look(t, c) {
					t.Error("an item created during a look is unknown after Forget")
				}
			})
		})
	}
}

// TestCatalog_Stock: the live number is shown where there is one.
func TestCatalog_Stock(t *testing.T) {
	t.Parallel()
	s := newShop(Item{ID: "live", StockLeft: 9}, Item{ID: "out", StockLeft: 9}, Item{ID: "cold", StockLeft: 9})
	s.live["live"], s.live["out"] = 4, 0
	inBubble(t, s, Config{OnError: func(err error) { t.Errorf("heard %v", err) }}, func(t *testing.T, c *Catalog) {
		wantItem(t, c, "live", 4)
		wantItem(t, c, "out", 0)
		wantItem(t, c, "cold", 9)
		stocks := s.stocks
		wantUnknown(t, c, "none")
		if s.stocks != stocks {
			t.Error("the stock was asked about no item")
		}
	})
}

func TestCatalog_StockAway(t *testing.T) {
	t.Parallel()
	s := newShop(Item{ID: "a", StockLeft: 9})
	s.live["a"], s.stockErr = 4, errTest
	var heard []error
	inBubble(t, s, Config{Life: time.Second, OnError: func(err error) { heard = append(heard, err) }}, func(t *testing.T, c *Catalog) {
		wantItem(t, c, "a", 9)
		if items, err := c.Items(t.Context()); err != nil || items[0].StockLeft != 9 {
			t.Errorf("items %v, %v", items, err)
		}
		if len(heard) != 2 || !errors.Is(heard[0], errTest) {
			t.Errorf("heard %v, want the stock's error twice", heard)
		}
		s.set(func(s *shop) { s.stockErr = nil })
		pass(time.Second + time.Millisecond)
		wantItem(t, c, "a", 4)
	})
}

// TestCatalog_StockHangs: a Redis that does not answer costs the look's time
// and not the look, however many ids were asked for together.
func TestCatalog_StockHangs(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, loadChunk + 100} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			s := newShop()
			for i := range n {
				id := fmt.Sprintf("i%d", i)
				s.items[id] = Item{ID: id, StockLeft: 9}
			}
			s.stockHangs = true
			inBubble(t, s, Config{LoadTimeout: time.Second, OnError: func(error) {}}, func(t *testing.T, c *Catalog) {
				gate := s.holdBack()
				var wg sync.WaitGroup
				failed := 0
				var mu sync.Mutex
				wg.Go(func() { wantUnknown(t, c, "first") })
				synctest.Wait() // the others gather behind it, in one look
				for i := range n {
					wg.Go(func() {
						item, err := c.Item(t.Context(), fmt.Sprintf("i%d", i))
						if err != nil || item.StockLeft != 9 {
							mu.Lock()
							failed++
							mu.Unlock()
						}
					})
				}
				synctest.Wait()
				s.set(func(s *shop) { s.pause = nil })
				close(gate)
				wg.Wait()
				if failed > 0 {
					t.Errorf("%d of %d items were not answered with the database's number", failed, n)
				}
			})
		})
	}
}

func TestCatalog_SourceAway(t *testing.T) {
	t.Parallel()
	s := newShop(Item{ID: "a", StockLeft: 9})
	s.err = errTest
	inBubble(t, s, Config{Life: time.Hour}, func(t *testing.T, c *Catalog) {
		for range 3 {
			if _, err := c.Item(t.Context(), "a"); !errors.Is(err, errTest) {
				t.Errorf("item: %v, want the source's error", err)
			}
			if _, err := c.Items(t.Context()); !errors.Is(err, errTest) {
				t.Errorf("items: %v, want the source's error", err)
			}
		}
		wantCalls(t, s, 3, 3) // an error is not remembered
		s.set(func(s *shop) { s.err = nil })
		wantItem(t, c, "a", 9)
		if items, err := c.Items(t.Context()); err != nil || len(items) != 1 {
			t.Errorf("items %v, %v", items, err)
		}
	})
}

// TestCatalog_SourceAway_KeepsMemory: what is remembered outlasts the source.
func TestCatalog_SourceAway_KeepsMemory(t *testing.T) {
	t.Parallel()
	s := newShop(Item{ID: "a", StockLeft: 9})
	inBubble(t, s, Config{Life: time.Second}, func(t *testing.T, c *Catalog) {
		wantItem(t, c, "a", 9)
		s.set(func(s *shop) { s.err = errTest })
		wantItem(t, c, "a", 9)
		if _, err := c.Item(t.Context(), "b"); !errors.Is(err, errTest) {
			t.Errorf("item: %v, want the source's error", err)
		}
		wantItem(t, c, "a", 9)
	})
}

func TestCatalog_LoadTimeout(t *testing.T) {
	t.Parallel()
	s := newShop(Item{ID: "a"})
	inBubble(t, s, Config{LoadTimeout: 2 * time.Second}, func(t *testing.T, c *Catalog) {
		s.holdBack() // for ever
		start := time.Now()
		if _, err := c.Item(t.Context(), "a"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("item: %v, want the deadline's error", err)
		}
		if _, err := c.Items(t.Context()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("items: %v, want the deadline's error", err)
		}
		if d := time.Since(start); d != 4*time.Second {
			t.Errorf("two looks took %v, want LoadTimeout each", d)
		}
	})
}

// TestCatalog_ContextEnds: who has stopped waiting is let go at once; the look
// goes on for the others and is remembered.
func TestCatalog_ContextEnds(t *testing.T) {
	t.Parallel()
	s := newShop(Item{ID: "a", StockLeft: 9})
	inBubble(t, s, Config{LoadTimeout: time.Hour, Life: time.Hour}, func(t *testing.T, c *Catalog) {
		gate := s.holdBack()
		ctx, cancel := context.WithCancelCause(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := c.Item(ctx, "a"); !errors.Is(err, errTest) {
				t.Errorf("item: %v, want the context's cause", err)
			}
		})
		wg.Go(func() {
			if _, err := c.Items(ctx); !errors.Is(err, errTest) {
				t.Errorf("items: %v, want the context's cause", err)
			}
		})
		synctest.Wait()
		cancel(errTest)
		wg.Wait()
		close(gate)
		synctest.Wait()
		wantItem(t, c, "a", 9)
		if items, err := c.Items(t.Context()); err != nil || len(items) != 1 {
			t.Errorf("items %v, %v", items, err)
		}
		wantCalls(t, s, 1, 1)
	})
}

// TestCatalog_Bounded: memory is bounded by MaxItems, whatever is asked for.
func TestCatalog_Bounded(t *testing.T) {
	t.Parallel()
	s := newShop()
	inBubble(t, s, Config{MaxItems: 50, Life: time.Hour}, func(t *testing.T, c *Catalog) {
		for i := range 2000 {
			wantUnknown(t, c, fmt.Sprintf("ghost-%d", i))
		}
		c.cache.CleanUp()
		if n := c.cache.EstimatedSize(); n > 50 {
			t.Errorf("%d ids are remembered, want at most 50", n)
		}
	})
}

func TestNew_Errors(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]Config{
		"life": {Life: -1}, "items": {MaxItems: -1}, "time-out": {LoadTimeout: -1},
	} {
		if c, err := New(newShop(), newShop(), cfg); err == nil {
			c.cache.StopAllGoroutines()
			t.Errorf("a negative %s: no error", name)
		}
	}
}
