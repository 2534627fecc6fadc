package order

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

	"flashsale/inventory"
)

// Behind is an item of which the database is older than Redis has seen it.
type Behind struct {
	ItemID   string
	Database int64 // the item's revision in the database
	Redis    int64 // the highest committed revision that Redis knows
}

// HighWaterConfig configures a HighWater. All but the functions are required.
type HighWaterConfig struct {
	Store      *Store
	Redis      redis.UniversalClient
	Partitions int
	// OnChange is called when the set of stopped items has changed, with all of them
	// in the order of their ids. Default: nothing.
	OnChange func(stopped []Behind)
	// OnError is called with errors of background work. Default: nothing.
	OnError func(error)
}

// HighWater detects a database that was restored from a backup, or that has lost
// its last transactions in another way, while Redis has not.
//
// Every transaction that changes an item, its orders or its payments increases the
// item's revision, and once it is committed Redis records the revision as a high-water
// mark. The marks are read before the database, so a database below a mark has lost
// what it had committed. Tasks that are queued or leased play no part in it: their
// transactions have no revision yet.
//
// The sales of such items are stopped. No process loads them from the database or
// repairs them from it, and none of their orders is cancelled or expires: the
// database does not know which units were sold and which orders were paid. [Recoverer]
// carries out the operator's decision.
type HighWater struct {
	HighWaterConfig
	stopped atomic.Pointer[map[string]Behind]
	nudged  chan struct{}

	mu      sync.Mutex
	pending map[string]int64 // committed revisions that are not recorded yet

	checking sync.Mutex // held by a check
	after    string     // the last item of the page before; guarded by checking
}

// NewHighWater returns a HighWater, and makes the store report to it what it commits.
// Call it before the store is used. Errors: ErrDatabase, inventory.ErrUnavailable.
func NewHighWater(ctx context.Context, cfg HighWaterConfig) (*HighWater, error) {
	if cfg.OnChange == nil {
		cfg.OnChange = func([]Behind) {}
	}
	if cfg.OnError == nil {
		cfg.OnError = func(error) {}
	}
	h := &HighWater{HighWaterConfig: cfg, nudged: make(chan struct{}, 1), pending: make(map[string]int64)}
	h.stopped.Store(&map[string]Behind{})
	if err := h.adopt(ctx); err != nil {
		return nil, err
	}
	cfg.Store.highWater = h
	return h, nil
}

// adopt makes Redis record the revisions of this database.
func (h *HighWater) adopt(ctx context.Context) error {
	lineage, err := h.Store.lineage(ctx)
	if err != nil {
		return err
	}
	return inventory.AdoptLineage(ctx, h.Redis, h.Partitions, lineage)
}

// commit remembers what a transaction has committed, until it is recorded.
func (h *HighWater) commit(revisions map[string]int64) {
	if h == nil || len(revisions) == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for item, revision := range revisions {
		h.pending[item] = max(h.pending[item], revision)
	}
}

// take removes the revisions to be recorded. What could not be recorded is given back
// with commit.
func (h *HighWater) take() map[string]int64 {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.pending) == 0 {
		return nil
	}
	revisions := h.pending
	h.pending = make(map[string]int64)
	return revisions
}

// noteTimeout bounds the recording of revisions.
const noteTimeout = time.Second

// note records what was committed. What cannot be recorded now is recorded with the
// next transaction or check.
func (h *HighWater) note(ctx context.Context) {
	revisions := h.take()
	if len(revisions) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), noteTimeout)
	defer cancel()
	_, err := h.Redis.Pipelined(ctx, func(p redis.Pipeliner) error {
		inventory.NoteRevisions(ctx, p, h.Partitions, revisions)
		return nil
	})
	if err != nil {
		h.commit(revisions)
		h.OnError(fmt.Errorf("record committed revisions: %w", err))
	}
}

// Stopped returns the items that are stopped, in the order of their ids.
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
	_, stopped := (*h.stopped.Load())[item]
	return stopped
}

// stoppedList is the ids of the stopped items as a JSON list.
func (h *HighWater) stoppedList() string {
	stopped := h.Stopped()
	if len(stopped) == 0 {
		return "[]"
	}
	ids := make([]string, len(stopped))
	for i := range stopped {
		ids[i] = stopped[i].ItemID
	}
	return jsonList(ids...)
}

// Any reports whether any item is stopped: then the database as a whole is older.
func (h *HighWater) Any() bool { return h != nil && len(*h.stopped.Load()) > 0 }

// ErrDatabaseOld says that the database is older than Redis has seen it.
var ErrDatabaseOld = errors.New("order: the database is older than Redis")

// Err returns an error that names the stopped items, or nil.
func (h *HighWater) Err() error {
	stopped := h.Stopped()
	if len(stopped) == 0 {
		return nil
	}
	b := stopped[0]
	return fmt.Errorf("%w: %d sales are stopped, the first is %s (revision %d in the database, %d in Redis)",
		ErrDatabaseOld, len(stopped), b.ItemID, b.Database, b.Redis)
}

// Nudge makes Run check all items soon. It does not wait.
func (h *HighWater) Nudge() {
	select {
	case h.nudged <- struct{}{}:
	default:
	}
}

// Run checks a page of items after every interval, and all of them after a nudge,
// until ctx ends.
func (h *HighWater) Run(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		all := false
		select {
		case <-tick.C:
		case <-h.nudged:
			all = true
		case <-ctx.Done():
			h.note(ctx)
			return
		}
		h.note(ctx)
		if err := h.check(ctx, all); err != nil && ctx.Err() == nil {
			h.OnError(fmt.Errorf("compare revisions of Redis and the database: %w", err))
		}
	}
}

