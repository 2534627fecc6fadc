package catalog

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/maypok86/otter/v2"
	"golang.org/x/sync/singleflight"
)

// Source is where items come from: the database.
type Source interface {
	Items(ctx context.Context) ([]Item, error)
	// ItemsByID leaves unknown ids out.
	ItemsByID(ctx context.Context, ids []string) ([]Item, error)
}

// Stock tells the live number of units left; -1 where it is not loaded.
type Stock interface {
	Left(ctx context.Context, items []string) ([]int64, error)
}

// Config configures a Catalog. A zero field means its default.
type Config struct {
	// Life is how long an answer is given from memory; that an item does not
	// exist, a tenth of it. Default 1 s.
	Life time.Duration
	// MaxItems bounds the items and the unknown ids remembered. Default 100,000.
	MaxItems int
	// LoadTimeout bounds one look at the source. Default 2 s.
	LoadTimeout time.Duration
	// StockTimeout bounds one look at the stock. Default 250 ms.
	StockTimeout time.Duration
	// OnError hears of a stock that could not be read; the items are then
	// shown with what the database says. Default: nothing.
	OnError func(error)
}

// Catalog answers what is on sale. It is safe for concurrent use.
type Catalog struct {
	cfg    Config
	source Source
	stock  Stock

	cache   *otter.Cache[string, entry]
	list    atomic.Pointer[list]
	listing singleflight.Group

	mu   sync.Mutex
	next *lookup // gathers ids while a look-up is under way
	busy bool
	// forgotten counts the calls of Forget. A look that began before one must
	// not be remembered after it.
	forgotten int64
}

// entry is an item, or the knowledge that there is none.
type entry struct {
	item  Item
	known bool
}

// list is the answer to "all items".
type list struct {
	items []Item
	until time.Time
}

// New returns a Catalog.
func New(source Source, stock Stock, cfg Config) (*Catalog, error) {
	if cfg.Life == 0 {
		cfg.Life = time.Second
	}
	if cfg.MaxItems == 0 {
		cfg.MaxItems = 100_000
	}
	if cfg.LoadTimeout == 0 {
		cfg.LoadTimeout = 2 * time.Second
	}
	if cfg.StockTimeout == 0 {
		cfg.StockTimeout = 250 * time.Millisecond
	}
	if cfg.OnError == nil {
		cfg.OnError = func(error) {}
	}
	if cfg.Life < 0 || cfg.MaxItems < 1 || cfg.LoadTimeout < 0 || cfg.StockTimeout < 0 {
		return nil, fmt.Errorf("catalog: Life %v, MaxItems %d, LoadTimeout %v, StockTimeout %v: each must be above 0",
			cfg.Life, cfg.MaxItems, cfg.LoadTimeout, cfg.StockTimeout)
	}
	cache, err := otter.New(&otter.Options[string, entry]{
		MaximumSize: cfg.MaxItems,
		// That there is no such item is believed for a tenth of the time: another
		// process may have created it just now, and its buyers are waiting.
		ExpiryCalculator: otter.ExpiryWritingFunc(func(e otter.Entry[string, entry]) time.Duration {
			if e.Value.known {
				return cfg.Life
			}
			return cfg.Life / 10
		}),
	})
	if err != nil {
		return nil, fmt.Errorf("catalog: %w", err)
	}
	return &Catalog{cfg: cfg, source: source, stock: stock, cache: cache}, nil
}

// Item reads one item, at most Life old. Errors: ErrItemNotFound.
func (c *Catalog) Item(ctx context.Context, id string) (Item, error) {
	e, ok := c.cache.GetIfPresent(id)
	if !ok {
		var err error
		if e, err = c.lookUp(ctx, id); err != nil {
			return Item{}, err
		}
	}
	if !e.known {
		return Item{}, ErrItemNotFound
	}
	return e.item, nil
}

