package inventory

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/lock"
	"flashsale/queue"
)

// sending is one run of the purchase script, as the seller sent it.
type sending struct {
	at    time.Duration // since the test began
	size  int           // purchases in it
	guard string        // the lock's value
}

// wayOut is a go-redis hook between a seller and Redis. It records each purchase script, and
// lets the test delay it, keep it from being sent or lose its reply.
type wayOut struct {
	mu     sync.Mutex
	began  time.Time
	sent   []sending
	before func(ctx context.Context, call int) error // an error: it is not sent
	after  func(ctx context.Context, call int) error // an error: its reply is lost
}

func (w *wayOut) DialHook(next redis.DialHook) redis.DialHook { return next }
func (w *wayOut) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (w *wayOut) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		args := cmd.Args()
		if cmd.Name() != "evalsha" || args[1] != purchaseScript.Hash() {
			return next(ctx, cmd)
		}
		keys, ok := args[2].(int)
		if !ok {
			return next(ctx, cmd)
		}
		argv := args[3+keys:]
		size, ok := argv[5].(int)
		if !ok {
			return next(ctx, cmd)
		}
		// The stage's clock stops while a script runs, and the engine's does not.
		if latest, ok := argv[1].(int64); ok && argv[0] == "" {
			argv[1] = latest + limit.Milliseconds()
		}
		w.mu.Lock()
		w.sent = append(w.sent, sending{time.Since(w.began), size, fmt.Sprint(argv[0])})
		call := len(w.sent)
		before, after := w.before, w.after
		w.mu.Unlock()
		var err error
		if before != nil {
			err = before(ctx, call)
		}
		if err == nil {
			if err = next(ctx, cmd); err == nil && after != nil {
				err = after(ctx, call)
			}
		}
		if err != nil {
			cmd.SetErr(err)
		}
		return err
	}
}

func (w *wayOut) set(before, after func(ctx context.Context, call int) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.before, w.after = before, after
}

func (w *wayOut) sendings() []sending {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.sent)
}

func sizes(list []sending) []int {
	out := make([]int, len(list))
	for i := range list {
		out[i] = list[i].size
	}
	return out
}

// takes gives each script a duration.
func takes(d time.Duration) func(context.Context, int) error {
	return func(context.Context, int) error {
		<-time.After(d)
		return nil
	}
}

// told is the outcome of one request.
type told struct {
	outcome Outcome
	at      time.Duration
	times   int
}

// stage is a seller on a real engine with a clock of its own, which stops while the engine
// works: only the test decides how long things take.
type stage struct {
	*wayOut
	*shop
	v       *Inventory
	another func() *Inventory // of another process
	locks   *lock.Manager

	answers sync.Mutex
}

// inOwnTime runs a test on a stage. The locks poll, and there is no subscription to stock
// changes, because an open subscription would stop the stage's clock.
func inOwnTime(t *testing.T, cfg Config, sale Sale, test func(t *testing.T, st *stage)) {
	t.Helper()
	engine := redistest.Embedded(t)
	if err := purchaseScript.Load(t.Context(), engine).Err(); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		// Connections use the real clock for their deadlines, so the stage's short times must
		// not become deadlines.
		o := redistest.Options(engine.Options().Addr)
		o.ContextTimeoutEnabled = false
		o.DialTimeout, o.ReadTimeout, o.WriteTimeout = limit, limit, limit
		rdb := redis.NewClient(o)
		t.Cleanup(func() {
			if err := rdb.Close(); err != nil {
				t.Error(err)
			}
		})
		w := &wayOut{began: time.Now()}
		rdb.AddHook(w)
		polling := lockConfig
		polling.Poll = time.Millisecond
		st := &stage{wayOut: w, shop: newShop(t, rdb, sale, 0), locks: newLocks(t, rdb, polling)}
		cfg, err := cfg.withDefaults()
		if err != nil {
			t.Fatal(err)
		}
		st.another = func() *Inventory {
			v := &Inventory{
				clocks: make([]scriptClock, 1), observers: Observers{}.withDefaults(),
				cfg: cfg, keys: keys{1}, rdb: rdb, locks: newLocks(t, rdb, polling), queues: []*queue.Queue{st.queue},
				source: st.source, sellers: make(map[string]*seller),
			}
			v.epoch.Store(1)
			v.life, v.stop = context.WithCancel(t.Context())
			t.Cleanup(func() {
				if err := v.Close(context.WithoutCancel(t.Context())); err != nil {
					t.Error(err)
				}
			})
			return v
		}
		st.v = st.another()
		if err := st.v.Open(await.Context(t), st.item); err != nil {
			t.Fatal(err)
		}
		st.began = time.Now()
		test(t, st)
	})
}

