package lock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/redistest"
)

// flight is a call or a pipeline on its way. Nothing comes back before it lands.
type flight struct {
	cmds []redis.Cmder
	land chan error
}

// tower is a go-redis hook in the place of a connection: the test lets flights
// land. Each script then answers with its last argument.
type tower struct {
	out  chan *flight
	free atomic.Bool   // all land by themselves
	way  time.Duration // how long that takes
}

func (w *tower) DialHook(next redis.DialHook) redis.DialHook { return next }

func (w *tower) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { return w.fly(ctx, []redis.Cmder{cmd}) }
}

func (w *tower) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error { return w.fly(ctx, cmds) }
}

func (w *tower) fly(ctx context.Context, cmds []redis.Cmder) error {
	f := &flight{cmds: cmds, land: make(chan error, 1)}
	if w.free.Load() {
		time.AfterFunc(w.way, func() { f.land <- nil })
	}
	w.out <- f
	err := ctx.Err()
	if err == nil {
		select {
		case err = <-f.land:
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	for _, cmd := range cmds {
		if c, ok := cmd.(*redis.Cmd); ok && err == nil {
			c.SetVal(c.Args()[len(c.Args())-1])
		}
		cmd.SetErr(err)
	}
	return err
}

// gathering is a gatherer whose flights the test controls, in a bubble of its
// own time.
type gathering struct {
	*gatherer
	*tower
	t     *testing.T
	calls map[string]chan error // by argument: what was wrong with the answer
}

func inBubble(t *testing.T, test func(t *testing.T, g *gathering)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &tower{out: make(chan *flight, 1<<12)}
		rdb := redis.NewClient(redistest.Options("127.0.0.1:1"))
		defer func() {
			if err := rdb.Close(); err != nil {
				t.Error(err)
			}
		}()
		rdb.AddHook(w)
		test(t, &gathering{&gatherer{rdb: rdb}, w, t, make(map[string]chan error)})
	})
}

// call runs a script with this argument beside the test, up to where it waits.
func (g *gathering) call(ctx context.Context, arg string) {
	done := make(chan error, 1)
	g.calls[arg] = done
	go func() {
		got, err := g.run(ctx, extendScript, []string{"k"}, arg).Text()
		if err == nil && got != arg {
			err = fmt.Errorf("the answer is %q", got)
		}
		done <- err
	}()
	synctest.Wait()
}

// flown are the arguments of the calls that have taken off, flight by flight.
func (g *gathering) flown() (all [][]string, flights []*flight) {
	synctest.Wait()
	for {
		select {
		case f := <-g.out:
			var args []string
			for _, cmd := range f.cmds {
				args = append(args, fmt.Sprint(cmd.Args()[len(cmd.Args())-1]))
			}
			all, flights = append(all, args), append(flights, f)
		default:
			return all, flights
		}
	}
}

// takesOff wants one flight with these calls.
func (g *gathering) takesOff(args ...string) *flight {
	g.t.Helper()
	all, flights := g.flown()
	if len(all) != 1 || !slices.Equal(all[0], args) {
		g.t.Fatalf("took off: %v, want one flight with %v", all, args)
	}
	return flights[0]
}

func (g *gathering) nothingTakesOff() {
	g.t.Helper()
	if all, _ := g.flown(); len(all) > 0 {
		g.t.Fatalf("took off: %v, want nothing", all)
	}
}

// answered wants the answers of these calls, now.
func (g *gathering) answered(args ...string) {
	g.t.Helper()
	for _, arg := range args {
		if err := g.outcome(arg); err != nil {
			g.t.Errorf("call %s: %v", arg, err)
		}
	}
}

func (g *gathering) outcome(arg string) error {
	g.t.Helper()
	synctest.Wait()
	select {
	case err := <-g.calls[arg]:
		return err
	default:
		g.t.Fatalf("call %s has not returned", arg)
		return nil
	}
}

// idle wants that nothing is under way: the next call goes out by itself.
func (g *gathering) idle() {
	g.t.Helper()
	g.call(g.t.Context(), "idle")
	g.takesOff("idle").land <- nil
	g.answered("idle")
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.busy || len(g.queued) > 0 {
		g.t.Errorf("busy = %v with %d queued, and nothing is under way", g.busy, len(g.queued))
	}
}

// pass lets so much time go by.
func pass(d time.Duration) { <-time.After(d) }

