package inventory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/hashtag"
	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/inventory/accepted"
	"flashsale/queue"
)

// TestInventory_Epoch: state of an earlier epoch is rebuilt, whichever process detects it.
func TestInventory_Epoch(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(10, 2), 0)
		a, b := s.inventory(t, Config{}), s.inventory(t, Config{})
		first := s.request("u", "1", 1)
		mustBuy(t, a, first)
		mustBuy(t, b, s.request("w", "1", 1))
		// Redis is restored from an old snapshot, and the database raises the epoch.
		if err := rdb.HSet(await.Context(t), keys{1}.sale(s.item), "left", 1000, "epoch", 0).Err(); err != nil {
			t.Fatal(err)
		}
		s.source.set(func(src *stored) { src.epoch = 2 })
		mustBuy(t, a, s.request("u", "2", 1))
		mustRefuse(t, a, s.request("u", "3", 1), ErrUserLimit)
		if st := s.state(t); st.sale["epoch"] != "2" || st.left(t) != 7 {
			t.Errorf("epoch %s, %d left, want 2 and 7", st.sale["epoch"], st.left(t))
		}
		// b still has epoch 1: its script is refused, and it reads the new epoch.
		if o := buy(t, b, s.request("u", "1", 1)); o.ReplayOf != first.OrderID {
			t.Errorf("replay through the other process: %+v", o)
		}
		mustBuy(t, b, s.request("w", "2", 1))
		mustRefuse(t, b, s.request("w", "3", 1), ErrUserLimit)
		s.audit(t)
	})
}

func TestInventory_Left(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(10, 2), 0)
		v := s.inventory(t, Config{})
		mustBuy(t, v, s.request("u", "k", 2))
		got, err := v.Left(await.Context(t), []string{"none-" + s.item, s.item, "none2-" + s.item})
		if err != nil || !slices.Equal(got, []int64{-1, 8, -1}) {
			t.Errorf("Left = %v, %v, want [-1 8 -1]", got, err)
		}
		if got, err := v.Left(await.Context(t), nil); err != nil || len(got) != 0 {
			t.Errorf("Left of nothing = %v, %v", got, err)
		}
		// The mark of a change, a value and a key that cannot be read make no other item unreadable.
		marked, text, list := "marked-"+s.item, "text-"+s.item, "list-"+s.item
		_, err = rdb.Pipelined(await.Context(t), func(p redis.Pipeliner) error {
			p.HSet(t.Context(), keys{1}.sale(marked), "left", 3, "changing", "a dead process")
			p.HSet(t.Context(), keys{1}.sale(text), "left", "many")
			p.LPush(t.Context(), keys{1}.sale(list), "x")
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		got, err = v.Left(await.Context(t), []string{marked, text, list, s.item})
		if err != nil || !slices.Equal(got, []int64{-1, -1, -1, 8}) {
			t.Errorf("Left = %v, %v, want [-1 -1 -1 8]", got, err)
		}
	})
}

// serverError is an error reply of Redis.
type serverError string

func (e serverError) Error() string { return string(e) }
func (e serverError) RedisError()   {}

// refusing is a go-redis hook that replaces the replies of pipelines by an error.
type refusing struct{ wayOut }

func (*refusing) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(_ context.Context, cmds []redis.Cmder) error {
		for _, c := range cmds {
			c.SetErr(serverError("LOADING Redis is loading the dataset in memory"))
		}
		return nil
	}
}

// TestInventory_Left_Loading: a server that answers nothing yet is not one without sales, so that
// readers keep the last stock.
func TestInventory_Left_Loading(t *testing.T) {
	t.Parallel()
	rdb := redistest.Embedded(t)
	s := newShop(t, rdb, open(10, 2), 0)
	v := s.inventory(t, Config{})
	mustBuy(t, v, s.request("u", "k", 2))
	rdb.AddHook(&refusing{})
	if left, err := v.Left(await.Context(t), []string{s.item}); err == nil {
		t.Errorf("Left = %v without an error", left)
	}
}

