package inventory

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/longtest"
	"flashsale/internal/testing/redistest"
	"flashsale/inventory/accepted"
	"flashsale/lock"
	"flashsale/queue"
)

// TestMain also checks that sellers, marks and their locks leave no goroutine behind.
func TestMain(m *testing.M) {
	// Most tests wait most of the time. The command line overrides this.
	if err := flag.Set("test.parallel", strconv.Itoa(8*runtime.GOMAXPROCS(0))); err != nil {
		panic(err)
	}
	longtest.Checks(20)
	redistest.Main(m)
}

// limit bounds waits; it is long because it only delays a failure.
const limit = 5 * time.Minute

// stored is a Source with a sale's terms and the tasks in the queue: the state of the database
// before a worker has run.
type stored struct {
	queue *queue.Queue

	mu     sync.Mutex
	epoch  int64
	sales  map[string]Sale
	past   map[string][]Holding // orders that are no longer in the queue
	err    error
	loads  int
	scans  int // calls of Queued
	covers int // how many items a call of Queued covers; 0: all
	// before runs before a load reads anything, after when it has read everything.
	before, after func(ctx context.Context) error
}

func (s *stored) Epoch(context.Context) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.epoch, s.err
}

var errNoItem = errors.New("no such item")

func (s *stored) Queued(ctx context.Context, items []string) (map[string]Queued, error) {
	s.mu.Lock()
	before := s.before
	s.scans++
	s.mu.Unlock()
	if before != nil {
		if err := before(ctx); err != nil {
			return nil, err
		}
	}
	found := make(map[string]Queued, len(items))
	for _, item := range items {
		found[item] = Queued{}
	}
	err := accepted.NewOrders(s.queue).Scan(ctx, func(a accepted.Order) error {
		o := parseSold(a.OrderID, []byte(a.Payload))
		q, asked := found[o.item]
		if asked {
			q.Orders = append(q.Orders, Holding{Buyer: o.buyer, IdempotencyKey: o.key, OrderID: o.id, Quantity: o.quantity, Counts: true})
			found[o.item] = q
		}
		return nil
	})
	if s.covers > 0 {
		for _, item := range items[min(s.covers, len(items)):] {
			delete(found, item)
		}
	}
	return found, err
}

func (s *stored) Sales(ctx context.Context, items []string, queued map[string]Queued, each func(string, Holding) error, done func(string, Sale) error) error {
	for _, item := range items {
		sale, err := s.sale(ctx, item, queued[item].Orders, func(h Holding) error { return each(item, h) })
		if err != nil {
			return err
		}
		if err := done(item, sale); err != nil {
			return err
		}
	}
	return nil
}

func (s *stored) sale(ctx context.Context, item string, queued []Holding, each func(Holding) error) (Sale, error) {
	s.mu.Lock()
	after := s.after
	s.loads++
	sale, ok := s.sales[item]
	orders, err := slices.Concat(s.past[item], queued), s.err
	s.mu.Unlock()
	if err != nil {
		return Sale{}, err
	}
	if !ok {
		return Sale{}, errNoItem
	}
	for _, h := range orders {
		if h.Counts {
			sale.Left -= h.Quantity
		}
		if err := each(h); err != nil {
			return Sale{}, err
		}
	}
	if after != nil {
		err = after(ctx)
	}
	sale.Left = max(sale.Left, 0)
	return sale, err
}

// hook adapts a function that cannot fail to a hook of stored.
func hook(f func()) func(context.Context) error {
	return func(context.Context) error {
		f()
		return nil
	}
}

func (s *stored) set(f func(*stored)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s)
}

// sold is an order, decoded from the tests' task payload.
type sold struct {
	id, item, buyer, key string
	quantity             int64
}

func payload(r *Request) []byte {
	return fmt.Appendf(nil, "%s %s %d %s", r.ItemID, r.Buyer, r.Quantity, r.IdempotencyKey)
}

func parseSold(id string, payload []byte) sold {
	text, _, _ := strings.Cut(string(payload), "\t") // the purchase script's stamp follows
	f := strings.SplitN(text, " ", 4)
	n, err := strconv.ParseInt(f[2], 10, 64)
	if err != nil {
		panic(err)
	}
	return sold{id: id, item: f[0], buyer: f[1], quantity: n, key: f[3]}
}

// shop is one Redis with a queue and a source, on which inventories sell.
type shop struct {
	rdb    redis.UniversalClient
	queue  *queue.Queue
	source *stored
	item   string
	given  map[string]bool // ids of the orders in the queue that were released
}