// Given a call under way, when others come, then they wait for it and go out
// together, and everyone gets the answer of its own call.
func TestGatherer_run(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, g *gathering) {
		g.call(t.Context(), "1")
		first := g.takesOff("1")
		for _, arg := range []string{"2", "3", "4"} {
			g.call(t.Context(), arg)
		}
		g.nothingTakesOff()
		first.land <- nil
		second := g.takesOff("2", "3", "4")
		g.answered("1")
		g.call(t.Context(), "5")
		g.nothingTakesOff()
		second.land <- nil
		g.takesOff("5").land <- nil
		g.answered("2", "3", "4", "5")
		g.idle()
	})
}

// Given more calls than a pipeline carries, then they go out in several, one
// after the other, in the order in which they came.
func TestGatherer_run_Limit(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, g *gathering) {
		g.call(t.Context(), "first")
		next := g.takesOff("first")
		var args []string
		for i := range 2*gatherLimit + 5 {
			args = append(args, strconv.Itoa(i))
			g.call(t.Context(), args[i])
		}
		next.land <- nil
		for batch := range slices.Chunk(args, gatherLimit) {
			next = g.takesOff(batch...)
			next.land <- nil
		}
		g.answered(args...)
		g.idle()
	})
}

// Given a flight that hangs, alone or a pipeline, when others come, then those
// that wait for it go out after the patience, and all that come later wait for
// nothing, however long it hangs.
func TestGatherer_run_Hangs(t *testing.T) {
	t.Parallel()
	for name, size := range map[string]int{"Call": 1, "Pipeline": 3} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, g *gathering) {
				var hung []string
				for i := range size {
					hung = append(hung, "hung"+strconv.Itoa(i))
				}
				g.call(t.Context(), "first")
				first := g.takesOff("first")
				for _, arg := range hung {
					g.call(t.Context(), arg)
				}
				first.land <- nil
				hanging := g.takesOff(hung...)
				hungSince := time.Now()

				g.call(t.Context(), "a")
				g.call(t.Context(), "b")
				pass(gatherPatience - time.Nanosecond)
				g.nothingTakesOff()
				pass(time.Nanosecond)
				g.takesOff("a", "b").land <- nil
				g.answered("a", "b")

				start := time.Now()
				for i := range 25 {
					arg := strconv.Itoa(i)
					g.call(t.Context(), arg)
					g.takesOff(arg).land <- nil
					g.answered(arg)
				}
				if waited := time.Since(start); waited > 0 {
					t.Errorf("25 calls waited %s for one that hangs", waited)
				}
				pass(time.Second)
				// Its return is no news to those that wait for another.
				g.call(t.Context(), "c")
				other := g.takesOff("c")
				g.call(t.Context(), "d")
				hanging.land <- nil
				g.answered(hung...)
				g.nothingTakesOff()
				other.land <- nil
				g.takesOff("d").land <- nil
				g.answered("c", "d")
				if took := time.Since(hungSince); took != time.Second+gatherPatience {
					t.Errorf("all that took %s beside the second and the patience", took)
				}
				g.idle()
			})
		})
	}
}

// Given flights that hang one after the other, and more calls than a pipeline
// carries, then another pipeline goes out with each patience.
func TestGatherer_run_AllHang(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, g *gathering) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		g.call(ctx, "first")
		g.takesOff("first")
		var args []string
		for i := range 2*gatherLimit + 1 {
			args = append(args, strconv.Itoa(i))
			g.call(ctx, args[i])
		}
		for batch := range slices.Chunk(args, gatherLimit) {
			g.nothingTakesOff()
			pass(gatherPatience)
			g.takesOff(batch...)
		}
		<-ctx.Done()
		for _, arg := range append(args, "first") {
			if err := g.outcome(arg); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("call %s: err = %v, want the context's", arg, err)
			}
		}
		g.idle()
	})
}

// Given a Redis that is far, then calls go out as they come; when it is near
// again they are gathered again.
func TestGatherer_run_Far(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, g *gathering) {
		// For two seconds each call takes this long.
		settle := func(way time.Duration) {
			g.way = way
			g.free.Store(true)
			for start := time.Now(); time.Since(start) < 2500*time.Millisecond; {
				g.call(t.Context(), "x")
				pass(way)
				g.answered("x")
			}
			g.free.Store(false)
			g.flown()
		}
		three := func() [][]string {
			for _, arg := range []string{"1", "2", "3"} {
				g.call(t.Context(), arg)
			}
			all, flights := g.flown()
			for _, f := range flights {
				f.land <- nil
			}
			more, flights := g.flown()
			for _, f := range flights {
				f.land <- nil
			}
			g.answered("1", "2", "3")
			return append(all, more...)
		}
		for _, tc := range []struct {
			way  time.Duration
			want int
		}{
			{gatherBelow + time.Millisecond, 3},
			{gatherBelow, 2},
			{time.Second / 4, 3},
		} {
			settle(tc.way)
			if all := three(); len(all) != tc.want {
				t.Errorf("with %s there and back: took off %v, want %d flights", tc.way, all, tc.want)
			}
		}
	})
}

