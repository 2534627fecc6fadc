package inventory

import (
	"context"
	"errors"
	"fmt"
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
	"flashsale/inventory/accepted"
	"flashsale/lock"
)

// model is the specification of the scripts, in a few lines of Go.
type model struct {
	version, turn int64
	left, perUser int64
	opens, closes time.Duration // from now; closes 0: no end
	control       string
	room          int
	known         map[string]sold // by buyer and key
	back          map[string]bool // the known orders whose units were released
	held          map[string]int64
	queue         []sold
}

// purchase is one request. It checks the rules in their order.
func (m *model) purchase(r *Request) Outcome {
	field := r.Buyer + " " + r.IdempotencyKey
	if o, ok := m.known[field]; ok {
		switch {
		case o.quantity != r.Quantity:
			return Outcome{Err: ErrKeyReused}
		case o.id == r.OrderID:
			return Outcome{}
		default:
			return Outcome{ReplayOf: o.id}
		}
	}
	switch {
	case r.Quantity > m.perUser:
		return Outcome{Err: &QuantityError{Limit: m.perUser}}
	case m.control == "closed" || m.closes < 0:
		return Outcome{Err: ErrClosed}
	case m.opens > 0:
		return Outcome{Err: &NotOpenError{}}
	case m.control == "paused":
		return Outcome{Err: ErrPaused}
	case m.held[r.Buyer]+r.Quantity > m.perUser:
		return Outcome{Err: ErrUserLimit}
	case r.Quantity > m.left:
		return Outcome{Err: ErrSoldOut}
	case len(m.queue) >= m.room:
		return Outcome{Err: ErrOverloaded}
	}
	o := parseSold(r.OrderID, []byte(r.Payload))
	m.left -= r.Quantity
	m.held[r.Buyer] += r.Quantity
	m.known[field] = o
	m.queue = append(m.queue, o)
	return Outcome{}
}

// release is the release of one order.
func (m *model) release(r *Released) ReleaseStatus {
	field := r.Buyer + " " + r.IdempotencyKey
	o, ok := m.known[field]
	switch {
	case !ok:
		return ReleaseNotLoaded
	case o.id != r.OrderID || o.quantity != r.Quantity:
		return ReleaseForeign
	case m.back[field]:
		return ReleaseRepeated
	}
	m.back[field] = true
	m.left += r.Quantity
	m.held[r.Buyer] -= r.Quantity
	return ReleaseDone
}

// adjust is one change; opensIn and closesIn are the ends of its window, from now.
func (m *model) adjust(c *Change, opensIn, closesIn time.Duration) error {
	switch {
	case c.Version <= m.version:
		return nil
	case c.Version > m.version+1:
		return ErrBehind
	case m.left+c.AddLeft < 0 && c.AddLeft < 0:
		return ErrStockBelowSold
	}
	m.version = c.Version
	m.turn++
	m.left += c.AddLeft
	if c.PerUserLimit != nil {
		m.perUser = *c.PerUserLimit
	}
	if c.Control != nil {
		m.control = *c.Control
	}
	if c.OpensAt != nil {
		m.opens = opensIn
	}
	if c.ClosesAt != nil {
		m.closes = closesIn
	}
	return nil
}

// sameOutcome compares what callers can distinguish.
func sameOutcome(got, want Outcome) bool {
	var notOpen *NotOpenError
	if errors.As(want.Err, &notOpen) {
		return errors.As(got.Err, &notOpen) && got.ReplayOf == ""
	}
	var above, most *QuantityError
	if errors.As(want.Err, &most) {
		return errors.As(got.Err, &above) && *above == *most && got.ReplayOf == ""
	}
	return errors.Is(got.Err, want.Err) && (got.Err == nil) == (want.Err == nil) && got.ReplayOf == want.ReplayOf
}

