package breaker

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

func TestMain(m *testing.M) {
	// Most of the tests mostly wait. The command line overrides this.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	redistest.Main(m)
}

// patience bounds waits for expected events. It is long because it only delays a failure.
const patience = 2 * time.Minute

// guarded returns a client behind a breaker and a proxy, and a client without either.
func guarded(t testing.TB, cfg Config, set func(*redis.Options)) (*redis.Client, *Breakers, *redistest.Proxy, *redis.Client) {
	t.Helper()
	direct := redistest.Redis(t)
	proxy := redistest.NewProxy(t, direct.Options().Addr)
	o := redistest.Options(proxy.Addr())
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout = time.Second, time.Second, time.Second
	o.DialerRetries = 1
	if set != nil {
		set(o)
	}
	rdb := redis.NewClient(o)
	t.Cleanup(func() {
		if err := rdb.Close(); err != nil {
			t.Error(err)
		}
	})
	s := New(cfg)
	s.Guard(rdb)
	await.True(t, "the client is connected", func() bool { return rdb.Ping(t.Context()).Err() == nil })
	return rdb, s, proxy, direct
}

// unhurried gives a client timeouts that a busy machine does not reach.
func unhurried(o *redis.Options) {
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout = patience, patience, patience
}

// outages are the ways to lose a server: with an immediate error, or silently.
var outages = []struct {
	name       string
	begin, end func(*redistest.Proxy)
}{
	{"cut", func(p *redistest.Proxy) { p.Refuse(true); p.Sever() }, func(p *redistest.Proxy) { p.Refuse(false) }},
	{"half-open", func(p *redistest.Proxy) { p.Blackhole(true) }, func(p *redistest.Proxy) { p.Blackhole(false) }},
	// Bytes in flight are lost, so that every connection of the pool is dead.
	{"half-open for good", func(p *redistest.Proxy) { p.Blackhole(true) }, func(p *redistest.Proxy) { p.Sever(); p.Blackhole(false) }},
}

// The breaker opens when the server is lost, refuses calls without sending them, and closes
// automatically when the server is back.
func TestBreakers_OpenAndRecover(t *testing.T) {
	t.Parallel()
	for _, o := range outages {
		t.Run(o.name, func(t *testing.T) {
			t.Parallel()
			rdb, s, proxy, direct := guarded(t, Config{}, nil)
			key := redistest.Prefix(t) + "n"
			if err := direct.Set(t.Context(), key, 0, 0).Err(); err != nil {
				t.Fatal(err)
			}
			for range 2 { // it recovers more than once
				o.begin(proxy)
				await.True(t, "the breaker opens", func() bool {
					return errors.Is(rdb.Get(t.Context(), key).Err(), ErrOpen)
				})
				if s.Open() != 1 {
					t.Errorf("%d breakers are open, want 1", s.Open())
				}
				before := s.Refused()
				cmds, err := rdb.Pipelined(t.Context(), func(p redis.Pipeliner) error {
					p.Incr(t.Context(), key)
					p.Incr(t.Context(), key)
					return nil
				})
				if !errors.Is(err, ErrOpen) || !errors.Is(cmds[1].Err(), ErrOpen) {
					t.Errorf("a pipeline while Redis is away: %v, its second call %v", err, cmds[1].Err())
				}
				_, err = rdb.TxPipelined(t.Context(), func(p redis.Pipeliner) error { return p.Incr(t.Context(), key).Err() })
				if !errors.Is(err, ErrOpen) {
					t.Errorf("a transaction while Redis is away: %v", err)
				}
				if got := s.Refused() - before; got != 2 {
					t.Errorf("%d calls counted as refused, want 2", got)
				}
				o.end(proxy)
				back := time.Now()
				await.True(t, "the breaker closes", func() bool { return rdb.Ping(t.Context()).Err() == nil })
				t.Logf("closed %v after the end of the outage", time.Since(back).Round(time.Millisecond))
				if s.Open() != 0 {
					t.Errorf("%d breakers are open, want none", s.Open())
				}
			}
			if n, err := direct.Get(t.Context(), key).Int(); n != 0 || err != nil {
				t.Errorf("the server has counted %d (%v), want 0: what was refused was sent", n, err)
			}
		})
	}
}

// After a restart all idle connections of the pool are dead. The breaker must not treat them as
// the server's state.
func TestBreakers_DeadConnectionsDoNotDelayRecovery(t *testing.T) {
	t.Parallel()
	server := redistest.Real(t)
	o := redistest.Options(server.Addr())
	o.DialerRetries = 1
	rdb := redis.NewClient(o)
	defer rdb.Close()
	s := New(Config{})
	s.Guard(rdb)
	var all sync.WaitGroup
	for range 40 {
		all.Go(func() { rdb.Ping(t.Context()) })
	}
	all.Wait()
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the breaker opens", func() bool { return errors.Is(rdb.Ping(t.Context()).Err(), ErrOpen) })
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the breaker closes", func() bool { return rdb.Ping(t.Context()).Err() == nil })
}