// TestNearness: the shortest call of the last one to two seconds counts, so that
// one slow call does not make Redis far, nor one quick call keep it near.
func TestNearness(t *testing.T) {
	t.Parallel()
	const near, far = gatherBelow / 2, 2 * gatherBelow
	var n nearness
	at := time.Now()
	for i, tc := range []struct {
		after, took time.Duration
		far         bool
	}{
		{0, far, false}, // one call tells nothing yet
		{1100 * time.Millisecond, far, true},
		{100 * time.Millisecond, near, false}, // it was quick once
		{800 * time.Millisecond, far, false},
		{200 * time.Millisecond, far, false}, // that was in the second before
		{1100 * time.Millisecond, far, true},
		{1100 * time.Millisecond, near, false},
	} {
		at = at.Add(tc.after)
		n.note(at, tc.took)
		if n.far() != tc.far {
			t.Errorf("step %d: far = %v, want %v", i, n.far(), tc.far)
		}
	}
}

// Given calls that wait, when the one that may wait longest leaves, before it
// was told to lead, then the others go out without it.
func TestGatherer_run_Leaves(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, g *gathering) {
		short, cancelShort := context.WithTimeout(t.Context(), gatherPatience/2)
		defer cancelShort()
		unbounded, cancel := context.WithCancel(t.Context())
		defer cancel()
		g.call(t.Context(), "first")
		first := g.takesOff("first")
		g.call(short, "short")
		g.call(unbounded, "unbounded")
		g.call(t.Context(), "stays")
		cancel()
		if err := g.outcome("unbounded"); !errors.Is(err, context.Canceled) {
			t.Errorf("err = %v, want the context's", err)
		}
		<-short.Done()
		if err := g.outcome("short"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("err = %v, want the context's", err)
		}
		first.land <- nil
		g.takesOff("stays").land <- nil
		g.answered("first", "stays")
		g.idle()
	})
}

// TestLeader: the pipeline is bounded by the context of who may wait longest.
func TestLeader(t *testing.T) {
	t.Parallel()
	now := time.Now()
	until := func(d time.Duration) *scriptRun {
		ctx, cancel := context.WithDeadline(t.Context(), now.Add(d))
		t.Cleanup(cancel)
		return &scriptRun{ctx: ctx}
	}
	short, long, longest := until(time.Minute), until(time.Hour), until(2*time.Hour)
	unbounded := &scriptRun{ctx: t.Context()}
	for _, tc := range []struct {
		batch []*scriptRun
		want  *scriptRun
	}{
		{[]*scriptRun{short}, short},
		{[]*scriptRun{short, longest, long}, longest},
		{[]*scriptRun{longest, short, long}, longest},
		{[]*scriptRun{long, unbounded, longest}, unbounded},
		{[]*scriptRun{unbounded, longest}, unbounded},
	} {
		if got := leader(tc.batch); got != tc.want {
			t.Errorf("leader of %d is not who may wait longest", len(tc.batch))
		}
	}
}

// orders are all orders of all selections of 0 to n-1.
func orders(n int) (all [][]int) {
	all = [][]int{{}}
	for i := 0; i < len(all); i++ {
		for next := range n {
			if !slices.Contains(all[i], next) {
				all = append(all, append(slices.Clone(all[i]), next))
			}
		}
	}
	return all
}

// batchOf makes the gatherer hand a pipeline to one of so many calls, as a
// flight that lands does. None of them has taken note of it yet. Each may wait
// longer than those before it.
func batchOf(ctx context.Context, g *gatherer, n int) (runs []*scriptRun) {
	for range n {
		runs = append(runs, &scriptRun{ctx: ctx, script: extendScript, keys: []string{"k"}, args: []any{"v"}, turn: make(chan *pipeline, 1)})
	}
	g.queued = slices.Clone(runs)
	g.next()
	return runs
}

