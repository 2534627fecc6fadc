package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/bucket"
	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/store/database"
	"flashsale/order/timeouts"
)

// HighWaterConfig configures a HighWater. All fields but the functions are required.
type HighWaterConfig struct {
	Store      *Store
	Redis      redis.UniversalClient
	Partitions int
	// OnChange is called when the set of stopped items has changed, with all of them,
	// ordered by id. Default: nothing.
	OnChange func(stopped []Behind)
	// OnError receives errors of background work. Default: they are dropped.
	OnError func(error)
}

// HighWater detects that the database was restored from a backup, or has lost its last
// transactions in another way, while Redis has not.
//
// Every transaction that changes an item, its orders or its payments increments the item's
// revision, and once it is committed Redis records the revision as a high-water mark. The
// marks are read before the database, so a database below a mark has lost committed data.
// Queued and leased tasks do not matter here: their transactions have no revision yet.
//
// An item in buckets is behind if one of its buckets is. So is an item with a mark that the database
// does not have.
//
// The item is then marked in the database too (items.behind), because later commits raise
// its revision above the mark. It stays marked until an operator decides, or a newer file
// replaces this one.
//
// The sales of such items are stopped. No process loads or repairs them from the database,
// and none of their orders is cancelled or expires: the database lacks sold units and
// payments. Queued orders wait, because the database would refuse them for the data that it
// lost. Package recovery carries out the operator's decision.
type HighWater struct {
	HighWaterConfig
	Lineage string // of the database
	stopped atomic.Pointer[map[string]Behind]
	// urgent are items that compareServer has found, until a check of all items has stopped
	// them; nil: none.
	urgent atomic.Pointer[map[string]bool]
	// items is the number of items at the last full comparison.
	items  atomic.Int64
	nudged chan struct{}

	mu      sync.Mutex
	pending map[string]int64 // committed revisions that are not recorded yet; nil: none

	checking sync.Mutex // held by a check; guards the fields below
	after    string     // the last item of the previous page
	counted  int64      // items of the pages since the first one
	kept     time.Time  // when KeepRevisions was last called
}

// NewHighWater returns a HighWater that gets the store's committed revisions. Call it
// before the store is used. Errors: database.ErrUnavailable, inventory.ErrUnavailable.
func NewHighWater(ctx context.Context, cfg HighWaterConfig) (*HighWater, error) {
	if cfg.OnChange == nil {
		cfg.OnChange = func([]Behind) {}
	}
	if cfg.OnError == nil {
		cfg.OnError = func(error) {}
	}
	h := &HighWater{HighWaterConfig: cfg, nudged: make(chan struct{}, 1)}
	h.stopped.Store(&map[string]Behind{})
	var err error
	if h.Lineage, err = Lineage(ctx, cfg.Store); err != nil {
		return nil, err
	}
	cfg.Store.highWater = h
	return h, nil
}

// Committed keeps the revisions of a committed transaction until they are recorded.
func (h *HighWater) Committed(revisions map[string]int64) {
	if h == nil || len(revisions) == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.pending == nil {
		h.pending = make(map[string]int64, len(revisions))
	}
	for item, revision := range revisions {
		h.pending[item] = max(h.pending[item], revision)
	}
}

// Take removes and returns the revisions to record. If recording fails, the caller puts
// them back with Committed.
func (h *HighWater) Take() map[string]int64 {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	revisions := h.pending
	h.pending = nil
	return revisions
}

// Add adds the commands that record revisions to a pipeline.
func (h *HighWater) Add(ctx context.Context, p redis.Pipeliner, revisions map[string]int64) {
	if len(revisions) > 0 {
		inventory.NoteRevisions(ctx, p, h.Partitions, h.Lineage, revisions)
	}
}

// Note records committed revisions. After a failure, the next transaction or check records
// them.
func (h *HighWater) Note(ctx context.Context) {
	revisions := h.Take()
	if len(revisions) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeouts.Revisions)
	defer cancel()
	_, err := h.Redis.Pipelined(ctx, func(p redis.Pipeliner) error {
		h.Add(ctx, p, revisions)
		return nil
	})
	if err != nil {
		h.Committed(revisions)
		h.OnError(fmt.Errorf("record committed revisions: %w", err))
	}
}