// Many failures that are no sign of the server's state do not open the breaker.
func TestBreakers_OtherFailuresDoNotOpen(t *testing.T) {
	t.Parallel()
	// One time-out would open it: a busy machine must not cause one.
	rdb, s, _, _ := guarded(t, Config{Failures: 1, Span: 1}, unhurried)
	// On a busy machine a call may end long after its deadline.
	slow, slowSet, slowProxy, _ := guarded(t, Config{Failures: 1, Span: 1, Patience: patience}, unhurried)
	key := redistest.Prefix(t)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	rdb.Set(t.Context(), key+"text", "a", time.Minute)
	for _, c := range []struct {
		name string
		do   func() error
	}{
		{"no such key", func() error { return rdb.Get(t.Context(), key+"none").Err() }},
		{"wrong type", func() error { return rdb.LPush(t.Context(), key+"text", "b").Err() }},
		{"an error of a script", func() error {
			return rdb.Eval(t.Context(), "return redis.error_reply('LOADING Redis is loading the dataset in memory')", []string{key}).Err()
		}},
		{"a blocking command got nothing", func() error { return rdb.BLPop(t.Context(), time.Second, key+"list").Err() }},
		{"a cancelled call", func() error { return rdb.Get(gone, key).Err() }},
		{"a short deadline", func() error {
			slowProxy.SetLatency(0, 100*time.Millisecond)
			defer slowProxy.SetLatency(0, 0)
			brief, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			return slow.Get(brief, key).Err()
		}},
		{"a blocking command reached its deadline", func() error {
			brief, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			return rdb.BLPop(brief, 2*time.Second, key+"list").Err()
		}},
	} {
		if c.do() == nil {
			t.Errorf("%s: no error", c.name)
		}
		err := errors.Join(rdb.Ping(t.Context()).Err(), slow.Ping(t.Context()).Err())
		if n := s.Refused() + slowSet.Refused(); err != nil || n != 0 {
			t.Errorf("after %q: %v, %d calls refused", c.name, err, n)
		}
	}
}

// All connections of the pool are in use. That other calls get none is no sign of the server's
// state.
func TestBreakers_ExhaustedPoolDoesNotOpen(t *testing.T) {
	t.Parallel()
	rdb, s, _, direct := guarded(t, Config{Failures: 1, Span: 1}, func(o *redis.Options) {
		unhurried(o)
		o.PoolSize, o.PoolTimeout = 1, 20*time.Millisecond
	})
	key := redistest.Prefix(t) + "list"
	waiting := make(chan error, 1)
	go func() {
		for {
			// A ping below may hold the only connection at first.
			err := rdb.BLPop(t.Context(), time.Minute, key).Err()
			if !errors.Is(err, redis.ErrPoolTimeout) {
				waiting <- err
				return
			}
		}
	}()
	await.True(t, "the pool is empty", func() bool { return errors.Is(rdb.Ping(t.Context()).Err(), redis.ErrPoolTimeout) })
	for range 5 {
		if err := rdb.Ping(t.Context()).Err(); !errors.Is(err, redis.ErrPoolTimeout) {
			t.Errorf("a call that finds no connection: %v", err)
		}
	}
	direct.LPush(t.Context(), key, "x")
	if err := <-waiting; err != nil {
		t.Errorf("the blocked call: %v", err)
	}
	if s.Open() != 0 || s.Refused() != 0 {
		t.Errorf("%d breakers are open, %d calls refused", s.Open(), s.Refused())
	}
}

// All connections are reset at once, and new ones work. That counts as one event, no matter how
// many calls it hit.
func TestBreakers_OneResetDoesNotOpen(t *testing.T) {
	t.Parallel()
	rdb, s, proxy, _ := guarded(t, Config{Span: patience}, unhurried)
	list := redistest.Prefix(t) + "list"
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if err := rdb.BLPop(t.Context(), time.Minute, list).Err(); err == nil {
				t.Error("a call that was cut off returns no error")
			}
		})
	}
	await.True(t, "all wait", func() bool { return proxy.Connections() >= 20 })
	proxy.Sever()
	all.Wait()
	if err := rdb.Ping(t.Context()).Err(); err != nil || s.Open() != 0 {
		t.Errorf("after the reset: %v, %d breakers are open", err, s.Open())
	}
}