// Given a pipeline that one of its calls is to send, when any of them leave, in
// any order and before anyone took note, then one of those that stay sends for
// all of those, and nobody else does. When all leave, the next calls go out.
func TestGatherer_leave(t *testing.T) {
	t.Parallel()
	const calls = 4
	for _, leaving := range orders(calls) {
		t.Run(fmt.Sprint(leaving), func(t *testing.T) {
			inBubble(t, func(t *testing.T, g *gathering) {
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				runs := batchOf(t.Context(), g.gatherer, calls)
				later := &scriptRun{ctx: t.Context(), turn: make(chan *pipeline, 1)}
				g.queued = append(g.queued, later)
				for _, i := range leaving {
					if err := g.leave(ctx, runs[i]).Err(); !errors.Is(err, context.Canceled) {
						t.Errorf("call %d: err = %v, want the context's", i, err)
					}
				}
				stay := slices.DeleteFunc(slices.Clone(runs), (*scriptRun).left)
				if len(stay) == 0 {
					stay = []*scriptRun{later}
				} else if len(later.turn) > 0 {
					t.Error("the next calls were told to go out, too")
				}
				var batch *pipeline
				for _, r := range stay {
					if len(r.turn) > 0 {
						if batch != nil {
							t.Error("two were told to send")
						}
						batch = <-r.turn
					}
				}
				if batch == nil {
					t.Fatal("nobody was told to send")
				}
				// A call that left when another was to send may still go out.
				if slices.ContainsFunc(stay, func(r *scriptRun) bool { return !slices.Contains(batch.runs, r) }) {
					t.Error("the pipeline lacks one of the calls")
				}
				if batch.flight != g.flight || !g.busy {
					t.Error("the pipeline is not the flight that is waited for")
				}
			})
		})
	}
}

// Given a pipeline whose calls have all left when others have gone out
// meanwhile, then those that wait for the others' flight go on waiting for it.
func TestGatherer_leave_Replaced(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, g *gathering) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		runs := batchOf(t.Context(), g.gatherer, 2)
		pass(gatherPatience + 1)
		g.call(t.Context(), "beside")
		beside := g.takesOff("beside")
		g.call(t.Context(), "waits")
		for _, r := range runs {
			if err := g.leave(ctx, r).Err(); !errors.Is(err, context.Canceled) {
				t.Errorf("err = %v, want the context's", err)
			}
		}
		g.nothingTakesOff()
		beside.land <- nil
		g.takesOff("waits").land <- nil
		g.answered("beside", "waits")
		g.idle()
	})
}

// Given a call whose context ends when its answer has just come, then it gets
// the answer.
func TestGatherer_leave_Answered(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, g *gathering) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		g.free.Store(true)
		runs := batchOf(t.Context(), g.gatherer, 2)
		told, other := runs[0], runs[1]
		if len(told.turn) == 0 {
			told, other = other, told
		}
		g.send(t.Context(), <-told.turn, told)
		if got, err := g.leave(ctx, other).Text(); got != "v" || err != nil {
			t.Errorf("answer = %q, err = %v", got, err)
		}
		if got, err := told.cmd.Text(); got != "v" || err != nil {
			t.Errorf("the sender's answer = %q, err = %v", got, err)
		}
		g.flown()
		g.idle()
	})
}

// Given a pipeline that could not be sent, then each of its calls says so.
func TestGatherer_send_Fails(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, g *gathering) {
		g.call(t.Context(), "first")
		first := g.takesOff("first")
		g.call(t.Context(), "1")
		g.call(t.Context(), "2")
		first.land <- nil
		broken := errors.New("connection reset")
		g.takesOff("1", "2").land <- broken
		for _, arg := range []string{"1", "2"} {
			if err := g.outcome(arg); !errors.Is(err, broken) {
				t.Errorf("call %s: err = %v, want the connection's", arg, err)
			}
		}
		g.answered("first")
		g.idle()
	})
}