// Stopped returns the stopped items, ordered by id.
func (h *HighWater) Stopped() []Behind {
	if h == nil {
		return nil
	}
	items := *h.stopped.Load()
	list := make([]Behind, 0, len(items))
	for _, id := range slices.Sorted(maps.Keys(items)) {
		list = append(list, items[id])
	}
	return list
}

// IsStopped reports whether an item is stopped.
func (h *HighWater) IsStopped(item string) bool {
	if h == nil {
		return false
	}
	if _, stopped := (*h.stopped.Load())[item]; stopped {
		return true
	}
	urgent := h.urgent.Load()
	return urgent != nil && (*urgent)[item]
}

// StoppedList returns the ids of the stopped items as a JSON list.
func (h *HighWater) StoppedList() string {
	var ids []string
	for _, b := range h.Stopped() {
		ids = append(ids, b.ItemID)
	}
	if h != nil {
		if urgent := h.urgent.Load(); urgent != nil {
			ids = slices.AppendSeq(ids, maps.Keys(*urgent))
		}
	}
	if len(ids) == 0 {
		return "[]"
	}
	return database.JSONList(ids...)
}

// AnyStopped reports whether any item is stopped. If so, the database as a whole is old.
func (h *HighWater) AnyStopped() bool { return h != nil && len(*h.stopped.Load()) > 0 }

// AllStopped reports whether every item is stopped. Those that the database does not have do not count.
func (h *HighWater) AllStopped() bool {
	if h == nil {
		return false
	}
	known := int64(0)
	for _, b := range *h.stopped.Load() {
		if !b.Lost {
			known++
		}
	}
	return known > 0 && known >= h.items.Load()
}

// errDatabaseOld says that the database is older than the revisions in Redis.
var errDatabaseOld = errors.New("order: the database is older than Redis")

// Err returns an error that names the stopped items, or nil.
func (h *HighWater) Err() error {
	stopped := h.Stopped()
	if len(stopped) == 0 {
		return nil
	}
	b := stopped[0]
	return fmt.Errorf("%w: sales are stopped (%d), the first is %s (revision %d in the database, %d in Redis)",
		errDatabaseOld, len(stopped), b.ItemID, b.Database, b.Redis)
}

// Nudge makes Run check all items soon. It does not block.
func (h *HighWater) Nudge() {
	select {
	case h.nudged <- struct{}{}:
	default:
	}
}

// Run checks a page of items after every interval, and all of them after a nudge,
// until ctx ends. A check of all items that fails is repeated.
func (h *HighWater) Run(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for all := false; ; {
		select {
		case <-tick.C:
		case <-h.nudged:
			all = true
		case <-ctx.Done():
			h.Note(ctx)
			return
		}
		h.Note(ctx)
		err := h.check(ctx, all)
		all = all && err != nil
		if err != nil && ctx.Err() == nil {
			h.OnError(fmt.Errorf("compare revisions of Redis and the database: %w", err))
		}
	}
}

// Check compares all items, and stops the sales of those that are behind.
// Errors: database.ErrUnavailable, inventory.ErrUnavailable.
func (h *HighWater) Check(ctx context.Context) error {
	if !h.Store.Postgres() {
		return h.check(ctx, true)
	}
	// The first write need not compare again, unless another server has taken over meanwhile.
	life, err := h.Store.ServerLife(ctx)
	if err != nil {
		return err
	}
	if err := h.check(ctx, true); err != nil {
		return err
	}
	h.Store.comparedLife.Store(&life)
	return nil
}

// check checks the next page of items, or all of them, and stops the sales of those that are behind.
func (h *HighWater) check(ctx context.Context, all bool) error {
	h.checking.Lock()
	defer h.checking.Unlock()
	if time.Since(h.kept) > keepEvery {
		if err := inventory.KeepRevisions(ctx, h.Redis, h.Partitions, h.Lineage); err != nil {
			return err
		}
		h.kept = time.Now()
	}
	urgent := h.urgent.Load()
	ids, err := h.itemsToCheck(ctx, all)
	if err != nil {
		return err
	}
	var found []Behind
	for page := range slices.Chunk(ids, revisionPage) {
		behind, err := h.Compare(ctx, page)
		if err != nil {
			return err
		}
		found = append(found, behind...)
	}
	if found, err = withBuckets(ctx, found, h.Store.revisions); err != nil {
		return err
	}
	if err := h.stop(ctx, found); err != nil {
		return err
	}
	if all {
		h.urgent.CompareAndSwap(urgent, nil)
	}
	return nil
}