// Check compares all items, and stops the sales of those that are behind.
// Errors: ErrDatabase, inventory.ErrUnavailable.
func (h *HighWater) Check(ctx context.Context) error { return h.check(ctx, true) }

func (h *HighWater) check(ctx context.Context, all bool) error {
	h.checking.Lock()
	defer h.checking.Unlock()
	after := h.after
	if all {
		after = ""
	}
	found := make(map[string]Behind)
	var looked []string
	for {
		ids, err := h.Store.ItemIDs(ctx, after, markPage)
		if err != nil {
			return err
		}
		looked = append(looked, ids...)
		behind, err := h.compare(ctx, ids)
		if err != nil {
			return err
		}
		for _, b := range behind {
			found[b.ItemID] = b
		}
		if len(ids) < markPage {
			h.after = ""
			break
		}
		after = ids[len(ids)-1]
		if !all {
			h.after = after
			break
		}
	}
	return h.stop(ctx, looked, found, all)
}

// compare reads the marks of items and then their revisions. Between the two the
// database can only have come further.
func (h *HighWater) compare(ctx context.Context, ids []string) ([]Behind, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	marks, err := inventory.Revisions(ctx, h.Redis, h.Partitions, ids)
	if err != nil {
		return nil, err
	}
	revisions, err := h.Store.revisions(ctx, ids)
	if err != nil {
		return nil, err
	}
	var behind []Behind
	for i, id := range ids {
		if revision, known := revisions[id]; known && revision < marks[i] {
			behind = append(behind, Behind{id, revision, marks[i]})
		}
	}
	return behind, nil
}

// stop stops the sales that were found, and notes the present set of stopped items.
// Items that were looked at and not found are stopped no more: their next purchase
// loads the sale. The caller holds checking.
func (h *HighWater) stop(ctx context.Context, looked []string, found map[string]Behind, all bool) error {
	was := *h.stopped.Load()
	next := make(map[string]Behind, len(found))
	if !all {
		maps.Copy(next, was)
		for _, id := range looked {
			delete(next, id)
		}
	}
	maps.Copy(next, found)
	if len(found) > 0 {
		if err := inventory.Stop(ctx, h.Redis, h.Partitions, slices.Collect(maps.Keys(found))); err != nil {
			return err
		}
	}
	if !maps.Equal(was, next) {
		h.stopped.Store(&next)
		h.OnChange(h.Stopped())
	}
	return nil
}

// FindBehind compares all items and changes nothing: neither is a sale stopped, nor a
// revision recorded. Errors: ErrDatabase, inventory.ErrUnavailable.
func FindBehind(ctx context.Context, store *Store, rdb redis.UniversalClient, partitions int) ([]Behind, error) {
	own, err := store.lineage(ctx)
	if err != nil {
		return nil, err
	}
	recorded, err := inventory.Lineage(ctx, rdb, 0)
	if err != nil || recorded != own {
		return nil, err
	}
	h := &HighWater{HighWaterConfig: HighWaterConfig{Store: store, Redis: rdb, Partitions: partitions}}
	var found []Behind
	for after := ""; ; {
		ids, err := store.ItemIDs(ctx, after, markPage)
		if err != nil {
			return nil, err
		}
		behind, err := h.compare(ctx, ids)
		if err != nil {
			return nil, err
		}
		found = append(found, behind...)
		if len(ids) < markPage {
			return found, nil
		}
		after = ids[len(ids)-1]
	}
}

// MayLoad returns inventory.ErrStopped if an item's sale must not be loaded from the
// database, because the database is older than Redis. It asks both.
func (h *HighWater) MayLoad(ctx context.Context, item string) error {
	if h == nil {
		return nil
	}
	behind, err := h.compare(ctx, []string{item})
	if err != nil {
		return err
	}
	if len(behind) == 0 {
		return nil
	}
	if !h.IsStopped(item) {
		h.Nudge()
		if err := inventory.Stop(ctx, h.Redis, h.Partitions, []string{item}); err != nil {
			return err
		}
	}
	return fmt.Errorf("item %s: revision %d in the database, %d in Redis: %w", item, behind[0].Database, behind[0].Redis, inventory.ErrStopped)
}

// lineage names this database and its backups.
func (s *Store) lineage(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var value string
	if err := s.read.WithContext(ctx).Raw("SELECT value FROM meta WHERE key = 'lineage'").Scan(&value).Error; err != nil {
		return "", wrap("read lineage", err)
	}
	return value, nil
}

// revisions reads the revisions of the items that exist.
func (s *Store) revisions(ctx context.Context, ids []string) (map[string]int64, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var rows []struct {
		ID       string
		Revision int64
	}
	err := s.read.WithContext(ctx).Raw("SELECT id, revision FROM items WHERE id IN (SELECT value FROM json_each(?))", jsonList(ids...)).Scan(&rows).Error
	if err != nil {
		return nil, wrap("read revisions", err)
	}
	revisions := make(map[string]int64, len(rows))
	for _, r := range rows {
		revisions[r.ID] = r.Revision
	}
	return revisions, nil
}

// bumpRevision increases an item's revision.
const bumpRevision = `UPDATE items SET revision = revision + 1 WHERE id = ?1 RETURNING revision`
