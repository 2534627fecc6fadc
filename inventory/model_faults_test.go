package inventory

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/longtest"
	"flashsale/internal/testing/redistest"
	"flashsale/queue"
)

// lossy drops the replies of purchase scripts that have run, and counts the runs that
// processed the purchases.
type lossy struct {
	mu   sync.Mutex
	lose int // how many replies are still to be dropped
	runs int
}

func (l *lossy) DialHook(next redis.DialHook) redis.DialHook { return next }
func (l *lossy) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (l *lossy) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		c, ok := cmd.(*redis.Cmd)
		if !ok || err != nil || len(cmd.Args()) < 2 || cmd.Args()[1] != purchaseScript.Hash() {
			return err
		}
		if reply, isList := c.Val().([]any); !isList || reply[0] != "ok" {
			return err
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.runs++
		if l.lose == 0 {
			return nil
		}
		l.lose--
		cmd.SetErr(io.ErrUnexpectedEOF)
		return io.ErrUnexpectedEOF
	}
}

// arm makes it drop so many replies, and resets the runs.
func (l *lossy) arm(lose int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lose, l.runs = lose, 0
}

// world is the model of a sale whose Redis may lose data: the state of the database and the
// queue, from which a load makes the live sale, and the live sale itself. It is also the
// sale's Source.
type world struct {
	*model // the live sale; its queue exists also when no sale does
	loaded bool
	// marked: the live sale exists, but nothing is sold of it because the outcome of a change
	// is unknown. It still accepts releases.
	marked bool

	total, limit int64 // in the database, with the version of both
	state        string
	at           int64
	orders       map[string]sold // by buyer and key: in the database or the queue
	taken        map[string]bool // ids of those in the database
	closed       map[string]bool // ids of the closed orders, which hold no units

	// cut makes the next load fail after its first order; dropped drops the sale at that
	// point, as a worker does whose order was refused.
	cut     error
	dropped func(ctx context.Context) error
}

func (w *world) Epoch(context.Context) (int64, error) { return 1, nil }

// open reports whether an order's units are taken.
func (w *world) open(o sold) bool { return !w.closed[o.id] }

// free is the total without the units of the orders.
func (w *world) free() int64 {
	left := w.total
	for _, o := range w.orders {
		if w.open(o) {
			left -= o.quantity
		}
	}
	return left
}

func (w *world) Queued(_ context.Context, items []string) (map[string]Queued, error) {
	return map[string]Queued{items[0]: {}}, nil // all orders are in the database
}

func (w *world) Sales(ctx context.Context, items []string, _ map[string]Queued, each func(string, Holding) error, done func(string, Sale) error) error {
	sale, err := w.sale(ctx, func(h Holding) error { return each(items[0], h) })
	if err != nil {
		return err
	}
	return done(items[0], sale)
}

func (w *world) sale(ctx context.Context, each func(Holding) error) (Sale, error) {
	for i, field := range slices.Sorted(maps.Keys(w.orders)) {
		o := w.orders[field]
		if err := each(Holding{Buyer: o.buyer, IdempotencyKey: o.key, OrderID: o.id, Quantity: o.quantity, Counts: w.open(o)}); err != nil {
			return Sale{}, err
		}
		if i > 0 {
			continue
		}
		if drop := w.dropped; drop != nil {
			w.dropped = nil
			if err := drop(ctx); err != nil {
				return Sale{}, err
			}
		}
		if err := w.cut; err != nil {
			w.cut = nil
			return Sale{}, err
		}
	}
	if err := w.cut; err != nil {
		w.cut = nil
		return Sale{}, err
	}
	return Sale{Left: w.free(), PerUserLimit: w.limit, OpensAt: time.Now().Add(-time.Hour), Control: w.state, Version: w.at}, nil
}

// load is the live sale after a load.
func (w *world) load() {
	w.loaded, w.marked = true, false
	w.version, w.left, w.perUser, w.control = w.at, w.free(), w.limit, w.state
	w.known, w.back, w.held = maps.Clone(w.orders), map[string]bool{}, map[string]int64{}
	for field, o := range w.orders {
		if w.open(o) {
			w.held[o.buyer] += o.quantity
		} else {
			w.back[field] = true
		}
	}
}

