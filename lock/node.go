package lock

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// queueLife is the minimum TTL of an abandoned queue.
const queueLife = time.Minute

// node is a store on one Redis or one cluster.
type node struct {
	rdb      redis.UniversalClient
	cluster  *redis.ClusterClient // nil unless rdb is one
	gather   *gatherer            // nil if calls do not share pipelines
	obedient bool                 // see obeysContext
	args     scriptArgs
}

// scriptArgs are the arguments that are the same in every call of a manager. They are
// converted to interfaces once.
type scriptArgs struct {
	ttl       time.Duration // the value of ttlMS
	ttlMS     any
	receivers any
	times     any // arguments that only contended locks need
}

func newNode(rdb redis.UniversalClient, cfg Config) *node {
	n := &node{rdb: rdb, obedient: obeysContext(rdb)}
	switch c := rdb.(type) {
	case *redis.ClusterClient:
		// A pipeline of a cluster is as slow as its slowest node, so calls do not share one.
		n.cluster = c
	case *redis.Client:
		n.gather = &gatherer{node: n}
	}
	// In a cluster PUBLISH counts the receivers of one node only.
	n.args = newScriptArgs(cfg, n.cluster == nil)
	return n
}

func newScriptArgs(cfg Config, trustReceivers bool) scriptArgs {
	// Two and a half keep-alive intervals, so that one may be late without harm.
	alive := cfg.Liveness*2 + cfg.Liveness/2
	a := scriptArgs{
		ttl:       cfg.TTL,
		ttlMS:     cfg.TTL.Milliseconds(),
		receivers: "",
		times: fmt.Sprintf("%d %d %d %d", alive.Milliseconds(), cfg.ClaimTTL.Milliseconds(),
			cfg.Grace.Milliseconds(), max(queueLife, 4*alive).Milliseconds()),
	}
	if trustReceivers {
		a.receivers = "r"
	}
	return a
}

// ms returns a TTL as a script argument.
func (a *scriptArgs) ms(ttl time.Duration) any {
	if ttl == a.ttl {
		return a.ttlMS
	}
	return ttl.Milliseconds()
}

