package lock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// flight is a call or a pipeline in progress. It returns when the test lets it land.
type flight struct {
	cmds    []redis.Cmder
	land    chan error
	notHeld string // the token of a release whose reply is 0
}

// tower is a go-redis hook that replaces the connection: the test lets flights land. The reply
// to each call is then its token.
type tower struct {
	out chan *flight
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
			replies := tokensOf(c)
			for i := range replies {
				if f.notHeld != "" && replies[i] == f.notHeld {
					replies[i] = int64(0)
				}
			}
			c.SetVal(replies)
		}
		cmd.SetErr(err)
	}
	return err
}

// tokensOf lists the tokens of the calls of a command.
func tokensOf(cmd redis.Cmder) (tokens []any) {
	n := len(kindsOf(cmd))
	args := cmd.Args()
	for i := range n {
		tokens = append(tokens, args[len(args)-4*(n-i)+1])
	}
	return tokens
}

// gathering is a gatherer whose flights the test controls, in a synctest bubble.
type gathering struct {
	*gatherer
	*tower
	t     *testing.T
	calls map[string]chan error // by argument: the error of the reply
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
		test(t, &gathering{&gatherer{node: &node{rdb: rdb}}, w, t, make(map[string]chan error)})
	})
}

// call runs a call with this token on a goroutine, until it blocks.
func (g *gathering) call(ctx context.Context, arg string) {
	done := make(chan error, 1)
	g.calls[arg] = done
	go func() {
		got, err := g.run(ctx, call{keys: new(keys), what: callTry, token: arg, text: "", ttl: 0})
		if err == nil && got != arg {
			err = fmt.Errorf("the reply is %q", got)
		}
		done <- err
	}()
	synctest.Wait()
}

// flown returns the arguments of the calls that have taken off, flight by flight.
func (g *gathering) flown() (all [][]string, flights []*flight) {
	synctest.Wait()
	for {
		select {
		case f := <-g.out:
			var args []string
			for _, cmd := range f.cmds {
				for _, token := range tokensOf(cmd) {
					args = append(args, fmt.Sprint(token))
				}
			}
			all, flights = append(all, args), append(flights, f)
		default:
			return all, flights
		}
	}
}

// takesOff fails unless one flight with these calls has taken off.
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

// answered fails unless these calls have their replies now.
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

// idle fails unless no call is running: the next call goes out on its own.
func (g *gathering) idle() {
	g.t.Helper()
	g.call(g.t.Context(), "idle")
	g.takesOff("idle").land <- nil
	g.answered("idle")
	g.mu.Lock()
	defer g.mu.Unlock()
	g.rests(g.t)
}

// rests fails unless nothing is counted, queued or sent. The caller holds mu.
func (g *gatherer) rests(t *testing.T) {
	t.Helper()
	if g.calls != 0 || len(g.queued) > 0 || g.senders != 0 {
		t.Errorf("%d calls, %d queued, %d senders, and no call is running", g.calls, len(g.queued), g.senders)
	}
}

// fill starts as many calls as go out on their own.
func (g *gathering) fill() (flights []*flight) {
	g.t.Helper()
	for i := range gatherFrom {
		arg := "alone" + strconv.Itoa(i)
		g.call(g.t.Context(), arg)
		flights = append(flights, g.takesOff(arg))
	}
	return flights
}

// empty lets the calls of fill land.
func (g *gathering) empty(flights []*flight) {
	g.t.Helper()
	for i, f := range flights {
		f.land <- nil
		g.answered("alone" + strconv.Itoa(i))
	}
	g.idle()
}

// pass advances the clock.
func pass(d time.Duration) { <-time.After(d) }

// Given as many running calls as go out on their own, when others arrive, then the first of
// them goes out and the rest go out together when it has returned, and every caller gets the
// reply of its own call.
func TestGatherer_run(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, g *gathering) {
		alone := g.fill()
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
		g.empty(alone)
	})
}

// Given more calls than one run carries, then they go out in several runs, one after
// the other, in the order of arrival.
func TestGatherer_run_Limit(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, g *gathering) {
		alone := g.fill()
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
		g.empty(alone)
	})
}

// Given a run that hangs, when other calls arrive, then they go out after
// gatherPatience, and the calls that return make room as before.
func TestGatherer_run_Hangs(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, g *gathering) {
		alone := g.fill()
		g.call(t.Context(), "hung")
		hanging := g.takesOff("hung")
		g.call(t.Context(), "a")
		g.call(t.Context(), "b")
		pass(gatherPatience - time.Nanosecond)
		g.nothingTakesOff()
		pass(time.Nanosecond)
		g.takesOff("a", "b").land <- nil
		g.answered("a", "b")
		g.call(t.Context(), "c")
		g.takesOff("c").land <- nil
		g.answered("c")
		hanging.land <- nil
		g.answered("hung")
		g.empty(alone)
	})
}

// Given calls whose contexts end, then queued ones are not sent, the others get their replies,
// and a run has the latest deadline of its calls.
func TestGatherer_run_Leaves(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, g *gathering) {
		g.node.obedient = true
		alone := g.fill()
		g.call(t.Context(), "first")
		first := g.takesOff("first")
		queued, leave := context.WithCancel(t.Context())
		sent, leaveToo := context.WithTimeout(t.Context(), time.Second)
		defer leaveToo()
		g.call(queued, "queued")
		g.call(sent, "sent")
		g.call(t.Context(), "stays")
		leave()
		if err := g.outcome("queued"); !errors.Is(err, context.Canceled) {
			t.Errorf("err = %v, want canceled", err)
		}
		first.land <- nil
		both := g.takesOff("sent", "stays")
		pass(time.Second)
		if err := g.outcome("sent"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("err = %v, want the deadline's", err)
		}
		both.land <- nil
		g.answered("first", "stays")
		g.empty(alone)
	})
}