// compare compares Redis with the model, and the model's two sides with each other.
func (w *world) compare(t *rapid.T, tb testing.TB, s *shop) {
	st := s.state(tb)
	if !slices.Equal(st.queue, w.queue) {
		t.Fatalf("the queue is %v, want %v", st.queue, w.queue)
	}
	if !w.loaded {
		return
	}
	if st.left(tb) != w.left || !strings.HasPrefix(st.sale["version"], strconv.FormatInt(w.version, 10)+".") {
		t.Fatalf("left is %d at %s, want %d at %d", st.left(tb), st.sale["version"], w.left, w.version)
	}
	if w.left < 0 || w.left != w.free() {
		t.Fatalf("%d left, and the orders leave %d of %d", w.left, w.free(), w.total)
	}
	counts, orders := map[string]string{}, map[string]string{}
	for buyer, n := range w.held {
		if n > 0 {
			counts[buyer] = strconv.FormatInt(n, 10)
		}
	}
	for field, o := range w.known {
		orders[field] = fmt.Sprintf("%d:%s", o.quantity, o.id)
		if w.back[field] {
			orders[field] += ":r"
		}
	}
	// A buyer whose units all returned may have a count of 0.
	maps.DeleteFunc(st.buyers, func(_, n string) bool { return n == "0" })
	for what, m := range map[string][2]map[string]string{"units per buyer": {st.buyers, counts}, "orders per key": {st.idempotency, orders}} {
		if d := differences(m[0], m[1]); d != "" {
			t.Fatalf("%s: %s", what, d)
		}
	}
}

// faults is one run: a seller without its goroutine, and the world to compare it with.
type faults struct {
	*world
	tb    testing.TB
	ctx   context.Context
	s     *shop
	v     *Inventory
	sel   *seller
	lossy *lossy
	sent  []*Request
}

// TestPurchase_FaultsModel drives a seller through random batches while replies are lost,
// Redis is emptied, sales are dropped, loads fail half-way, the lock is lost, orders close and
// the terms change. After every step Redis, the database and the queue must account for every
// unit.
func TestPurchase_FaultsModel(t *testing.T) {
	t.Parallel()
	testFaultsModel(t)
}

func TestPurchase_FaultsModel_Long(t *testing.T) {
	longtest.Only(t)
	t.Parallel()
	testFaultsModel(t)
}

func testFaultsModel(t *testing.T) {
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		locks := newLocks(t, rdb, lockConfig)
		// Loaded beforehand, so that each run is one call that the hook counts.
		if err := purchaseScript.Load(await.Context(t), rdb).Err(); err != nil {
			t.Fatal(err)
		}
		rapid.Check(t, func(rt *rapid.T) {
			o := redistest.Options(rdb.Options().Addr)
			// A slow reply must not count as a lost one, which the model would not know of.
			o.ReadTimeout, o.WriteTimeout = limit, limit
			cut := redis.NewClient(o)
			defer func() {
				if err := cut.Close(); err != nil {
					t.Error(err)
				}
			}()
			f := newFaults(t, rt, rdb, cut)
			v, err := New(f.ctx, cut, locks, []*queue.Queue{f.s.queue}, f.world, Config{Patience: patient, HoldLimit: patient, SettleLimit: patient})
			if err != nil {
				rt.Fatal(err)
			}
			defer func() {
				if err := v.Close(f.ctx); err != nil {
					t.Error(err)
				}
			}()
			f.v, f.sel = v, newSeller(v, f.s.item)
			v.mu.Lock()
			v.sellers[f.s.item] = f.sel // a load reads the sale's floor from it
			v.mu.Unlock()
			defer f.sel.lock.release()
			rt.Repeat(map[string]func(*rapid.T){
				"buy": f.buy, "buy more": f.buy, "take": f.take, "close": f.close, "give back": f.giveBack,
				"change": f.change, "drop": f.drop, "flush": f.flush, "lose the lock": f.loseLock,
				"": func(rt *rapid.T) { f.compare(rt, t, f.s) },
			})
		})
	})
}

func newFaults(t *testing.T, rt *rapid.T, rdb, cut *redis.Client) *faults {
	ctx, cancel := context.WithTimeout(t.Context(), 4*limit)
	rt.Cleanup(cancel)
	f := &faults{tb: t, ctx: ctx, s: newShop(t, rdb, Sale{}, 0), lossy: new(lossy)}
	cut.AddHook(f.lossy)
	f.world = &world{
		model: &model{room: 1 << 30, known: map[string]sold{}, back: map[string]bool{}, held: map[string]int64{}},
		total: rapid.Int64Range(0, 40).Draw(rt, "stock"), limit: rapid.Int64Range(1, 6).Draw(rt, "limit"), state: "open", at: 1,
		orders: map[string]sold{}, taken: map[string]bool{}, closed: map[string]bool{},
	}
	return f
}