// Given a batch with scripts that Redis does not know, then these are sent
// again with their text, those that it knows run once, and an error of one call
// is no other's.
func TestGatherer_send_NOSCRIPT(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx, name := testContext(t), resource(t)
		g := &gatherer{rdb: rdb}
		// Nobody has run these before.
		count := redis.NewScript(`redis.call('INCR', KEYS[1]) return ARGV[1] -- ` + name)
		known := redis.NewScript(`redis.call('INCR', KEYS[1]) return ARGV[1] -- known ` + name)
		fails := redis.NewScript(`return redis.error_reply('REFUSED by ' .. ARGV[1]) -- ` + name)
		if err := known.Load(ctx, rdb).Err(); err != nil {
			t.Fatal(err)
		}
		scripts := []*redis.Script{known, count, fails, count, known}
		g.busy, g.since = true, time.Now().Add(time.Hour) // a flight the test lets land
		answers := make([]*redis.Cmd, len(scripts))
		var calls sync.WaitGroup
		for i, s := range scripts {
			calls.Go(func() { answers[i] = g.run(ctx, s, []string{name + strconv.Itoa(i)}, i) })
		}
		awaitGathered(t, g, len(scripts))
		g.landed(g.flight, time.Now())
		calls.Wait()
		for i, s := range scripts {
			got, err := answers[i].Text()
			if s == fails {
				if want := "REFUSED by " + strconv.Itoa(i); err == nil || err.Error() != want {
					t.Errorf("call %d: err = %v, want %q", i, err, want)
				}
				continue
			}
			if err != nil || got != strconv.Itoa(i) {
				t.Errorf("call %d: answer = %q, err = %v", i, got, err)
			}
			if n := rdb.Get(ctx, name+strconv.Itoa(i)).Val(); n != "1" {
				t.Errorf("call %d ran %s times", i, n)
			}
		}
		if g.busy || len(g.queued) > 0 {
			t.Errorf("busy = %v with %d queued, and nothing is under way", g.busy, len(g.queued))
		}
	})
}

// Given calls that wait together, when the caller of an Extend among them stops
// waiting while they are on their way, then the others do not fail: a release
// that finds its lock gone says so, and is no second run after a failure.
func TestLock_Extend_CancelledTogether(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		own := redistest.Second(t, rdb)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var armed atomic.Bool
		own.AddHook(specAround(func(_ context.Context, cmds []redis.Cmder, next func() error) error {
			if len(cmds) == 2 && armed.CompareAndSwap(true, false) {
				cancel()
			}
			return next()
		}))
		m := newManager(t, own, slow)
		extended, missing := mustAcquire(t, m, resource(t)), mustAcquire(t, m, resource(t))
		if err := rdb.Del(ctx, missing.h.keys[keyLock]).Err(); err != nil {
			t.Fatal(err)
		}
		g := gathererOf(t, m)
		g.mu.Lock()
		g.busy, g.since = true, time.Now().Add(time.Hour) // a flight the test lets land
		g.mu.Unlock()
		extension, release := make(chan error, 1), make(chan error, 1)
		go func() { extension <- extended.Extend(ctx, 2*slow.TTL) }()
		awaitGathered(t, g, 1)
		go func() { release <- missing.Release(t.Context()) }()
		awaitGathered(t, g, 2)
		armed.Store(true)
		g.landed(g.flight, time.Now())
		if err := <-release; !errors.Is(err, ErrNotHeld) {
			t.Errorf("release: err = %v, want ErrNotHeld", err)
		}
		if err := <-extension; err != nil {
			t.Errorf("extend: err = %v for a call that was answered", err)
		}
		if armed.Load() {
			t.Error("they did not go out together")
		}
		mustRelease(t, extended)
	})
}

func gathererOf(t *testing.T, m *Manager) *gatherer {
	t.Helper()
	n, ok := m.store.(*node)
	if !ok || n.gather == nil {
		t.Fatalf("%T gathers no calls", m.store)
	}
	return n.gather
}

// awaitGathered waits until so many calls wait for a flight.
func awaitGathered(t *testing.T, g *gatherer, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d calls wait", n), func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return len(g.queued) == n
	})
}

// Given many callers at once, part of which have so little time that they leave
// at every stage, then everyone else gets its own answer, and nothing is left.
func TestGatherer_run_Storm(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		echo := redis.NewScript(`return ARGV[1] -- ` + resource(t))
		g := &gatherer{rdb: rdb}
		var callers sync.WaitGroup
		for i := range 16 {
			callers.Go(func() {
				for j := range 40 {
					ctx, cancel := t.Context(), context.CancelFunc(func() {})
					if i%2 == 0 {
						ctx, cancel = context.WithTimeout(ctx, time.Duration(i*j)*2*time.Microsecond)
					}
					want := fmt.Sprint(i, j)
					got, err := g.run(ctx, echo, []string{"k"}, want).Text()
					if err == nil && got != want || err != nil && i%2 == 1 {
						t.Errorf("answer = %q, err = %v, want %q", got, err, want)
					}
					cancel()
				}
			})
		}
		callers.Wait()
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.busy || len(g.queued) > 0 {
			t.Errorf("busy = %v with %d queued, and nothing is under way", g.busy, len(g.queued))
		}
	})
}