func (m *model) compare(t *rapid.T, tb testing.TB, s *shop) {
	st := s.state(tb)
	if st.left(tb) != m.left {
		t.Fatalf("left is %d, want %d", st.left(tb), m.left)
	}
	counts := map[string]string{}
	for buyer, n := range m.held {
		if n > 0 {
			counts[buyer] = strconv.FormatInt(n, 10)
		}
	}
	if !maps.Equal(st.buyers, counts) {
		t.Fatalf("counts per buyer are %v, want %v", st.buyers, counts)
	}
	orders := map[string]string{}
	for field, o := range m.known {
		orders[field] = fmt.Sprintf("%d:%s", o.quantity, o.id)
		if m.back[field] {
			orders[field] += ":r"
		}
	}
	if d := differences(st.idempotency, orders); d != "" {
		t.Fatalf("orders per key: %s", d)
	}
	if want := fmt.Sprintf("%d.%s.%d", m.version, strings.Split(st.sale["version"], ".")[1], m.turn); st.sale["version"] != want {
		t.Fatalf("the version is %s, want %s", st.sale["version"], want)
	}
	if !slices.Equal(st.queue, m.queue) {
		t.Fatalf("the queue is %v, want %v", st.queue, m.queue)
	}
}

// modelSale draws a sale, most of them open.
func modelSale(t *rapid.T) (*model, Sale) {
	hours := func(label string, from []int) time.Duration {
		return time.Duration(rapid.SampledFrom(from).Draw(t, label)) * time.Hour
	}
	m := &model{
		left:    rapid.OneOf(rapid.Int64Range(0, 40), rapid.Int64Range(300, 900)).Draw(t, "stock"),
		perUser: rapid.Int64Range(1, 6).Draw(t, "limit"),
		opens:   hours("opens", []int{-9, -9, -9, -9, 1}),
		closes:  hours("closes", []int{0, 0, 2, 2, -1}),
		control: "open",
		version: 1,
		room:    rapid.OneOf(rapid.IntRange(1, 30), rapid.IntRange(300, 600)).Draw(t, "room"),
		known:   map[string]sold{},
		back:    map[string]bool{},
		held:    map[string]int64{},
	}
	now := time.Now()
	sale := Sale{Left: m.left, PerUserLimit: m.perUser, OpensAt: now.Add(m.opens), Control: m.control, Version: 1}
	if m.closes != 0 {
		sale.ClosesAt = now.Add(m.closes)
	}
	return m, sale
}

// TestPurchaseScript_Model runs the script with random batches and compares every outcome and
// everything that is stored with the model.
func TestPurchaseScript_Model(t *testing.T) {
	t.Parallel()
	testScriptModel(t)
}

func TestPurchaseScript_Model_Long(t *testing.T) {
	longtest.Only(t)
	t.Parallel()
	testScriptModel(t)
}

func testScriptModel(t *testing.T) {
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		locks := newLocks(t, rdb, lockConfig)
		rapid.Check(t, func(rt *rapid.T) {
			m, sale := modelSale(rt)
			s := newShop(t, rdb, sale, m.room)
			v := s.inventoryOn(t, rdb, locks, Config{})
			ctx := await.Context(t)
			if err := v.Open(ctx, s.item); err != nil {
				rt.Fatal(err)
			}
			sel := newSeller(v, s.item) // without its goroutine: the test takes its place
			if _, err := sel.lock.hold(ctx); err != nil {
				rt.Fatal(err)
			}
			defer sel.lock.release()
			var sent []*Request
			for range rapid.IntRange(1, 15).Draw(rt, "steps") {
				switch rapid.IntRange(0, 9).Draw(rt, "step") {
				case 0, 2:
					modelAdjust(ctx, rt, s, m)
				case 3, 4:
					modelRelease(ctx, rt, s, m, sent)
				case 1:
					if n := min(rapid.IntRange(0, 20).Draw(rt, "orders taken"), len(m.queue)); n > 0 {
						taken := s.take(t, n) // whole tasks
						if len(taken) > len(m.queue) || !slices.Equal(taken, m.queue[:len(taken)]) {
							rt.Fatal("orders are not taken in the order of the purchases")
						}
						m.queue = m.queue[len(taken):]
					}
				default:
					sent = modelBatch(ctx, rt, s, m, sel, sent)
				}
				m.compare(rt, t, s)
			}
		})
	})
}

