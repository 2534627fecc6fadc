package catalog

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/bits-and-blooms/bloom/v3"

	"flashsale/internal/bucket"
)

// filter is the set of all ids, as a Bloom filter. If it is complete, an id that it does
// not hold is unknown. It is complete if it has received all items that were created since
// it was built; Redis counts the creations, so that this can be checked.
type filter struct {
	mu          sync.RWMutex
	bits        *bloom.BloomFilter // nil: not built yet
	generation  string             // of the creations that it certainly holds; "": not known
	room        int                // its capacity in ids
	ids         int
	building    bool
	invalidated bool       // Redis may have reused counts since the build under way began
	meanwhile   []creation // received during the build
	builtAt     time.Time
	took        time.Duration // of the last build

	now generation
}

// generation is the count of creations as it was read last. Readers share a read for
// generationLife. While Redis does not answer, ids are refused by a count that is up to
// generationTrust old.
type generation struct {
	mu     sync.Mutex
	value  string
	asOf   time.Time
	asking chan struct{} // closed when the read under way has ended
}

const (
	generationLife  = 50 * time.Millisecond
	generationTrust = time.Second
)

type creation struct{ generation, id string }

const (
	// falsePositives is the share of invented ids that pass the filter.
	falsePositives = 0.001
	// minRoom is the least capacity of a filter, in ids.
	minRoom = 10_000
	// idPage is how many ids one query reads.
	idPage = 10_000
	// buildPause is the least time between two builds, whatever their cause; it is
	// buildShare times as long as a build takes, if that is more.
	buildPause = 250 * time.Millisecond
	buildShare = 10
)

// refuses reports whether an id is certainly unknown. A bucket is known with its item:
// only the item's creation is announced.
func (c *Catalog) refuses(ctx context.Context, id string) bool {
	f := &c.filter
	f.mu.RLock()
	built, holds, complete := f.bits != nil, f.bits != nil && f.bits.TestString(bucket.Item(id)), f.generation
	f.mu.RUnlock()
	if !built || holds {
		return false
	}
	now, ok := c.generationNow(ctx)
	if !ok {
		return false
	}
	if !covers(complete, now) {
		// This process has missed the creation of some items.
		c.rebuildFilter()
		return false
	}
	return true
}

// generationNow reads the count of creations; !ok says that it is not known.
func (c *Catalog) generationNow(ctx context.Context) (value string, ok bool) {
	if c.remote == nil {
		return "", false
	}
	g := &c.filter.now
	g.mu.Lock()
	if !g.asOf.IsZero() && time.Since(g.asOf) < generationLife {
		defer g.mu.Unlock()
		return g.value, true
	}
	if g.asking == nil && !c.remote.isDown() && c.begin() {
		g.asking = make(chan struct{})
		go c.readGeneration(g.asking)
	}
	asking := g.asking
	g.mu.Unlock()
	if asking != nil {
		select {
		case <-asking:
		case <-ctx.Done():
			return "", false
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.value, !g.asOf.IsZero() && time.Since(g.asOf) < generationTrust
}

func (c *Catalog) readGeneration(done chan struct{}) {
	defer c.work.Done()
	askedAt := time.Now()
	value, err := c.remote.announce(c.life, "")
	g := &c.filter.now
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asking = nil
	if err == nil {
		g.value, g.asOf = value, askedAt
	}
	close(done)
}

// add adds an id to the filter. If the generation of its creation is given and follows the
// filter's, the filter stays complete.
func (f *filter) add(n creation) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.building {
		f.meanwhile = append(f.meanwhile, n)
	}
	if f.bits != nil {
		f.addLocked(n)
	}
}

func (f *filter) addLocked(n creation) {
	if !f.bits.TestOrAddString(n.id) {
		f.ids++
	}
	if follows(n.generation, f.generation) {
		f.generation = n.generation
	}
}

// invalidate makes the filter refuse nothing until it is built again. Redis may have lost its
// count, and reused it for other creations.
func (f *filter) invalidate() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.generation, f.invalidated = "", true
}