// open describes a sale that is open for ever.
func open(stock, perUser int64) Sale {
	return Sale{Left: stock, PerUserLimit: perUser, OpensAt: time.Now().Add(-time.Hour), Control: "open", Version: 1}
}

func newShop(t testing.TB, rdb redis.UniversalClient, sale Sale, maxQueue int) *shop {
	t.Helper()
	// The partition's tag is fixed, so the names of the item and of the queue separate the
	// tests.
	name := strings.NewReplacer("t:{", "", "}:", "").Replace(redistest.Prefix(t))
	q, err := queue.New(rdb, queue.Config{Prefix: keys{1}.tag(0) + "t" + name + ":", MaxLength: maxQueue})
	if err != nil {
		t.Fatal(err)
	}
	item := "item-" + name
	return &shop{rdb: rdb, queue: q, item: item, given: map[string]bool{}, source: &stored{
		queue: q, epoch: 1, sales: map[string]Sale{item: sale}, past: map[string][]Holding{},
	}}
}

// lockConfig has TTLs that no test reaches. A call that gives up early on a busy machine may
// leave a lock behind for all of its TTL, so calls do not give up either.
var lockConfig = lock.Config{TTL: limit, ClaimTTL: time.Minute, Liveness: time.Minute, CallTimeout: limit}

func newLocks(t testing.TB, rdb redis.UniversalClient, cfg lock.Config) *lock.Manager {
	t.Helper()
	m, err := lock.New(rdb, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		if err := m.Close(ctx); err != nil {
			t.Logf("close locks: %v", err)
		}
	})
	return m
}

// inventory returns an Inventory of the shop with a lock manager of its own.
func (s *shop) inventory(t testing.TB, cfg Config) *Inventory {
	t.Helper()
	return s.inventoryOn(t, s.rdb, newLocks(t, s.rdb, lockConfig), cfg)
}

// patient is a patience that only a failing test uses up.
const patient = limit