// submit sends a request and returns the place of its outcome.
func (st *stage) submit(t *testing.T, buyer string) *told {
	t.Helper()
	a := new(told)
	r := st.request(buyer, "k", 1)
	r.Done = func(o Outcome) {
		st.answers.Lock()
		defer st.answers.Unlock()
		a.outcome, a.at = o, time.Since(st.began)
		a.times++
	}
	if err := st.v.Submit(r); err != nil {
		t.Fatal(err)
	}
	return a
}

// after advances the time to that duration after the start of the test, and runs everything
// that is due by then.
func (st *stage) after(d time.Duration) {
	<-time.After(d - time.Since(st.began))
	synctest.Wait()
}

// want checks that a request was answered once, with that outcome and at that time.
func (st *stage) want(t *testing.T, what string, a *told, err error, at time.Duration) {
	t.Helper()
	st.answers.Lock()
	defer st.answers.Unlock()
	if a.times != 1 || !errors.Is(a.outcome.Err, err) || (a.outcome.Err == nil) != (err == nil) || a.at != at {
		t.Errorf("%s: answered %d times, %+v at %s; want once, %v at %s", what, a.times, a.outcome, a.at, err, at)
	}
}

const ms = time.Millisecond

// TestSeller_Time_Idle: an idle seller sends a request immediately, and releases the lock
// after LockIdle without requests.
func TestSeller_Time_Idle(t *testing.T) {
	t.Parallel()
	inOwnTime(t, Config{LockIdle: 5 * ms}, open(10, 1), func(t *testing.T, st *stage) {
		st.after(time.Second)
		a := st.submit(t, "a")
		synctest.Wait()
		st.want(t, "a lone request", a, nil, time.Second)
		st.after(time.Second + 5*ms - 1)
		key := st.v.keys.lock(st.item)
		if l, err := st.locks.TryAcquire(t.Context(), key); !errors.Is(err, lock.ErrTaken) {
			t.Fatalf("acquired the lock before LockIdle has passed: %v, %v", l, err)
		}
		st.after(time.Second + 5*ms)
		l, err := st.locks.TryAcquire(t.Context(), key)
		if err != nil {
			t.Fatalf("after LockIdle: %v", err)
		}
		if err := l.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestSeller_Time_Batches: requests that arrive while a script is in flight are sent together
// afterwards, in batches of bounded size.
func TestSeller_Time_Batches(t *testing.T) {
	t.Parallel()
	inOwnTime(t, Config{MaxBatch: 100}, open(1000, 1), func(t *testing.T, st *stage) {
		st.set(nil, takes(10*ms))
		first := st.submit(t, "first")
		st.after(1 * ms)
		var later []*told
		for i := range 250 {
			later = append(later, st.submit(t, fmt.Sprint("u", i)))
		}
		st.after(100 * ms)
		st.want(t, "the first", first, nil, 10*ms)
		for i, a := range later {
			st.want(t, fmt.Sprint("request ", i), a, nil, time.Duration(20+10*(i/100))*ms)
		}
		if got := sizes(st.sendings()); !slices.Equal(got, []int{1, 100, 100, 50}) {
			t.Errorf("batches of %v", got)
		}
		st.audit(t)
	})
}

// TestSeller_Time_Waiter: a busy seller keeps the lock while no other process waits for it. When
// one does, the script in flight is the last; while the other holds the lock nothing is sold, and
// afterwards the seller does without the lock until it has been the only one for a while.
func TestSeller_Time_Waiter(t *testing.T) {
	t.Parallel()
	const script, came, held, until = 2 * ms, 100 * ms, 10 * ms, 500 * ms
	inOwnTime(t, Config{}, open(1000, 1), func(t *testing.T, st *stage) {
		st.set(nil, takes(script))
		var answers []*told
		var got time.Duration
		other := make(chan struct{})
		for at := time.Duration(0); at < until; at += ms {
			st.after(at)
			answers = append(answers, st.submit(t, fmt.Sprint("u", at)))
			if at == came {
				go func() {
					defer close(other)
					got = st.lockFor(t, held)
				}()
			}
		}
		st.after(2 * until)
		<-other
		for i, a := range answers {
			if a.times != 1 || a.outcome != (Outcome{}) {
				t.Errorf("request %d was answered %d times, %+v", i, a.times, a.outcome)
			}
			if a.at > got+script && a.at < got+held {
				t.Errorf("request %d was accepted at %s, and the other had the lock from %s on", i, a.at, got)
			}
		}
		// The other polls every one and a half milliseconds at the most.
		if got < came || got > came+2*script+2*ms {
			t.Errorf("the other had the lock at %s", got)
		}
		var guards []string
		for _, s := range st.sendings() {
			if s.at >= got+sharedFor && s.guard == "" && guards[len(guards)-1] != "" {
				t.Errorf("an instant batch at %s", s.at)
			}
			if len(guards) == 0 || guards[len(guards)-1] != s.guard {
				guards = append(guards, s.guard)
			}
		}
		if len(guards) != 3 || guards[0] == "" || guards[1] != "" || guards[2] == "" {
			t.Errorf("lock values of the scripts: %q, want one, none, and another", guards)
		}
		st.audit(t)
	})
}

// lockFor takes the item's lock as another process would, and releases it after that time. It
// returns when it had the lock.
func (st *stage) lockFor(t *testing.T, held time.Duration) (at time.Duration) {
	l, err := st.locks.Acquire(t.Context(), st.v.keys.lock(st.item))
	if err != nil {
		t.Errorf("acquire: %v", err)
		return 0
	}
	at = time.Since(st.began)
	<-time.After(held)
	if err := l.Release(t.Context()); err != nil {
		t.Error(err)
	}
	return at
}

// TestSeller_Time_Convoy: many processes sell an item, and wait for a change of it. Afterwards they
// soon sell without the lock again, and do not keep taking turns with it.
func TestSeller_Time_Convoy(t *testing.T) {
	t.Parallel()
	const processes, script, held = 8, 20 * ms, 200 * ms
	inOwnTime(t, Config{}, open(1_000_000, 1), func(t *testing.T, st *stage) {
		st.set(nil, takes(script))
		ctx, stop := context.WithCancel(t.Context())
		var buyers sync.WaitGroup
		for p := range processes {
			v := st.v
			if p > 0 {
				v = st.another()
			}
			buyers.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					if o, err := v.Purchase(t.Context(), st.request(fmt.Sprintf("u%d-%d", p, n), "k", 1)); err != nil || o != (Outcome{}) {
						t.Errorf("process %d: %+v, %v", p, o, err)
						return
					}
				}
			})
		}
		st.after(300 * ms)
		st.lockFor(t, held)
		st.after(1500 * ms)
		before := len(st.sendings())
		st.after(1700 * ms)
		last := st.sendings()[before:]
		stop()
		buyers.Wait()
		locked := 0
		for _, s := range last {
			if s.guard != "" {
				locked++
			}
		}
		// Each process sends a script every 20 ms.
		if want := processes * int(200*ms/script); locked > 0 || len(last) < want*9/10 {
			t.Errorf("%d scripts, %d of them with the lock; want %d without it", len(last), locked, want)
		}
		st.audit(t)
	})
}