// buy sells a batch until its outcome is known. The last run of the script decides the
// answers, and all runs together must have had the effect of one.
func (f *faults) buy(t *rapid.T) {
	n := rapid.IntRange(1, 12).Draw(t, "batch")
	batch, got, answered := make([]*Request, n), make([]Outcome, n), make([]int, n)
	for i := range batch {
		var r *Request
		if len(f.sent) > 0 && rapid.IntRange(0, 3).Draw(t, "repeat") == 0 {
			copied := *rapid.SampledFrom(f.sent).Draw(t, "of")
			r = &copied
		} else {
			r = f.s.request(fmt.Sprintf("u%d", rapid.IntRange(0, 8).Draw(t, "buyer")),
				fmt.Sprintf("k%d", rapid.IntRange(0, 4).Draw(t, "key")), rapid.Int64Range(1, 4).Draw(t, "quantity"))
		}
		r.Done = func(o Outcome) {
			got[i] = o
			answered[i]++
		}
		r.since = time.Now()
		batch[i] = r
		f.sent = append(f.sent, r)
	}
	broken := !f.loaded && rapid.IntRange(0, 3).Draw(t, "the load fails") == 0
	lose := 0
	if broken {
		f.cut = errors.New("the database is away")
	} else {
		lose = rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(t, "lost answers")
		if !f.loaded && rapid.Bool().Draw(t, "dropped while it is loaded") {
			f.dropped = func(ctx context.Context) error { return Invalidate(ctx, f.s.rdb, 1, []string{f.s.item}) }
		}
	}
	f.lossy.arm(lose)
	f.sel.dropMark() // the script decides every request
	f.sel.sell(slices.Clone(batch))
	f.dropped = nil
	want := make([]Outcome, n)
	if broken {
		f.marked = false // a load that fails has dropped the sale first
		for i := range want {
			want[i].Err = ErrRebuilding
		}
	} else {
		if !f.loaded {
			f.load()
		}
		if f.lossy.runs != lose+1 {
			t.Fatalf("the script looked at the batch %d times, with %d answers lost", f.lossy.runs, lose)
		}
		for range f.lossy.runs {
			for i, r := range batch {
				want[i] = f.purchase(r)
				if field := r.Buyer + " " + r.IdempotencyKey; want[i] == (Outcome{}) {
					f.orders[field] = f.known[field]
				}
			}
		}
	}
	for i, r := range batch {
		if answered[i] != 1 || !sameOutcome(got[i], want[i]) {
			t.Fatalf("request %d of %d (%s %s %d %s) was answered %d times, with %+v, want %+v",
				i, n, r.Buyer, r.IdempotencyKey, r.Quantity, r.OrderID, answered[i], got[i], want[i])
		}
	}
}

// take makes a worker commit orders.
func (f *faults) take(t *rapid.T) {
	n := min(rapid.IntRange(1, 20).Draw(t, "tasks"), len(f.queue))
	if n == 0 {
		t.Skip("nothing is queued")
	}
	got := f.s.take(f.tb, n)
	n = len(got) // a task has all orders of a batch
	if n > len(f.queue) || !slices.Equal(got, f.queue[:n]) {
		t.Fatalf("took %v of %v", got, f.queue)
	}
	for _, o := range got {
		f.taken[o.id] = true
	}
	f.queue = f.queue[n:]
}

// committed are the orders in the database, in a fixed order.
func (f *faults) committed() []sold {
	var list []sold
	for _, field := range slices.Sorted(maps.Keys(f.orders)) {
		if o := f.orders[field]; f.taken[o.id] {
			list = append(list, o)
		}
	}
	return list
}

// close closes an order in the database, and releases it or not, as a process does that dies
// in between.
func (f *faults) close(t *rapid.T) {
	list := f.committed()
	if len(list) == 0 {
		t.Skip("nothing is committed")
	}
	o := rapid.SampledFrom(list).Draw(t, "order")
	f.closed[o.id] = true
	f.give(t, o)
}

// giveBack is the sweeper: it releases closed orders again.
func (f *faults) giveBack(t *rapid.T) {
	list := slices.DeleteFunc(f.committed(), f.open)
	if len(list) == 0 {
		t.Skip("nothing is closed")
	}
	f.give(t, rapid.SliceOfN(rapid.SampledFrom(list), 1, 6).Draw(t, "orders")...)
}