// itemsToCheck returns the ids of the next page of items, or of all items, and those of the stopped
// ones, each id once. The caller holds checking.
func (h *HighWater) itemsToCheck(ctx context.Context, all bool) ([]string, error) {
	if all {
		h.after, h.counted = "", 0
	}
	// Stopped items are checked every time, because a decision ends the stop.
	ids := slices.Collect(maps.Keys(*h.stopped.Load()))
	for {
		page, err := h.Store.ItemIDs(ctx, h.after, revisionPage)
		if err != nil {
			return nil, err
		}
		ids = append(ids, page...)
		h.counted += int64(len(page))
		if len(page) < revisionPage {
			h.items.Store(h.counted)
			h.after, h.counted = "", 0
			break
		}
		h.after = page[len(page)-1]
		if !all {
			break
		}
	}
	if all {
		// The database may have lost items.
		err := inventory.EachRevised(ctx, h.Redis, h.Partitions, h.Lineage, func(revised []string) error {
			ids = append(ids, revised...)
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// keepEvery is how often KeepRevisions is called.
const keepEvery = time.Hour

// CheckBuckets fails if Redis has revisions of an item in buckets beyond the first n.
// Errors: *order.BucketsError, inventory.ErrUnavailable.
func (h *HighWater) CheckBuckets(ctx context.Context, item string, n int) error {
	if h == nil {
		return nil
	}
	marks, err := inventory.Revisions(ctx, h.Redis, h.Partitions, h.Lineage, bucket.IDs(item, bucket.Max))
	if err != nil {
		return err
	}
	for i := len(marks); i > max(n, 1); i-- {
		if marks[i-1] != inventory.Unmarked {
			return &order.BucketsError{Buckets: i}
		}
	}
	return nil
}

// stop stops the sales in found, in this process, in the database and in Redis. found holds
// all stopped items, as the earlier ones were checked again. A sale that is no longer
// stopped is loaded by its next purchase. The caller holds checking.
func (h *HighWater) stop(ctx context.Context, found []Behind) error {
	was := *h.stopped.Load()
	next := make(map[string]Behind, len(found))
	changed := len(found) != len(was)
	for _, b := range found {
		next[b.ItemID] = b
		before, known := was[b.ItemID]
		changed = changed || !known || before.Lost != b.Lost
	}
	// First in this process, which cannot fail.
	h.stopped.Store(&next)
	if changed {
		h.OnChange(found)
	}
	if len(found) == 0 {
		return nil
	}
	if err := inventory.Stop(ctx, h.Redis, h.Partitions, slices.Collect(maps.Keys(next))); err != nil {
		return err
	}
	return MarkBehind(ctx, h.Store, found)
}

// MayLoad returns inventory.ErrStopped for each item whose sale must not be loaded, because
// the database is older than Redis. It reads both. Of an item without a mark it records the revision:
// a sale must be loaded before it accepts orders, so an item with accepted orders has a mark, even if none
// of them is committed, unless Redis refused the mark or an older version loaded the sale.
// Errors: database.ErrUnavailable, inventory.ErrUnavailable.
func (h *HighWater) MayLoad(ctx context.Context, items []string) (refused map[string]error, err error) {
	if h == nil {
		return nil, nil
	}
	behind, unmarked, err := h.compare(ctx, items, h.Store.revisions)
	if err != nil {
		return nil, err
	}
	h.Committed(unmarked)
	h.Note(ctx)
	var unstopped []string
	refused = make(map[string]error, len(behind))
	for _, b := range behind {
		refused[b.ItemID] = fmt.Errorf("item %s: revision %d in the database, %d in Redis: %w", b.ItemID, b.Database, b.Redis, inventory.ErrStopped)
		if !h.IsStopped(b.ItemID) {
			unstopped = append(unstopped, b.ItemID)
		}
	}
	if len(unstopped) > 0 {
		h.Nudge()
		if err := inventory.Stop(ctx, h.Redis, h.Partitions, unstopped); err != nil {
			return nil, err
		}
	}
	return refused, nil
}