// TestSeller_Time_Shared: a seller that sees the scripts of another process releases the lock at
// once. While another process then holds the lock, it tries again a few times with growing
// pauses, and waits for the lock in the end.
func TestSeller_Time_Shared(t *testing.T) {
	t.Parallel()
	inOwnTime(t, Config{}, open(1000, 1), func(t *testing.T, st *stage) {
		st.share(t)
		var got time.Duration
		other := make(chan struct{})
		go func() {
			defer close(other)
			got = st.lockFor(t, 100*ms)
		}()
		synctest.Wait()
		a := st.submit(t, "refused")
		synctest.Wait()
		st.after(300 * ms)
		<-other
		if got != 0 {
			t.Errorf("the other had the lock at %s, and not at once", got)
		}
		if a.times != 1 || a.outcome != (Outcome{}) || a.at < 100*ms || a.at > 102*ms {
			t.Errorf("answered %d times, %+v at %s; want once, accepted when the other has released the lock", a.times, a.outcome, a.at)
		}
		sent := st.sendings()
		pauses := []time.Duration{ms, 2 * ms, 4 * ms, 8 * ms, retryPause}
		if n := len(sent); n != 2+len(pauses)+1+1 || sent[n-1].guard == "" {
			t.Fatalf("%d scripts were sent: %+v", n, sent)
		}
		for i, want := range pauses {
			from, to := sent[2+i], sent[3+i]
			if from.guard != "" || to.guard != "" || to.at-from.at != want {
				t.Errorf("try %d: %+v, then %+v; want instant batches %s apart", i+1, from, to, want)
			}
		}
		st.audit(t)
	})
}