func (f *faults) give(t *rapid.T, list ...sold) {
	orders, want := make([]Released, len(list)), make([]ReleaseStatus, len(list))
	for i, o := range list {
		orders[i] = Released{Buyer: o.buyer, IdempotencyKey: o.key, OrderID: o.id, Quantity: o.quantity}
		want[i] = ReleaseNotLoaded
		if f.loaded || f.marked {
			want[i] = f.release(&orders[i])
		}
	}
	got, _, err := Release(f.ctx, f.s.rdb, 1, 1, f.s.item, orders)
	if err != nil || !slices.Equal(got, want) {
		t.Fatalf("released %v with %v, %v, want %v", orders, got, err, want)
	}
}

// change is an admin's change: a restock or a take-back, another limit, a pause or its end.
// The commit succeeds, does not happen, or has an unknown outcome.
func (f *faults) change(t *rapid.T) {
	f.sel.lock.release() // an admin waits for the lock
	c := Change{AddLeft: rapid.SampledFrom([]int64{0, 1, 7, -1, -5}).Draw(t, "add")}
	if !f.loaded && c.AddLeft < 0 {
		f.load() // the units must be there
	}
	loaded := f.loaded
	if rapid.Bool().Draw(t, "with limit") {
		c.PerUserLimit = ptr(rapid.Int64Range(1, 6).Draw(t, "limit"))
	}
	if rapid.Bool().Draw(t, "with control") {
		c.Control = ptr(rapid.SampledFrom([]string{"open", "open", "paused", "closed"}).Draw(t, "control"))
	}
	outcome := rapid.SampledFrom([]string{"made", "made", "unchanged", "unknown, made", "unknown, not made"}).Draw(t, "outcome")
	unknown := errors.New("the commit's outcome is unknown")
	err := f.v.Change(f.ctx, f.s.item, c, func(context.Context) (int64, error) {
		if strings.HasSuffix(outcome, "not made") || outcome == "unchanged" {
			return 0, map[bool]error{true: ErrUnchanged, false: unknown}[outcome == "unchanged"]
		}
		f.total += c.AddLeft
		f.at++
		if c.PerUserLimit != nil {
			f.limit = *c.PerUserLimit
		}
		if c.Control != nil {
			f.state = *c.Control
		}
		if outcome != "made" {
			return 0, unknown
		}
		return f.at, nil
	})
	switch left := f.left; {
	case c.AddLeft < 0 && left+c.AddLeft < 0:
		if !errors.Is(err, ErrStockBelowSold) {
			t.Fatalf("%d taken back of %d left: %v", -c.AddLeft, left, err)
		}
	case outcome == "made":
		if err != nil {
			t.Fatalf("change %+v: %v", c, err)
		}
		c.Version = f.at
		if !loaded {
			f.marked = false // the sale is dropped
			break
		}
		if err := f.adjust(&c, 0, 0); err != nil {
			t.Fatalf("the model refuses %+v: %v", c, err)
		}
	case outcome == "unchanged":
		if !errors.Is(err, ErrUnchanged) {
			t.Fatalf("change %+v: %v, want ErrUnchanged", c, err)
		}
	default:
		if !errors.Is(err, unknown) {
			t.Fatalf("change %+v: %v, want that its outcome is unknown", c, err)
		}
		f.loaded, f.marked = false, loaded // a sale that was not loaded is dropped
	}
}

// drop is the drop by a worker whose order the database refuses, or by a sweeper whose order
// is not in the sale.
func (f *faults) drop(t *rapid.T) {
	forget := func() error { return Invalidate(f.ctx, f.s.rdb, 1, []string{f.s.item}) }
	if rapid.Bool().Draw(t, "unload") {
		forget = func() error { return Unload(f.ctx, f.s.rdb, 1, f.s.item) }
	}
	if err := forget(); err != nil {
		t.Fatal(err)
	}
	f.loaded, f.marked = false, false
}

// flush is FLUSHALL for everything that belongs to this shop: orders that were only in the
// queue are lost, and the database has the others.
func (f *faults) flush(t *rapid.T) {
	name := strings.TrimPrefix(f.s.item, "item-")
	found, err := f.s.rdb.Keys(f.ctx, "*"+name+"*").Result()
	if err == nil && len(found) > 0 {
		err = f.s.rdb.Del(f.ctx, found...).Err()
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range f.queue {
		delete(f.orders, o.buyer+" "+o.key)
	}
	f.queue, f.loaded, f.marked = nil, false, false
}

// loseLock makes the lock's key expire while the seller holds it, as after a stall.
func (f *faults) loseLock(t *rapid.T) {
	if err := f.s.rdb.Del(f.ctx, f.v.keys.lockKey(f.s.item)).Err(); err != nil {
		t.Fatal(err)
	}
}