// TestInventory_Examine_StopsSales: nothing is sold while an item is examined.
func TestInventory_Examine_StopsSales(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(10, 1), 0)
		v, other := s.inventory(t, Config{}), s.inventory(t, Config{})
		lockKey, waitersKey := v.locks.GuardKeys(v.keys.lock(s.item))
		results := make(chan Outcome, 2)
		if err := v.Open(await.Context(t), s.item); err != nil {
			t.Fatal(err)
		}
		err := v.Examine(await.Context(t), s.item, func(ctx context.Context, _ *Examined) (bool, error) {
			for i, inv := range []*Inventory{v, other} {
				r := s.request(fmt.Sprintf("u%d", i), "k", 1)
				r.Done = func(o Outcome) { results <- o }
				if err := inv.Submit(r); err != nil {
					t.Error(err)
				}
			}
			await.True(t, "both processes to wait for the lock", func() bool {
				n, err := rdb.ZCard(ctx, waitersKey).Result()
				return err == nil && n == 2
			})
			select {
			case o := <-results:
				t.Errorf("sold an item that is being examined: %+v", o)
			default:
			}
			if st := s.state(t); st.left(t) != 10 {
				t.Errorf("left moved to %d meanwhile", st.left(t))
			}
			return false, errTest
		})
		if !errors.Is(err, errTest) {
			t.Errorf("Examine: %v, want its function's error", err)
		}
		for range 2 {
			select {
			case o := <-results:
				if o != (Outcome{}) {
					t.Errorf("after it: %+v, want accepted", o)
				}
			case <-time.After(limit):
				t.Fatalf("a purchase was not answered; lock %s", lockKey)
			}
		}
		if err := v.Reload(await.Context(t), "none-"+s.item); !errors.Is(err, errNoItem) {
			t.Errorf("Reload of no item: %v, want the source's error", err)
		}
		s.audit(t)
	})
}