func index(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (n *node) queues() bool { return true }

func (n *node) bounded() bool { return n.obedient }

// obeysContext reports whether the client ends a call with its context. By default
// go-redis does not, and a call continues up to the client's timeouts and retries.
func obeysContext(rdb redis.UniversalClient) bool {
	switch c := rdb.(type) {
	case *redis.Client:
		return c.Options().ContextTimeoutEnabled
	case *redis.ClusterClient:
		return c.Options().ContextTimeoutEnabled
	default:
		return false
	}
}

// call is one call in a run of calls.lua.
type call struct {
	keys  *keys
	what  string
	token string
	text  string // metadata of an acquire, queue entry of a release
	ttl   any    // milliseconds
}

const (
	callTry     = "t"
	callWait    = "w"
	callRelease = "d"
)

// call runs a call, together with other calls if there are many.
func (n *node) call(ctx context.Context, c call) (reply any, err error) {
	if n.gather != nil {
		reply, err = n.gather.run(ctx, c)
	} else {
		reply, err = n.runCall(ctx, c)
	}
	if failure, ok := reply.(error); ok && err == nil {
		err = failure
	}
	return reply, err
}

func (n *node) runCall(ctx context.Context, c call) (any, error) {
	replies, err := n.runCalls(ctx, []call{c})
	if err != nil {
		return nil, err
	}
	return replies[0], nil
}

// runCalls runs calls in one run of calls.lua and returns their replies.
func (n *node) runCalls(ctx context.Context, calls []call) ([]any, error) {
	keys, args := n.arguments(calls)
	return repliesOf(callsScript.Run(ctx, n.rdb, keys, args...), len(calls))
}

// arguments returns the arguments of calls.lua.
func (n *node) arguments(calls []call) (keys []string, args []any) {
	keys = make([]string, 0, len(calls[0].keys)*len(calls))
	args = make([]any, 2, 2+4*len(calls))
	args[0], args[1] = n.args.receivers, n.args.times
	for i := range calls {
		c := &calls[i]
		keys = append(keys, c.keys[:]...)
		args = append(args, c.what, c.token, c.text, c.ttl)
	}
	return keys, args
}

// callError is the error of Redis for one call of a run.
type callError string

func (e callError) Error() string { return string(e) }

// RedisError makes it a [redis.Error].
func (callError) RedisError() {}

// repliesOf returns the replies to n calls. That of a call which failed is a callError.
func repliesOf(cmd *redis.Cmd, n int) ([]any, error) {
	replies, err := cmd.Slice()
	if err == nil && len(replies) != n {
		err = fmt.Errorf("calls script: %d values in its reply, want %d", len(replies), n)
	}
	for i, r := range replies {
		if list, ok := r.([]any); ok && len(list) == 1 {
			if text, ok := list[0].(string); ok {
				replies[i] = callError(text)
			}
		}
	}
	return replies, err
}

func (n *node) acquire(ctx context.Context, a *attempt) (r reply, err error) {
	c := call{&a.keys, callTry, a.token, a.settings.meta, n.args.ms(a.settings.ttl)}
	if a.member != "" {
		c.what = callWait
	}
	err = n.repeated(ctx, func() error {
		v, err := n.call(ctx, c)
		if err == nil {
			r, err = granted(v)
		}
		return err
	})
	return r, err
}

// granted reads the reply to an acquire, see calls.lua.
func granted(v any) (reply, error) {
	if fence, ok := v.(string); ok {
		us, err := strconv.ParseInt(fence, 10, 64)
		return reply{held: true, fence: us, nowUS: us}, err
	}
	list, ok := v.([]any)
	if !ok || len(list) != 4 {
		return reply{}, fmt.Errorf("acquire: reply %T with %d values, want 4", v, len(list))
	}
	var vals [4]int64
	for i := range vals {
		if vals[i], ok = list[i].(int64); !ok {
			return reply{}, fmt.Errorf("acquire: %T in its reply", list[i])
		}
	}
	switch vals[0] {
	case 1:
		return reply{held: true, fence: vals[1], nowUS: vals[3]}, nil
	case 0:
		return reply{expires: time.Duration(vals[1]) * time.Millisecond, repaired: vals[2] == 1, nowUS: vals[3]}, nil
	default:
		return reply{}, ErrForeignKey
	}
}

// repeated runs an idempotent script and repeats it once if the connection failed. It keeps
// retrying while a cluster moves the slot or elects a master.
func (n *node) repeated(ctx context.Context, run func() error) error {
	for lost, pause := false, time.Millisecond; ; {
		err := run()
		switch {
		case err == nil || ctx.Err() != nil:
			return err
		case unknown(err) && !lost:
			lost = true
		case !n.moving(err) || !wait(ctx, pause):
			return err
		default:
			pause = min(2*pause, 50*time.Millisecond)
		}
	}
}

// moving reports whether the error is temporary because a cluster moves slots or elects a
// master.
func (n *node) moving(err error) bool {
	if n.cluster == nil || err == nil {
		return false
	}
	for _, prefix := range []string{"TRYAGAIN", "CLUSTERDOWN", "MOVED", "ASK", "READONLY", "MASTERDOWN"} {
		if redis.HasErrorPrefix(err, prefix) {
			return true
		}
	}
	return false
}

// wait pauses for d. It returns false if ctx ended first.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// release repeats the script if the connection failed. Whether the first run released the
// lock is then unknown, so "not held" counts as released.
func (n *node) release(ctx context.Context, k *keys, token, member string) (held, handed bool, err error) {
	runs, result := 0, int64(0)
	err = n.repeated(ctx, func() error {
		runs++
		v, err := n.call(ctx, call{k, callRelease, token, member, 0})
		if err != nil {
			return err
		}
		var ok bool
		if result, ok = v.(int64); !ok {
			return fmt.Errorf("release: %T in its reply", v)
		}
		return nil
	})
	if err != nil {
		return false, false, err
	}
	return result > 0 || runs > 1, result == 2, nil
}

func (n *node) extend(ctx context.Context, h *holding, ttl time.Duration) extension {
	var e extension
	e.err = n.repeated(ctx, func() error {
		e = extended(extendScript.Run(ctx, n.rdb, h.keys[:keyWaiters], h.value, n.args.ms(ttl)))
		return e.err
	})
	return e
}

// extended reads the reply of extend.lua and keep.lua.
func extended(cmd *redis.Cmd) extension {
	v, err := cmd.Result()
	if err != nil {
		return extension{err: err}
	}
	said, ok := v.(int64)
	if !ok {
		return extension{err: fmt.Errorf("extend script: %T in its reply", v)}
	}
	return extension{held: said == 1, absent: said == -1}
}

func (n *node) extendAll(ctx context.Context, locks []*holding, ttl time.Duration) []extension {
	results := make([]extension, len(locks))
	call := func(pipe redis.Scripter, run scriptCall, i int) *redis.Cmd {
		h := locks[i]
		return run(extendScript, ctx, pipe, h.keys[:keyWaiters], h.value, n.args.ms(ttl))
	}
	if n.cluster == nil {
		return n.pipelined(ctx, n.rdb.Pipeline(), everyOne(len(locks)), results, call)
	}
	// Each master gets its own concurrent call. In one pipeline for all of them, the client
	// drops the replies of healthy masters when a call to one that is down times out.
	groups := make(map[string][]int)
	for i, h := range locks {
		client, err := n.cluster.MasterForKey(ctx, h.keys[keyLock])
		if err != nil {
			results[i] = extension{err: err}
			continue
		}
		addr := client.Options().Addr
		groups[addr] = append(groups[addr], i)
	}
	var all sync.WaitGroup
	for _, group := range groups {
		all.Go(func() { n.pipelined(ctx, n.rdb.Pipeline(), group, results, call) })
	}
	all.Wait()
	return results
}

func everyOne(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// pipelined extends the chosen locks in one round trip and stores the outcomes in results,
// which it returns.
func (n *node) pipelined(ctx context.Context, pipe redis.Pipeliner, chosen []int, results []extension, call func(redis.Scripter, scriptCall, int) *redis.Cmd) []extension {
	cmds := runTogether(ctx, pipe, len(chosen), func(pipe redis.Scripter, run scriptCall, j int) *redis.Cmd { return call(pipe, run, chosen[j]) })
	for j, i := range chosen {
		results[i] = extended(cmds[j])
	}
	return results
}

// scriptCall is EvalSha or Eval of a script.
type scriptCall func(*redis.Script, context.Context, redis.Scripter, []string, ...any) *redis.Cmd

// runTogether runs n scripts in one round trip, and repeats those that Redis does not
// know in a second one: a pipeline does not fall back from EVALSHA to EVAL.
func runTogether(ctx context.Context, pipe redis.Pipeliner, n int, call func(redis.Scripter, scriptCall, int) *redis.Cmd) []*redis.Cmd {
	cmds := make([]*redis.Cmd, n)
	missing := make([]int, n)
	for i := range missing {
		missing[i] = i
	}
	for _, run := range []scriptCall{(*redis.Script).EvalSha, (*redis.Script).Eval} {
		for _, i := range missing {
			cmds[i] = call(pipe, run, i)
		}
		// err is the first error of the commands. A command that was not sent has no
		// error of its own.
		_, err := pipe.Exec(ctx)
		var unknown []int
		for _, i := range missing {
			if err != nil && cmds[i].Err() == nil && cmds[i].Val() == nil {
				cmds[i].SetErr(err)
			}
			if redis.HasErrorPrefix(cmds[i].Err(), "NOSCRIPT") {
				unknown = append(unknown, i)
			}
		}
		if missing = unknown; len(missing) == 0 {
			break
		}
	}
	return cmds
}