func (s *shop) inventoryOn(t testing.TB, rdb redis.UniversalClient, locks *lock.Manager, cfg Config) *Inventory {
	t.Helper()
	if cfg.Patience == 0 {
		cfg.Patience = patient
	}
	if cfg.HoldLimit == 0 {
		cfg.HoldLimit = patient
	}
	if cfg.SettleLimit == 0 {
		cfg.SettleLimit = patient
	}
	if cfg.signOfLife == 0 { // a busy server may not answer a ping within the default
		cfg.signOfLife = patient
	}
	v, err := New(await.Context(t), rdb, locks, []*queue.Queue{s.queue}, s.source, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		if err := v.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return v
}

var serial struct {
	mu sync.Mutex
	n  int
}

// request is a purchase. Its order id is one for the scripts that a test sends itself: the
// inventory sets another.
func (s *shop) request(buyer, key string, quantity int64) *Request {
	serial.mu.Lock()
	serial.n++
	id := fmt.Sprintf("order-%06d", serial.n)
	serial.mu.Unlock()
	r := &Request{ItemID: s.item, Buyer: buyer, IdempotencyKey: key, Quantity: quantity, OrderID: id}
	r.Payload = string(payload(r))
	return r
}

// buy purchases and waits for the outcome.
func buy(t testing.TB, v *Inventory, r *Request) Outcome {
	t.Helper()
	o, err := v.Purchase(await.Context(t), r)
	if err != nil {
		t.Fatalf("purchase %s: %v", r.OrderID, err)
	}
	return o
}

// hurried reports whether a purchase was answered "no time" by an inventory whose patience is
// short because its test uses it up. On a busy machine that has no meaning, and the request
// can be repeated.
func hurried(v *Inventory, err error) bool {
	return v.cfg.Patience < patient && (errors.Is(err, ErrOverloaded) || errors.Is(err, ErrUnavailable) ||
		errors.Is(err, ErrRebuilding) && errors.Is(err, context.DeadlineExceeded))
}

// decided is buy, repeated until the outcome is one of want or anything but "no time". The
// test's own limit ends the repeats.
func decided(t testing.TB, v *Inventory, r *Request, want ...error) Outcome {
	t.Helper()
	end := time.Now().Add(limit)
	for repeated := false; ; repeated = true {
		o := buy(t, v, r)
		if repeated {
			o = own(r, o)
		}
		wanted := slices.ContainsFunc(want, func(err error) bool { return errors.Is(o.Err, err) })
		if wanted || !hurried(v, o.Err) || time.Now().After(end) {
			return o
		}
	}
}

// own is the outcome of a repeated request: "no time" does not say whether the order was
// accepted, and a repeat finds it if it was.
func own(r *Request, o Outcome) Outcome {
	if o.ReplayOf != "" {
		r.OrderID = o.ReplayOf
		return Outcome{}
	}
	return o
}

func mustBuy(t testing.TB, v *Inventory, r *Request) {
	t.Helper()
	if o := decided(t, v, r); o != (Outcome{}) {
		t.Fatalf("purchase %s by %s: %+v, want accepted", r.OrderID, r.Buyer, o)
	}
}

// mustBuyAtLast is mustBuy for tests with short lock times: a busy machine may lose the lock,
// and the purchase is then repeated.
func mustBuyAtLast(t testing.TB, v *Inventory, r *Request) {
	t.Helper()
	repeated := false
	await.True(t, "a purchase while the lock is held", func() bool {
		o := buy(t, v, r)
		if repeated {
			o = own(r, o)
		}
		repeated = true
		if o != (Outcome{}) && !errors.Is(o.Err, ErrRebuilding) && !errors.Is(o.Err, ErrOverloaded) && !errors.Is(o.Err, ErrUnavailable) {
			t.Fatalf("purchase %s by %s: %+v, want accepted", r.OrderID, r.Buyer, o)
		}
		return o == (Outcome{})
	})
}

func mustRefuse(t testing.TB, v *Inventory, r *Request, want error) {
	t.Helper()
	if o := decided(t, v, r, want); !errors.Is(o.Err, want) {
		t.Fatalf("purchase %s by %s: %+v, want %v", r.OrderID, r.Buyer, o, want)
	}
}

// state is everything Redis holds of a sale.
type state struct {
	sale        map[string]string
	idempotency map[string]string // the orders, by buyer and key
	buyers      map[string]string // the units of the buyers who hold any
	accepted    map[string]string // the accepted keys
	queue       []sold            // in the order of arrival
}

func (s *shop) state(t testing.TB) state {
	t.Helper()
	ctx := await.Context(t)
	k := keys{1}
	var st state
	for _, h := range []struct {
		key string
		to  *map[string]string
	}{{k.sale(s.item), &st.sale}, {k.idempotency(s.item), &st.idempotency}, {k.buyers(s.item), &st.buyers}} {
		m, err := s.rdb.HGetAll(ctx, h.key).Result()
		if err != nil {
			t.Fatal(err)
		}
		*h.to = m
	}
	for buyer, value := range st.buyers {
		count, order := parseBuyer(buyer, value)
		if count.Units < 0 || order.OrderID == "" {
			t.Fatalf("the value of buyer %s is %q", buyer, value)
		}
		if _, twice := st.idempotency[order.field()]; twice {
			t.Fatalf("order %s of buyer %s is stored twice", order.field(), buyer)
		}
		st.idempotency[order.field()] = strings.Fields(value)[1]
		if st.buyers[buyer] = strconv.FormatInt(count.Units, 10); count.Units == 0 {
			delete(st.buyers, buyer)
		}
	}
	hashes, err := s.rdb.Get(ctx, k.accepted(s.item)).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		t.Fatal(err)
	}
	st.accepted = map[string]string{}
	for hash := range slices.Chunk([]byte(hashes), keyHashSize) {
		st.accepted[fmt.Sprintf("%x", hash)] = "accepted"
	}
	queueKeys := s.queue.EnqueueKeys()
	ids, err := s.rdb.ZRange(ctx, queueKeys[0], 0, -1).Result()
	if err != nil {
		t.Fatal(err)
	}
	bodies, err := s.rdb.HGetAll(ctx, queueKeys[3]).Result()
	if err != nil {
		t.Fatal(err)
	}
	if len(bodies) != len(ids) {
		t.Fatalf("the queue has %d tasks ready and %d bodies", len(ids), len(bodies))
	}
	for _, id := range ids {
		for _, a := range accepted.OrdersOf(id, []byte(bodies[id])) {
			st.queue = append(st.queue, parseSold(a.OrderID, []byte(a.Payload)))
		}
	}
	return st
}

func (s *state) left(t testing.TB) int64 {
	t.Helper()
	n, err := strconv.ParseInt(s.sale["left"], 10, 64)
	if err != nil {
		t.Fatalf("left: %v", err)
	}
	return n
}