// During an outage the breaker does not hinder a subscription's reconnection, and it does not
// treat a silent channel as an outage.
func TestBreakers_SubscriptionsReconnect(t *testing.T) {
	t.Parallel()
	rdb, s, proxy, direct := guarded(t, Config{}, nil)
	channel := redistest.Prefix(t) + "channel"
	sub := rdb.Subscribe(t.Context(), channel)
	defer sub.Close()
	if _, err := sub.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 5 { // silence
		if _, err := sub.ReceiveTimeout(t.Context(), 20*time.Millisecond); err == nil {
			t.Fatal("an unexpected message")
		}
	}
	if s.Open() != 0 {
		t.Error("the breaker is open because a subscription was silent")
	}
	proxy.Refuse(true)
	proxy.Sever()
	await.True(t, "the breaker opens", func() bool { return errors.Is(rdb.Ping(t.Context()).Err(), ErrOpen) })
	proxy.Refuse(false)
	heard := make(chan string, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var listening sync.WaitGroup
	defer listening.Wait()
	listening.Go(func() {
		for ctx.Err() == nil {
			if msg, err := sub.ReceiveMessage(ctx); err == nil {
				heard <- msg.Payload
				return
			}
		}
	})
	await.True(t, "a message arrives again", func() bool {
		direct.Publish(t.Context(), channel, "hello")
		select {
		case <-heard:
			return true
		default:
			return false
		}
	})
}

// When one cluster node stops, its breaker opens and calls to the other nodes succeed.
func TestBreakers_OtherNodesStayReachable(t *testing.T) {
	t.Parallel()
	servers := redistest.OwnCluster(t)
	o := redistest.ClusterOptions(servers.Addrs()...)
	// The test cluster's dialer hides connection errors from the client, and so from the
	// breaker.
	o.Dialer = nil
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout = time.Second, time.Second, time.Second
	rdb := redis.NewClusterClient(o)
	defer rdb.Close()
	s := New(Config{})
	s.GuardCluster(rdb)
	ctx := t.Context()
	away := servers.Addrs()[0]
	var there, here string // a key of the node that stops, and one of another node
	for i := 0; there == "" || here == ""; i++ {
		key := fmt.Sprintf("key%d", i)
		node, err := rdb.MasterForKey(ctx, key)
		if err != nil {
			t.Fatal(err)
		}
		if node.Options().Addr == away {
			there = key
		} else {
			here = key
		}
		if err := rdb.Set(ctx, key, "x", 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := servers.Nodes()[0].Pause(); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the breaker of the node opens", func() bool { return errors.Is(rdb.Get(ctx, there).Err(), ErrOpen) })
	if s.Open() != 1 {
		t.Errorf("%d breakers are open, want 1", s.Open())
	}
	// Without this node's third of the slots the cluster answers with errors after a while.
	// Answers of its nodes are not an outage.
	for range 20 {
		if err := rdb.Get(ctx, here).Err(); errors.Is(err, ErrOpen) {
			t.Errorf("a key of another node: %v", err)
		}
	}
	if err := servers.Nodes()[0].Continue(); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the node serves again", func() bool { return rdb.Get(ctx, there).Err() == nil })
	if s.Open() != 0 {
		t.Errorf("%d breakers are open, want none", s.Open())
	}
}

// A cluster client retries a call whose first attempt was sent. If the second attempt is
// refused, the call must not count as not sent.
func TestWitness_RetriedCallCountsAsSent(t *testing.T) {
	t.Parallel()
	for _, sent := range []bool{false, true} {
		tries := func(ctx context.Context) error {
			if sent {
				noteSent(ctx)
			}
			return ErrOpen
		}
		cmd := redis.NewStatusCmd(t.Context(), "ping")
		err := witness{}.ProcessHook(func(ctx context.Context, _ redis.Cmder) error { return tries(ctx) })(t.Context(), cmd)
		if errors.Is(err, ErrOpen) == sent {
			t.Errorf("a call, sent %v: %v", sent, err)
		}
		cmds := []redis.Cmder{redis.NewStatusCmd(t.Context(), "ping")}
		err = witness{}.ProcessPipelineHook(func(ctx context.Context, cmds []redis.Cmder) error {
			cmds[0].SetErr(tries(ctx))
			return cmds[0].Err()
		})(t.Context(), cmds)
		if errors.Is(err, ErrOpen) == sent || errors.Is(cmds[0].Err(), ErrOpen) == sent {
			t.Errorf("a pipeline, sent %v: %v, its call %v", sent, err, cmds[0].Err())
		}
	}
}

// BenchmarkPing measures a call through a closed breaker.
func BenchmarkPing(b *testing.B) {
	for _, with := range []bool{false, true} {
		b.Run(fmt.Sprintf("guarded=%v", with), func(b *testing.B) {
			rdb := redis.NewClient(redistest.Options(redistest.Redis(b).Options().Addr))
			defer rdb.Close()
			if with {
				New(Config{}).Guard(rdb)
			}
			b.ReportAllocs()
			for b.Loop() {
				if err := rdb.Ping(b.Context()).Err(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkGuard measures the same without the network.
func BenchmarkGuard(b *testing.B) {
	n := newNode(New(Config{}), &redis.Options{})
	call := n.ProcessHook(func(context.Context, redis.Cmder) error { return nil })
	cmd := redis.NewStatusCmd(b.Context(), "evalsha")
	b.ReportAllocs()
	for b.Loop() {
		if err := call(b.Context(), cmd); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkRefused measures a refused call.
func BenchmarkRefused(b *testing.B) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1})
	defer rdb.Close()
	New(Config{}).Guard(rdb)
	await.True(b, "the breaker opens", func() bool { return errors.Is(rdb.Ping(b.Context()).Err(), ErrOpen) })
	b.ReportAllocs()
	for b.Loop() {
		if err := rdb.Ping(b.Context()).Err(); !errors.Is(err, ErrOpen) {
			b.Fatal(err)
		}
	}
}