// Items reads all items, by id, at most Life old. The slice is shared: callers
// must not change it.
func (c *Catalog) Items(ctx context.Context) ([]Item, error) {
	if l := c.list.Load(); l != nil && time.Now().Before(l.until) {
		return l.items, nil
	}
	result := c.listing.DoChan("", func() (any, error) {
		began := c.generation()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.cfg.LoadTimeout)
		defer cancel()
		items, err := c.source.Items(ctx)
		if err != nil {
			return nil, err
		}
		c.addStock(ctx, items)
		c.remember(began, func() { c.list.Store(&list{items: items, until: time.Now().Add(c.cfg.Life)}) })
		return items, nil
	})
	select {
	case r := <-result:
		if r.Err != nil {
			return nil, r.Err
		}
		items, ok := r.Val.([]Item)
		if !ok {
			return nil, fmt.Errorf("catalog: list of items is %T", r.Val)
		}
		return items, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Forget drops what is remembered of an item, and what looks under way would
// remember of it.
func (c *Catalog) Forget(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forgotten++
	c.cache.Invalidate(id)
	c.list.Store(nil)
	// A later caller must not join a list that is being read already.
	c.listing.Forget("")
}

func (c *Catalog) generation() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.forgotten
}

// remember runs store unless something was forgotten since the look began.
func (c *Catalog) remember(began int64, store func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.forgotten == began {
		store()
	}
}

// lookup is one question to the source for several ids.
type lookup struct {
	ids   map[string]struct{}
	done  chan struct{}
	found map[string]entry
	err   error
}

// lookUp asks the source. The ids asked for while a question is under way make
// up the next one, so that a crowd asking for ids that do not exist costs one
// query at a time and not one each.
func (c *Catalog) lookUp(ctx context.Context, id string) (entry, error) {
	c.mu.Lock()
	if c.next == nil {
		c.next = &lookup{ids: make(map[string]struct{}), done: make(chan struct{})}
	}
	l := c.next
	l.ids[id] = struct{}{}
	if !c.busy {
		c.busy = true
		go c.ask(context.WithoutCancel(ctx))
	}
	c.mu.Unlock()
	select {
	case <-l.done:
		return l.found[id], l.err
	case <-ctx.Done():
		return entry{}, context.Cause(ctx)
	}
}

// ask answers the gathered look-ups, one after the other, until there is none.
func (c *Catalog) ask(ctx context.Context) {
	for {
		c.mu.Lock()
		l := c.next
		c.next = nil
		c.busy = l != nil
		c.mu.Unlock()
		if l == nil {
			return
		}
		l.found, l.err = c.load(ctx, l.ids)
		close(l.done)
	}
}

// loadChunk bounds the ids of one query.
const loadChunk = 500

func (c *Catalog) load(ctx context.Context, ids map[string]struct{}) (map[string]entry, error) {
	began := c.generation()
	ctx, cancel := context.WithTimeout(ctx, c.cfg.LoadTimeout)
	defer cancel()
	rest := make([]string, 0, len(ids))
	for id := range ids {
		rest = append(rest, id)
	}
	found := make(map[string]entry, len(ids))
	var all []Item
	for len(rest) > 0 {
		n := min(len(rest), loadChunk)
		items, err := c.source.ItemsByID(ctx, rest[:n])
		if err != nil {
			return nil, err
		}
		all = append(all, items...)
		rest = rest[n:]
	}
	c.addStock(ctx, all)
	for _, item := range all {
		found[item.ID] = entry{item, true}
	}
	c.remember(began, func() {
		for id := range ids {
			c.cache.Set(id, found[id])
		}
	})
	return found, nil
}

// addStock puts the live stock in place of the database's, which counts only
// what is committed.
func (c *Catalog) addStock(ctx context.Context, items []Item) {
	if len(items) == 0 {
		return
	}
	ids := make([]string, len(items))
	for i := range items {
		ids[i] = items[i].ID
	}
	// The stock may hang and must not take the source's time with it.
	ctx, cancel := context.WithTimeout(ctx, c.cfg.StockTimeout)
	defer cancel()
	left, err := c.stock.Left(ctx, ids)
	if err != nil {
		c.cfg.OnError(err)
		return
	}
	for i := range items {
		if left[i] >= 0 {
			items[i].StockLeft = left[i]
		}
	}
}