// TestSeller_Time_ClockSetBack: if the clock of Redis was set back, an instant batch of a shared
// item is refused, and is sent with the lock immediately.
func TestSeller_Time_ClockSetBack(t *testing.T) {
	t.Parallel()
	inOwnTime(t, Config{}, open(1000, 1), func(t *testing.T, st *stage) {
		st.share(t)
		_, _, fenceKey := st.locks.InstantKeys(st.v.keys.lock(st.item))
		if err := st.rdb.Set(t.Context(), fenceKey, "8999999999999999", time.Minute).Err(); err != nil {
			t.Fatal(err)
		}
		if err := st.rdb.HDel(t.Context(), st.v.keys.sale(st.item), "fence").Err(); err != nil {
			t.Fatal(err)
		}
		before := len(st.sendings())
		a := st.submit(t, "a")
		synctest.Wait()
		st.want(t, "the request", a, nil, time.Since(st.began))
		if sent := st.sendings()[before:]; len(sent) != 2 || sent[0].guard != "" || sent[1].guard == "" || sent[1].at != sent[0].at {
			t.Errorf("scripts %+v; want one without and one with the lock", sent)
		}
	})
}

// TestSeller_Time_WaitEnds: the wait of a batch that failed does not count for the next one.
func TestSeller_Time_WaitEnds(t *testing.T) {
	t.Parallel()
	const patience = 100 * ms
	var waits []time.Duration
	cfg := Config{Patience: patience, OnLock: func(_ int, waited time.Duration) { waits = append(waits, waited) }}
	inOwnTime(t, cfg, open(1000, 1), func(t *testing.T, st *stage) {
		st.share(t)
		other := make(chan struct{})
		go func() {
			defer close(other)
			st.lockFor(t, 2*patience)
		}()
		synctest.Wait()
		failed := st.submit(t, "failed")
		st.after(time.Second)
		<-other
		if failed.times != 1 || failed.outcome.Err == nil {
			t.Fatalf("while another process holds the lock: %+v", failed)
		}
		waits = nil
		st.submit(t, "next")
		synctest.Wait()
		if !slices.Equal(waits, []time.Duration{0}) {
			t.Errorf("waits for the free lock: %v", waits)
		}
	})
}

// share sells two units, and makes the seller see scripts of another process.
func (st *stage) share(t *testing.T) {
	t.Helper()
	st.submit(t, "alone")
	synctest.Wait()
	if err := st.rdb.HIncrBy(t.Context(), st.v.keys.sale(st.item), "sequence", 1).Err(); err != nil {
		t.Fatal(err)
	}
	st.submit(t, "shared")
	synctest.Wait()
}

// TestSeller_Time_Stale: a request whose patience ends while it waits for earlier scripts is
// refused, and was never sent.
func TestSeller_Time_Stale(t *testing.T) {
	t.Parallel()
	inOwnTime(t, Config{MaxBatch: 1, Patience: 100 * ms}, open(10, 1), func(t *testing.T, st *stage) {
		st.set(nil, takes(90*ms))
		a, b, c := st.submit(t, "a"), st.submit(t, "b"), st.submit(t, "c")
		st.after(time.Second)
		st.want(t, "the first", a, nil, 90*ms)
		st.want(t, "the second", b, nil, 180*ms)
		st.want(t, "the third", c, ErrOverloaded, 180*ms)
		if n := len(st.sendings()); n != 2 {
			t.Errorf("%d scripts were sent, want two", n)
		}
		st.audit(t)
	})
}