// follows reports whether next is the generation right after before.
func follows(next, before string) bool {
	word, count, ok := cutGeneration(before)
	nextWord, nextCount, nextOK := cutGeneration(next)
	return ok && nextOK && word == nextWord && nextCount == count+1
}

// covers reports whether a set that is complete up to one generation is complete up to
// another. A generation from a message may be ahead of one that was read.
func covers(complete, now string) bool {
	word, count, ok := cutGeneration(complete)
	nowWord, nowCount, nowOK := cutGeneration(now)
	return ok && nowOK && word == nowWord && count >= nowCount
}

func cutGeneration(g string) (word string, count int64, ok bool) {
	word, digits, ok := strings.Cut(g, ":")
	count, err := strconv.ParseInt(digits, 10, 64)
	return word, count, ok && err == nil
}

// rebuildFilter rebuilds the filter in the background, unless it was just built.
func (c *Catalog) rebuildFilter() {
	f := &c.filter
	f.mu.Lock()
	wanted := !f.building && time.Since(f.builtAt) >= max(buildPause, buildShare*f.took) && c.begin()
	if wanted {
		f.building, f.invalidated, f.meanwhile = true, false, nil
	}
	f.mu.Unlock()
	if wanted {
		go func() {
			defer c.work.Done()
			if err := c.buildFilter(c.life); err != nil {
				c.cfg.OnError(err)
			}
		}()
	}
}

// errBuilding says that the filter is being built already.
var errBuilding = errors.New("catalog: the filter of ids is being built")

// buildFilterNow builds the filter and returns when it is built.
func (c *Catalog) buildFilterNow(ctx context.Context) error {
	f := &c.filter
	f.mu.Lock()
	building := f.building
	f.building = true
	if !building {
		f.invalidated, f.meanwhile = false, nil
	}
	f.mu.Unlock()
	if building {
		return errBuilding
	}
	return c.buildFilter(ctx)
}

// buildFilter reads all ids. It reads the count of creations before them: an item is
// committed before it is counted, so the ids include all counted items.
func (c *Catalog) buildFilter(ctx context.Context) (err error) {
	f := &c.filter
	var ids []string
	var generation string
	began := time.Now()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.building, f.builtAt, f.took = false, time.Now(), time.Since(began)
		if f.invalidated {
			generation = ""
		}
		if err == nil {
			f.fill(ids, generation)
		}
		f.meanwhile = nil
	}()
	if c.remote != nil && !c.remote.isDown() {
		// Without the count the filter is built, but refuses nothing until the next build.
		if generation, err = c.remote.announce(ctx, ""); err != nil {
			c.cfg.OnError(err)
			generation = ""
		}
	}
	for after := ""; ; {
		page, err := c.idsAfter(ctx, after)
		if err != nil {
			return fmt.Errorf("catalog: build the set of ids: %w", err)
		}
		ids = append(ids, page...)
		if len(page) < idPage {
			return nil
		}
		after = page[len(page)-1]
	}
}

func (c *Catalog) idsAfter(ctx context.Context, after string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.LoadTimeout)
	defer cancel()
	c.counts.queries.Add(1)
	return c.source.ItemIDs(ctx, after, idPage)
}

// fill replaces the filter by the ids that were read, and those that were received
// meanwhile.
func (f *filter) fill(ids []string, generation string) {
	f.room = max(minRoom, 2*len(ids))
	f.bits = bloom.NewWithEstimates(uint(f.room), falsePositives)
	f.generation, f.ids = generation, 0
	for _, id := range ids {
		f.addLocked(creation{id: id})
	}
	for _, n := range f.meanwhile {
		f.addLocked(n)
	}
}

// full reports whether the filter needs a larger capacity.
func (f *filter) full() bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.bits != nil && f.ids > f.room
}

func (f *filter) built() bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.bits != nil
}