// modelAdjust sends a random change, which may be out of order.
func modelAdjust(ctx context.Context, t *rapid.T, s *shop, m *model) {
	c := Change{
		Version: m.version + rapid.SampledFrom([]int64{1, 1, 1, 1, 0, -1, 2}).Draw(t, "version"),
		AddLeft: rapid.SampledFrom([]int64{0, 0, 1, 7, 300, -1, -5, -m.left, -m.left - 1}).Draw(t, "add"),
	}
	if c.Version < 1 {
		c.Version = 1
	}
	if rapid.Bool().Draw(t, "with limit") {
		c.PerUserLimit = ptr(rapid.Int64Range(1, 6).Draw(t, "limit"))
	}
	if rapid.Bool().Draw(t, "with control") {
		c.Control = ptr(rapid.SampledFrom([]string{"open", "open", "open", "paused", "closed"}).Draw(t, "control"))
	}
	opensIn := time.Duration(rapid.SampledFrom([]int{-9, -9, -9, 1}).Draw(t, "opens")) * time.Hour
	closesIn := time.Duration(rapid.SampledFrom([]int{0, 0, 2, -1}).Draw(t, "closes")) * time.Hour
	if rapid.Bool().Draw(t, "with window") {
		c.OpensAt, c.ClosesAt = ptr(time.Now().Add(opensIn)), ptr(time.Time{})
		if closesIn != 0 {
			c.ClosesAt = ptr(time.Now().Add(closesIn))
		}
	}
	want := m.adjust(&c, opensIn, closesIn)
	if err := adjust(ctx, s.rdb, keys{1}, 1, s.item, "", &c); !errors.Is(err, want) || (err == nil) != (want == nil) {
		t.Fatalf("adjust %+v: %v, want %v", c, err, want)
	}
}

// modelRelease releases random orders, also orders that were refused, that were released
// before, or that differ from what was ordered.
func modelRelease(ctx context.Context, t *rapid.T, s *shop, m *model, sent []*Request) {
	if len(sent) == 0 {
		return
	}
	n := rapid.OneOf(rapid.IntRange(1, 12), rapid.IntRange(90, 210)).Draw(t, "orders")
	orders, want := make([]Released, n), make([]ReleaseStatus, n)
	empty := m.left == 0
	for i := range orders {
		o := released(rapid.SampledFrom(sent).Draw(t, "order"))[0]
		switch rapid.IntRange(0, 15).Draw(t, "twist") {
		case 0:
			o.Quantity++
		case 1:
			o.OrderID += "x"
		}
		orders[i], want[i] = o, m.release(&o)
		if i%releasePage == releasePage-1 || i == n-1 { // the end of a script
			if empty && m.left > 0 {
				m.turn++
			}
			empty = m.left == 0
		}
	}
	got, _, err := Release(ctx, s.rdb, 1, 1, s.item, orders)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, want) {
		t.Fatalf("released %v with %v, want %v", orders, got, want)
	}
}

// modelBatch sends a random batch, which may repeat earlier requests.
func modelBatch(ctx context.Context, t *rapid.T, s *shop, m *model, sel *seller, sent []*Request) []*Request {
	n := rapid.OneOf(rapid.IntRange(1, 12), rapid.IntRange(90, 260)).Draw(t, "batch")
	// Few buyers reach their limit; many fill the chunks of the script's commands.
	buyers := rapid.SampledFrom([]int{8, 400}).Draw(t, "buyers")
	batch := make([]*Request, n)
	got := make([]Outcome, n)
	answered := make([]int, n)
	for i := range batch {
		var r *Request
		if len(sent) > 0 && rapid.IntRange(0, 3).Draw(t, "repeat") == 0 {
			of := rapid.SampledFrom(sent).Draw(t, "of")
			r = s.request(of.Buyer, of.IdempotencyKey, of.Quantity)
		} else {
			r = s.request(
				fmt.Sprintf("u%d", rapid.IntRange(0, buyers).Draw(t, "buyer")),
				fmt.Sprintf("k%d", rapid.IntRange(0, 5).Draw(t, "key")),
				rapid.Int64Range(1, 4).Draw(t, "quantity"),
			)
		}
		r.Done = func(o Outcome) {
			got[i] = o
			answered[i]++
		}
		batch[i] = r
		sent = append(sent, r)
	}
	var err error
	if sel.parcel, err = accepted.NewTaskID(); err != nil {
		t.Fatal(err)
	}
	runs := 1
	if rapid.Bool().Draw(t, "sent again") { // as after a lost reply: the same orders in the same task
		runs = 2
	}
	for range runs {
		clear(answered)
		reply, err := sel.send(ctx, batch)
		if err != nil {
			t.Fatal(err)
		}
		if reply.status != "ok" {
			t.Fatalf("status %q", reply.status)
		}
		if err := sel.deliver(batch, &reply); err != nil {
			t.Fatal(err)
		}
		for i, r := range batch {
			want := m.purchase(r)
			if answered[i] != 1 || !sameOutcome(got[i], want) {
				t.Fatalf("request %d of %d (%s %s %d %s) was answered %d times, with %+v, want %+v",
					i, n, r.Buyer, r.IdempotencyKey, r.Quantity, r.OrderID, answered[i], got[i], want)
			}
		}
		if reply.left != m.left {
			t.Fatalf("the reply says %d left, want %d", reply.left, m.left)
		}
	}
	return sent
}