// TestSeller_Time_Resends: a batch whose outcome is unknown is sent again, with pauses that
// double, until a reply comes. It takes effect once, and each request is answered once.
func TestSeller_Time_Resends(t *testing.T) {
	t.Parallel()
	const lost = 8
	inOwnTime(t, Config{Patience: time.Minute}, open(10, 1), func(t *testing.T, st *stage) {
		st.set(nil, func(_ context.Context, call int) error {
			if call <= lost {
				return io.ErrUnexpectedEOF
			}
			return nil
		})
		a := st.submit(t, "a")
		st.after(30 * time.Second)
		sent := st.sendings()
		if len(sent) != lost+1 {
			t.Fatalf("sent %d times, want %d", len(sent), lost+1)
		}
		for i, most := 1, resendMin; i < len(sent); i, most = i+1, min(2*most, resendMax) {
			if pause := sent[i].at - sent[i-1].at; pause < most/2 || pause >= most {
				t.Errorf("sent again after %s, want %s to %s", pause, most/2, most)
			}
		}
		st.want(t, "the request", a, nil, sent[lost].at)
		if n := len(st.audit(t).queue); n != 1 {
			t.Errorf("%d orders, want one", n)
		}
	})
}

// TestSeller_Time_Down: while Redis is away a request is answered when its patience ends, and
// later requests after one attempt. The first that reaches Redis again is served as usual.
func TestSeller_Time_Down(t *testing.T) {
	t.Parallel()
	const patience = 1500 * ms
	inOwnTime(t, Config{Patience: patience}, open(10, 1), func(t *testing.T, st *stage) {
		away := errors.New("connection refused")
		st.set(func(context.Context, int) error { return away }, nil)
		a := st.submit(t, "a")
		st.after(time.Second)
		b := st.submit(t, "b")
		st.after(patience)
		st.want(t, "the first", a, ErrUnavailable, patience)
		st.want(t, "one that came meanwhile", b, ErrUnavailable, patience)
		sent := st.sendings()
		if n := len(sent); sent[n-1].at != patience || sent[n-2].at >= patience {
			t.Errorf("the last were sent at %s and %s", sent[n-2].at, sent[n-1].at)
		}
		st.after(5 * time.Second)
		c := st.submit(t, "c")
		synctest.Wait()
		st.want(t, "one that comes later", c, ErrUnavailable, 5*time.Second)
		if n := len(st.sendings()) - len(sent); n != 1 {
			t.Errorf("tried %d times for it, want once", n)
		}
		st.set(nil, nil)
		st.after(6 * time.Second)
		d := st.submit(t, "d")
		synctest.Wait()
		st.want(t, "one that comes with Redis back", d, nil, 6*time.Second)
		if n := len(st.audit(t).queue); n != 1 {
			t.Errorf("%d orders, want one", n)
		}
	})
}

// TestSeller_Time_UnknownStays: once an attempt may have taken effect, a refusal that only
// says "not now" is not the answer. Here the sale has to be loaded again and the database is
// away for a while. The order was accepted, and the answer says so.
func TestSeller_Time_UnknownStays(t *testing.T) {
	t.Parallel()
	inOwnTime(t, Config{Patience: time.Minute}, open(10, 1), func(t *testing.T, st *stage) {
		away := errors.New("the database is away")
		st.set(nil, func(ctx context.Context, call int) error {
			if call > 1 {
				return nil
			}
			st.source.set(func(s *stored) { s.err = away })
			if err := Invalidate(ctx, st.rdb, 1, []string{st.item}); err != nil {
				return err
			}
			return io.ErrUnexpectedEOF
		})
		a := st.submit(t, "a")
		st.after(10 * time.Second)
		if a.times != 0 {
			t.Fatalf("answered %+v at %s, and the order is in the queue", a.outcome, a.at)
		}
		st.source.set(func(s *stored) { s.err = nil })
		st.after(11 * time.Second)
		if a.times != 1 || a.outcome != (Outcome{}) {
			t.Errorf("answered %d times, %+v", a.times, a.outcome)
		}
		if n := len(st.audit(t).queue); n != 1 {
			t.Errorf("%d orders, want one", n)
		}
	})
}
