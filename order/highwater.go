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

// revisionPage is how many items are compared at a time.
const revisionPage = 500

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
// The item is then marked in the database too (items.behind), since what is committed
// from then on raises its revision again. The mark stays until an operator has decided,
// or a newer file has taken this one's place.
//
// The sales of such items are stopped. No process loads them from the database or
// repairs them from it, and none of their orders is cancelled or expires: the
// database does not know which units were sold and which orders were paid. Queued
// orders wait, for the database would refuse them by what it has lost. [Recoverer]
// carries out the operator's decision.
type HighWater struct {
	HighWaterConfig
	lineage string // of the database
	stopped atomic.Pointer[map[string]Behind]
	// items is how many there were when all were last compared.
	items  atomic.Int64
	nudged chan struct{}

	mu      sync.Mutex
	pending map[string]int64 // committed revisions that are not recorded yet

	checking sync.Mutex // held by a check; guards the rest
	after    string     // the last item of the page before
	counted  int64      // items of the pages since the first one
	kept     time.Time  // when KeepRevisions was last called
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
	var err error
	if h.lineage, err = cfg.Store.lineage(ctx); err != nil {
		return nil, err
	}
	cfg.Store.highWater = h
	return h, nil
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

// add adds to a pipeline what records revisions.
func (h *HighWater) add(ctx context.Context, p redis.Pipeliner, revisions map[string]int64) {
	if len(revisions) > 0 {
		inventory.NoteRevisions(ctx, p, h.Partitions, h.lineage, revisions)
	}
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
		h.add(ctx, p, revisions)
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

// All reports whether every item is stopped.
func (h *HighWater) All() bool {
	return h.Any() && int64(len(*h.stopped.Load())) >= h.items.Load()
}

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
	if time.Since(h.kept) > keepEvery {
		if err := inventory.KeepRevisions(ctx, h.Redis, h.Partitions, h.lineage); err != nil {
			return err
		}
		h.kept = time.Now()
	}
	if all {
		h.after, h.counted = "", 0
	}
	// Those that are stopped are looked at each time: the stop ends with the decision.
	looked := slices.Collect(maps.Keys(*h.stopped.Load()))
	for {
		ids, err := h.Store.ItemIDs(ctx, h.after, revisionPage)
		if err != nil {
			return err
		}
		looked = append(looked, ids...)
		h.counted += int64(len(ids))
		if len(ids) < revisionPage {
			h.items.Store(h.counted)
			h.after, h.counted = "", 0
			break
		}
		h.after = ids[len(ids)-1]
		if !all {
			break
		}
	}
	var found []Behind
	for page := range slices.Chunk(looked, revisionPage) {
		behind, err := h.compare(ctx, page)
		if err != nil {
			return err
		}
		found = append(found, behind...)
	}
	return h.stop(ctx, found)
}

// keepEvery is how often KeepRevisions is called.
const keepEvery = time.Hour

// compare reads the marks of items and then their rows. Between the two the database
// can only have come further.
func (h *HighWater) compare(ctx context.Context, ids []string) ([]Behind, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	marks, err := inventory.Revisions(ctx, h.Redis, h.Partitions, h.lineage, ids)
	if err != nil {
		return nil, err
	}
	rows, err := h.Store.revisions(ctx, ids)
	if err != nil {
		return nil, err
	}
	var behind []Behind
	for i, id := range ids {
		if row, known := rows[id]; known && row.behindOf(marks[i]) {
			behind = append(behind, Behind{id, row.Revision, max(marks[i], row.Behind)})
		}
	}
	return behind, nil
}

// stop stops the sales that were found, here, in the database and in Redis. They are
// all that are stopped: those that were before were looked at again. The next purchase
// of one that is stopped no more loads the sale. The caller holds checking.
func (h *HighWater) stop(ctx context.Context, found []Behind) error {
	was := *h.stopped.Load()
	next := make(map[string]Behind, len(found))
	changed := false
	for _, b := range found {
		next[b.ItemID] = b
		_, known := was[b.ItemID]
		changed = changed || !known
	}
	changed = changed || len(next) != len(was)
	// First here, which needs nothing that can fail.
	h.stopped.Store(&next)
	if changed {
		h.OnChange(h.Stopped())
	}
	if len(found) == 0 {
		return nil
	}
	if err := inventory.Stop(ctx, h.Redis, h.Partitions, slices.Collect(maps.Keys(next))); err != nil {
		return err
	}
	return h.Store.markBehind(ctx, found)
}

// FindBehind compares all items and changes nothing: neither is a sale stopped, nor a
// revision recorded. Errors: ErrDatabase, inventory.ErrUnavailable.
func FindBehind(ctx context.Context, store *Store, rdb redis.UniversalClient, partitions int) ([]Behind, error) {
	lineage, err := store.lineage(ctx)
	if err != nil {
		return nil, err
	}
	h := &HighWater{HighWaterConfig: HighWaterConfig{Store: store, Redis: rdb, Partitions: partitions}, lineage: lineage}
	var found []Behind
	for after := ""; ; {
		ids, err := store.ItemIDs(ctx, after, revisionPage)
		if err != nil {
			return nil, err
		}
		behind, err := h.compare(ctx, ids)
		if err != nil {
			return nil, err
		}
		found = append(found, behind...)
		if len(ids) < revisionPage {
			return found, nil
		}
		after = ids[len(ids)-1]
	}
}

// MayLoad returns inventory.ErrStopped for each of the items whose sale must not be
// loaded from the database, because the database is older than Redis. It asks both.
// Errors: ErrDatabase, inventory.ErrUnavailable.
func (h *HighWater) MayLoad(ctx context.Context, items []string) (refused map[string]error, err error) {
	if h == nil {
		return nil, nil
	}
	behind, err := h.compare(ctx, items)
	if err != nil {
		return nil, err
	}
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

// revisionRow is how far an item has come in the database.
type revisionRow struct {
	ID       string
	Revision int64
	Behind   int64 // the mark that it was found to be below; 0: none
}

// behindOf reports whether the database is older than a mark shows, or was found to be.
func (r revisionRow) behindOf(mark int64) bool { return r.Behind > 0 || r.Revision < mark }

// revisions reads how far those of the items have come that exist.
func (s *Store) revisions(ctx context.Context, ids []string) (map[string]revisionRow, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var rows []revisionRow
	err := s.read.WithContext(ctx).Raw("SELECT id, revision, behind FROM items WHERE id IN (SELECT value FROM json_each(?))", jsonList(ids...)).Scan(&rows).Error
	if err != nil {
		return nil, wrap("read revisions", err)
	}
	revisions := make(map[string]revisionRow, len(rows))
	for _, r := range rows {
		revisions[r.ID] = r
	}
	return revisions, nil
}

// markBehind marks items as behind, until a recovery takes the mark away.
func (s *Store) markBehind(ctx context.Context, items []Behind) error {
	ids := make([]string, len(items))
	for i := range items {
		ids[i] = items[i].ItemID
	}
	rows, err := s.revisions(ctx, ids)
	if err != nil {
		return err
	}
	items = slices.DeleteFunc(slices.Clone(items), func(b Behind) bool { return rows[b.ItemID].Behind >= b.Redis })
	if len(items) == 0 {
		return nil
	}
	return s.transition(ctx, fmt.Sprintf("mark %d items as behind", len(items)), func(ctx context.Context, c conn, _ int64) error {
		for _, b := range items {
			// Unless it was decided meanwhile, which has raised the revision above the mark.
			if _, err := c.ExecContext(ctx, setBehind, b.Redis, b.ItemID); err != nil {
				return err
			}
		}
		return nil
	})
}

const setBehind = `UPDATE items SET behind = MAX(behind, ?1) WHERE id = ?2 AND (behind > 0 OR revision < ?1)`

// bumpRevision increases an item's revision.
const bumpRevision = `UPDATE items SET revision = revision + 1 WHERE id = ?1 RETURNING revision`