// Given a client that does not end calls with their context, when the context of a call ends, then
// it leaves only if it was not sent: a clean-up that ran before it would leave its lock behind.
func TestGatherer_run_Stays(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, g *gathering) {
		alone := g.fill()
		ctx, cancel := context.WithCancel(t.Context())
		g.call(ctx, "sent")
		sent := g.takesOff("sent")
		g.call(ctx, "queued")
		cancel()
		if err := g.outcome("queued"); !errors.Is(err, context.Canceled) {
			t.Errorf("err = %v, want canceled", err)
		}
		synctest.Wait()
		select {
		case err := <-g.calls["sent"]:
			t.Fatalf("the call returned before its reply: %v", err)
		default:
		}
		sent.land <- nil
		g.answered("sent")
		g.empty(alone)
	})
}

// Given a run that could not be sent, then each of its calls returns the error.
func TestGatherer_send_Fails(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, g *gathering) {
		alone := g.fill()
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
		g.empty(alone)
	})
}

// refusal is an error reply of Redis.
type refusal string

func (r refusal) Error() string { return string(r) }
func (refusal) RedisError()     {}

// Given calls that share a run, when Redis refuses the run, then each call is sent on its own.
func TestGatherer_send_Refused(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, g *gathering) {
		alone := g.fill()
		g.call(t.Context(), "first")
		first := g.takesOff("first")
		g.call(t.Context(), "1")
		g.call(t.Context(), "2")
		first.land <- nil
		g.takesOff("1", "2").land <- refusal("NOPERM no permissions to access a key")
		singly := g.takesOff("1", "2")
		if n := len(singly.cmds); n != 2 {
			t.Errorf("%d commands, want one for each call", n)
		}
		singly.land <- nil
		g.answered("first", "1", "2")
		g.empty(alone)
	})
}

// Given a lock that another client holds, when its former holder releases it in a run that Redis
// refuses, then the release is not held: no call of a refused run has run.
func TestGatherer_send_Refused_NotHeld(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, g *gathering) {
		g.node.gather = g.gatherer
		alone := g.fill()
		g.call(t.Context(), "first")
		first := g.takesOff("first")
		held := make(chan bool, 1)
		go func() {
			ok, _, err := g.node.release(t.Context(), new(keys), "lost", "")
			held <- ok || err != nil
		}()
		g.nothingTakesOff()
		g.call(t.Context(), "1")
		first.land <- nil
		g.takesOff("lost", "1").land <- refusal("NOPERM no permissions to access a key")
		singly := g.takesOff("lost", "1")
		singly.notHeld = "lost"
		singly.land <- nil
		if <-held {
			t.Error("the release counts as repeated")
		}
		g.answered("first", "1")
		g.empty(alone)
	})
}

// Given a server in cluster mode that has refused a run because of its slots, then later calls are sent
// on their own at once, in pipelines.
func TestGatherer_send_Slots(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, g *gathering) {
		alone := g.fill()
		g.call(t.Context(), "first")
		before := g.takesOff("first")
		for round, args := range [][]string{{"1", "2"}, {"3", "4"}} {
			for _, arg := range args {
				g.call(t.Context(), arg)
			}
			before.land <- nil
			before = g.takesOff(args...)
			if round == 0 {
				before.land <- refusal("CROSSSLOT Keys in request don't hash to the same slot")
				before = g.takesOff(args...)
			}
			if n := len(before.cmds); n != len(args) {
				t.Errorf("round %d: %d commands, want one for each call", round, n)
			}
		}
		before.land <- nil
		g.answered("first", "1", "2", "3", "4")
		g.empty(alone)
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

// Given many concurrent callers, some with so little time that they leave at every stage, then
// all others get their own replies, and nothing is left.
func TestGatherer_run_Storm(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		name := resource(t)
		g := gathererOf(t, newManager(t, rdb, slow))
		var callers sync.WaitGroup
		for i := range 4 * gatherFrom {
			callers.Go(func() {
				k := mustKeys(t, name+strconv.Itoa(i))
				for j := range 40 {
					ctx, cancel := t.Context(), context.CancelFunc(func() {})
					if i%2 == 0 {
						ctx, cancel = context.WithTimeout(ctx, time.Duration(i*j)*2*time.Microsecond)
					}
					// Each goroutine takes and releases a lock of its own. One that leaves may leave it held.
					token := fmt.Sprintf("m.%d", i)
					want := map[bool]any{true: int64(1)}[j%2 == 1]
					c := call{keys: k, what: callTry, token: token, text: "", ttl: 60_000}
					if j%2 == 1 {
						c.what = callRelease
					}
					got, err := g.run(ctx, c)
					if i%2 == 1 && (err != nil || want != nil && got != want) {
						t.Errorf("reply = %v, err = %v, want %v", got, err, want)
					}
					cancel()
				}
			})
		}
		callers.Wait()
		await.True(t, "the senders end", func() bool {
			g.mu.Lock()
			defer g.mu.Unlock()
			return g.senders == 0
		})
		g.rests(t)
	})
}