func TestNew_Errors(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, shared *redis.Client) {
		rdb := shared
		if strings.HasSuffix(t.Name(), "/redis") {
			// The layout is recorded once per Redis, so this needs a server of its own.
			rdb = redis.NewClient(redistest.Options(redistest.Real(t).Addr()))
			t.Cleanup(func() {
				if err := rdb.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		s := newShop(t, rdb, open(1, 1), 0)
		locks := newLocks(t, rdb, lockConfig)
		with := func(cfg Config, queues int) error {
			list := make([]*queue.Queue, queues)
			for i := range list {
				list[i] = s.queue
			}
			v, err := New(await.Context(t), rdb, locks, list, s.source, cfg)
			if err == nil {
				err = v.Close(await.Context(t))
			}
			return err
		}
		for name, c := range map[string]struct {
			cfg    Config
			queues int
		}{
			"queues":       {Config{Partitions: 2}, 1},
			"partitions":   {Config{Partitions: 1025}, 1025},
			"negative":     {Config{Partitions: -1}, 1},
			"batch":        {Config{MaxBatch: 513}, 1},
			"pending":      {Config{MaxPending: -1}, 1},
			"lock idle":    {Config{LockIdle: -1}, 1},
			"patience":     {Config{Patience: -time.Second}, 1},
			"mark's life":  {Config{MarkLife: -1}, 1},
			"move wait":    {Config{MoveWait: -1}, 1},
			"other number": {Config{Partitions: 3}, 1},
		} {
			if err := with(c.cfg, c.queues); err == nil || errors.Is(err, ErrPartitions) {
				t.Errorf("%s: %v, want a refusal of the configuration", name, err)
			}
		}
		if n, err := rdb.Exists(await.Context(t), partitionsKey).Result(); err != nil || n != 0 {
			t.Errorf("a refused configuration recorded its partitions (%d, %v)", n, err)
		}
		if err := with(Config{Partitions: 4}, 4); err != nil {
			t.Fatal(err)
		}
		if err := with(Config{}, 1); !errors.Is(err, ErrPartitions) {
			t.Errorf("1 partition where 4 are recorded: %v, want ErrPartitions", err)
		}
		if err := with(Config{Partitions: 4}, 4); err != nil {
			t.Errorf("the recorded number again: %v", err)
		}
		for _, record := range []string{"1", "4", "4 spread"} {
			want := map[string]error{"1": ErrPartitions, "4": ErrLayout}[record]
			if err := rdb.Set(await.Context(t), partitionsKey, record, 0).Err(); err != nil {
				t.Fatal(err)
			}
			if err := with(Config{Partitions: 4}, 4); !errors.Is(err, want) {
				t.Errorf("4 partitions where %q is recorded: %v, want %v", record, err, want)
			}
		}
		s.source.set(func(src *stored) { src.err = errTest })
		if err := with(Config{Partitions: 4}, 4); !errors.Is(err, errTest) {
			t.Errorf("database away: %v, want its error", err)
		}
	})
}

func TestKeys(t *testing.T) {
	t.Parallel()
	seen := map[int]int{}
	k := keys{16}
	for i := range 2000 {
		item := fmt.Sprintf("item-%d", i)
		p := k.partition(item)
		if p < 0 || p >= 16 {
			t.Fatalf("partition of %s is %d", item, p)
		}
		seen[p]++
		want := "fs:{" + hashtag.Of(p, 16) + "}:"
		for _, key := range []string{k.lock(item), k.sale(item), k.idempotency(item), k.buyers(item), QueuePrefix(p, 16)} {
			if !strings.HasPrefix(key, want) {
				t.Fatalf("key %s of %s is outside its partition %s", key, item, want)
			}
		}
	}
	if len(seen) != 16 {
		t.Errorf("2,000 items are in %d of 16 partitions", len(seen))
	}
	for p, n := range seen {
		if n < 60 || n > 250 {
			t.Errorf("partition %d has %d of 2,000 items", p, n)
		}
	}
}

// TestInventory_Partitions sells items of several partitions, each into its own queue.
func TestInventory_Partitions(t *testing.T) {
	t.Parallel()
	rdb := redistest.Embedded(t)
	s := newShop(t, rdb, open(5, 5), 0)
	var queues []*queue.Queue
	for p := range 3 {
		q, err := queue.New(rdb, queue.Config{Prefix: QueuePrefix(p, 3)})
		if err != nil {
			t.Fatal(err)
		}
		queues = append(queues, q)
	}
	locks := newLocks(t, rdb, lockConfig)
	v, err := New(await.Context(t), rdb, locks, queues, s.source, Config{Partitions: 3, Patience: patient})
	if err != nil {
		t.Fatal(err)
	}
	want := make([]int, 3)
	for i := range 12 {
		item := fmt.Sprintf("%s-%d", s.item, i)
		s.source.set(func(src *stored) { src.sales[item] = open(1, 1) })
		want[v.Partition(item)]++
		r := s.request("u", "k", 1)
		r.ItemID = item
		r.Payload = string(payload(r))
		mustBuy(t, v, r)
	}
	for p, q := range queues {
		st, err := q.Stats(await.Context(t))
		if err != nil {
			t.Fatal(err)
		}
		if st.Ready != want[p] {
			t.Errorf("partition %d has %d orders, want %d", p, st.Ready, want[p])
		}
	}
	if slices.Contains(want, 0) {
		t.Errorf("items per partition: %v; the test wants each used", want)
	}
	if err := v.Close(await.Context(t)); err != nil {
		t.Error(err)
	}
}

func FuzzParsePurchaseReply(f *testing.F) {
	f.Add("ok", int64(1), "AR", int64(5), "1.2", int64(3), int64(4), int64(5), int64(6), "order", 13)
	f.Add("lost", int64(0), "", int64(0), "", int64(0), int64(0), int64(0), int64(0), "", 2)
	f.Fuzz(func(t *testing.T, status string, waiting int64, verdicts string, left int64, version string, now, opens, closes, sequence int64, id string, n int) {
		full := []any{status, waiting, verdicts, left, version, now, opens, closes, sequence, int64(2), int64(-1), "keys", id}
		// Replies that are cut short, or whose values are in the wrong places.
		for _, list := range [][]any{full[:min(max(n, 0), len(full))], {id, full}, append(slices.Clone(full[1:]), full[0]), {nil, nil}} {
			r, err := parsePurchaseReply(list)
			if err == nil && r.status == "ok" && len(list) < 12 {
				t.Errorf("%v was taken for a whole reply", list)
			}
		}
		r, err := parsePurchaseReply(full)
		if err != nil {
			t.Fatal(err)
		}
		if r.status != status || r.waiting != waiting {
			t.Errorf("got %+v", r)
		}
		if status == "ok" && (r.verdicts != verdicts || r.left != left || r.version != version || r.nowMS != now || r.opensMS != opens || r.closesMS != closes || r.sequence != sequence || r.limit != 2 || r.accepted != -1 || r.more != "keys" || len(r.replayed) != 1) {
			t.Errorf("got %+v", r)
		}
		if _, err := parsePurchaseReply(id); err == nil {
			t.Error("a string was taken for a reply")
		}
	})
}

// TestSeller_deliver_Malformed: if the whole reply cannot be read, no request is answered.
func TestSeller_deliver_Malformed(t *testing.T) {
	t.Parallel()
	s := newShop(t, redistest.Embedded(t), open(1, 1), 0)
	sel := newSeller(s.inventory(t, Config{}), s.item)
	for name, reply := range map[string]purchaseReply{
		"too few verdicts":    {verdicts: "A"},
		"too many verdicts":   {verdicts: "AAA"},
		"replay without id":   {verdicts: "AR"},
		"id without a replay": {verdicts: "AA", replayed: []any{"x"}},
	} {
		batch := []*Request{s.request("a", "k", 1), s.request("b", "k", 1)}
		for _, r := range batch {
			r.Done = func(o Outcome) { t.Errorf("%s: answered %+v", name, o) }
		}
		if err := sel.deliver(batch, &reply); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	var got Outcome
	r := s.request("a", "k", 1)
	r.Done = func(o Outcome) { got = o }
	if err := sel.deliver([]*Request{r}, &purchaseReply{verdicts: "?"}); err != nil || got.Err == nil {
		t.Errorf("an unknown verdict: %+v, %v, want an error as the outcome", got, err)
	}
}

// sequenceBlock is how far above the highest known sequence a build begins if the clock was
// set back.
const sequenceBlock = 1 << 20

// TestInventory_Sequence: each script that takes or returns units raises the sale's sequence
// by one, payloads carry it, and a build begins above all sequences that may have been used.
func TestInventory_Sequence(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		sale := open(10, 5)
		sale.Sequence = 7 << 50 // the server's clock was set back: it is behind that
		s := newShop(t, rdb, sale, 0)
		asked := 0
		v := s.inventory(t, Config{Observe: Observers{OnLoss: func(context.Context, int64) { asked++ }}.For})
		sequence := func() int64 {
			t.Helper()
			n, err := strconv.ParseInt(s.state(t).sale["sequence"], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		r := s.request("a", "k", 1)
		mustBuy(t, v, r)
		first := sequence()
		if first != 7<<50+sequenceBlock+1 || asked != 0 {
			t.Fatalf("sequence %d after the first purchase, asked %d times", first, asked)
		}
		found, err := accepted.NewOrders(s.queue).Find(await.Context(t), r.OrderID)
		if stamp := fmt.Sprintf("1.%d", first); err != nil || found[0].Payload != r.Payload || found[0].Stamp != stamp {
			t.Errorf("order %+v, %v, want payload %q and stamp %q", found, err, r.Payload, stamp)
		}
		if o := buy(t, v, s.request("a", "k", 1)); o.ReplayOf != r.OrderID { // a repeat takes nothing
			t.Fatalf("repeat: %+v, want order %s", o, r.OrderID)
		}
		if got := sequence(); got != first {
			t.Errorf("sequence %d after a repeat, want %d", got, first)
		}
		_, reached, err := Release(await.Context(t), rdb, 1, 1, s.item, released(r))
		if err != nil || reached != first+1 || sequence() != reached {
			t.Errorf("release: sequence %d, %v, and the sale stands at %d, want %d", reached, err, sequence(), first+1)
		}
		mustBuy(t, v, s.request("b", "k", 1))
		second := sequence()
		if second != first+2 {
			t.Errorf("sequence %d, want %d", second, first+2)
		}
		// Redis is restored with an older sale.
		if err := rdb.HSet(await.Context(t), v.keys.sale(s.item), "sequence", second-1).Err(); err != nil {
			t.Fatal(err)
		}
		s.source.set(func(s *stored) {
			for item, sale := range s.sales {
				sale.Sequence = 0 // and the database has no row of it
				s.sales[item] = sale
			}
		})
		mustBuy(t, v, s.request("c", "k", 1))
		if got := sequence(); got != second+sequenceBlock+1 || asked != 1 {
			t.Errorf("sequence %d after the loss, want %d; asked %d times, want once", got, second+sequenceBlock+1, asked)
		}
		mustBuy(t, v, s.request("d", "k", 1))
		if asked != 1 {
			t.Errorf("asked %d times", asked)
		}
	})
}

// TestNew_Observe: New gives the observers the Inventory that it returns, and fails with
// their error.
func TestNew_Observe(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(2, 1), 0)
		var given *Inventory
		v := s.inventory(t, Config{Observe: func(v *Inventory) (Observers, error) {
			given = v
			return Observers{}, nil
		}})
		if given != v {
			t.Error("the observers were made for another Inventory")
		}
		mustBuy(t, v, s.request("a", "k", 1)) // no observer is required
		failed := errors.New("no observers")
		v, err := New(await.Context(t), rdb, newLocks(t, rdb, lockConfig), []*queue.Queue{s.queue}, s.source, Config{
			Observe: func(*Inventory) (Observers, error) { return Observers{}, failed },
		})
		if v != nil || !errors.Is(err, failed) {
			t.Errorf("New returned %v and %v, want the error of the observers", v, err)
		}
	})
}