// TestInventory_Purchase_Property sends random requests from many goroutines through two
// processes. Any of them may win, but the sums must be right.
func TestInventory_Purchase_Property(t *testing.T) {
	t.Parallel()
	testPurchaseProperty(t)
}

func TestInventory_Purchase_Property_Long(t *testing.T) {
	longtest.Only(t)
	t.Parallel()
	testPurchaseProperty(t)
}

func testPurchaseProperty(t *testing.T) {
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		locks := []*lock.Manager{newLocks(t, rdb, lockConfig), newLocks(t, rdb, lockConfig)}
		rapid.Check(t, func(rt *rapid.T) {
			sale := open(rapid.Int64Range(0, 60).Draw(rt, "stock"), rapid.Int64Range(1, 5).Draw(rt, "limit"))
			s := newShop(t, rdb, sale, 0)
			cfg := Config{MaxBatch: rapid.IntRange(1, 20).Draw(rt, "MaxBatch"), LockIdle: time.Nanosecond}
			processes := []*Inventory{s.inventoryOn(t, rdb, locks[0], cfg), s.inventoryOn(t, rdb, locks[1], cfg)}
			n := rapid.IntRange(1, 60).Draw(rt, "requests")
			requests := make([]*Request, n)
			for i := range requests {
				requests[i] = s.request(
					fmt.Sprintf("u%d", rapid.IntRange(0, 20).Draw(rt, "buyer")),
					fmt.Sprintf("k%d", rapid.IntRange(0, 3).Draw(rt, "key")),
					rapid.Int64Range(1, 3).Draw(rt, "quantity"),
				)
			}
			out := make([]Outcome, n)
			ctx := await.Context(t)
			var wg sync.WaitGroup
			for i, r := range requests {
				wg.Go(func() {
					o, err := processes[i%2].Purchase(ctx, r)
					if err != nil {
						t.Errorf("purchase %s: %v", r.OrderID, err)
					}
					out[i] = o
				})
			}
			wg.Wait()
			st := s.audit(t)
			if t.Failed() {
				rt.Fatal("the sums are wrong")
			}
			explain(rt, t, &st, sale, requests, out)
		})
	})
}

// explain checks each outcome against the final state: stock and counts only move one way, so
// a refusal that was right at its time is right at the end.
func explain(rt *rapid.T, t *testing.T, st *state, sale Sale, requests []*Request, out []Outcome) {
	orders := map[string]sold{} // by buyer and key
	held := map[string]int64{}
	for _, o := range st.queue {
		orders[o.buyer+" "+o.key] = o
		held[o.buyer] += o.quantity
	}
	for i, r := range requests {
		o, has := orders[r.Buyer+" "+r.IdempotencyKey]
		var ok bool
		var above *QuantityError
		switch err := out[i].Err; {
		case err == nil && out[i].ReplayOf == "":
			ok = has && o.id == r.OrderID
		case err == nil:
			ok = has && o.id == out[i].ReplayOf && o.id != r.OrderID && o.quantity == r.Quantity
		case errors.Is(err, ErrKeyReused):
			ok = has && o.quantity != r.Quantity
		case errors.As(err, &above):
			ok = r.Quantity > sale.PerUserLimit && above.Limit == sale.PerUserLimit
		case errors.Is(err, ErrUserLimit):
			ok = held[r.Buyer]+r.Quantity > sale.PerUserLimit
		case errors.Is(err, ErrSoldOut):
			ok = st.left(t) < r.Quantity
		}
		if !ok {
			rt.Fatalf("%s %s %d %s: %+v does not fit the end: %d left, held %d of %d, order %+v",
				r.Buyer, r.IdempotencyKey, r.Quantity, r.OrderID, out[i], st.left(t), held[r.Buyer], sale.PerUserLimit, o)
		}
	}
}