// audit checks the invariants of a sale from which no order has left the queue: stock = left +
// queued (conservation), no buyer above the limit, one order per buyer and key, and counts in
// Redis that equal the orders. Of a released order only the key is left.
func (s *shop) audit(t testing.TB) state {
	t.Helper()
	st, sale := s.state(t), s.source.sales[s.item]
	var units int64
	held := map[string]int64{}
	known := map[string]string{}
	for _, o := range st.queue {
		if o.item != s.item {
			t.Errorf("order %s of item %s is in the queue of %s", o.id, o.item, s.item)
		}
		if first, ok := known[o.buyer+" "+o.key]; ok {
			t.Errorf("orders %s and %s are of one buyer and key", first, o.id)
		}
		known[o.buyer+" "+o.key] = strconv.FormatInt(o.quantity, 10) + ":" + o.id
		if s.given[o.id] {
			known[o.buyer+" "+o.key] += ":r"
			continue
		}
		units += o.quantity
		held[o.buyer] += o.quantity
	}
	left := st.left(t)
	if left < 0 || left+units != sale.Left {
		t.Errorf("left %d + queued %d, want %d together", left, units, sale.Left)
	}
	counts := map[string]string{}
	for buyer, n := range held {
		if n > sale.PerUserLimit {
			t.Errorf("%s holds %d, over the limit of %d", buyer, n, sale.PerUserLimit)
		}
		counts[buyer] = strconv.FormatInt(n, 10)
	}
	hashes := map[string]string{}
	for field := range known {
		buyer, key, _ := strings.Cut(field, " ")
		hashes[fmt.Sprintf("%08x", keyHashOf(buyer, key))] = "accepted"
	}
	for what, m := range map[string][2]map[string]string{
		"units per buyer": {st.buyers, counts}, "orders per key": {st.idempotency, known}, "accepted keys": {st.accepted, hashes},
	} {
		if d := differences(m[0], m[1]); d != "" {
			t.Errorf("%s: %s", what, d)
		}
	}
	return st
}

// differences lists the first few fields in which two maps differ.
func differences(got, want map[string]string) string {
	all := maps.Clone(got)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, want)
	var out []string
	for _, f := range slices.Sorted(maps.Keys(all)) {
		if g, w := got[f], want[f]; g != w {
			out = append(out, fmt.Sprintf("%s is %q, want %q", f, g, w))
		}
	}
	if len(out) > 5 {
		out = append(out[:5], fmt.Sprintf("and %d more", len(out)-5))
	}
	return strings.Join(out, "; ")
}

// same fails if the two states differ.
func same(t testing.TB, before, after state) {
	t.Helper()
	if !maps.Equal(before.sale, after.sale) || !maps.Equal(before.idempotency, after.idempotency) ||
		!maps.Equal(before.buyers, after.buyers) || !slices.Equal(before.queue, after.queue) {
		t.Errorf("state changed:\nbefore %+v\nafter  %+v", before, after)
	}
}

// take removes n tasks from the queue, as a worker does, and returns them.
func (s *shop) take(t testing.TB, n int) []sold {
	t.Helper()
	ctx := await.Context(t)
	f, err := s.queue.Dequeue(ctx, n)
	if err != nil {
		t.Fatal(err)
	}
	var out []sold
	for _, l := range f.Tasks {
		for _, a := range accepted.OrdersOf(l.ID, l.Payload) {
			out = append(out, parseSold(a.OrderID, []byte(a.Payload)))
		}
	}
	if len(f.Tasks) == 0 {
		return out
	}
	status, err := s.queue.Ack(ctx, f.Tasks...)
	if err != nil {
		t.Fatal(err)
	}
	for i, st := range status {
		if st != queue.StatusOK {
			t.Fatalf("acknowledge %s: %v", f.Tasks[i].ID, st)
		}
	}
	return out
}

// counter counts the runs of the purchase script that a client sends.
type counter struct {
	mu sync.Mutex
	n  int
	// after gets every run's error, and returns the caller's error.
	after func(n int, err error) error
}

func (c *counter) DialHook(next redis.DialHook) redis.DialHook { return next }
func (c *counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
func (c *counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		// EVALSHA only: the EVAL that follows a NOSCRIPT is the same run.
		if args := cmd.Args(); cmd.Name() != "evalsha" || args[1] != purchaseScript.Hash() {
			return err
		}
		c.mu.Lock()
		c.n++
		n := c.n
		c.mu.Unlock()
		if c.after != nil && (err == nil || !redis.HasErrorPrefix(err, "NOSCRIPT")) {
			if err = c.after(n, err); err != nil {
				cmd.SetErr(err)
			}
		}
		return err
	}
}

func (c *counter) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}
