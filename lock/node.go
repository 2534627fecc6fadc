package lock

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// queueLife is the minimum TTL of an abandoned queue.
	queueLife = time.Minute
	// reasonLife is the TTL of the reason of a forced release, for a holder that learns of
	// it only at its next renewal.
	reasonLife = 10 * time.Minute
)

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
	ttl          time.Duration // the value of ttlMS
	ttlMS        any
	rare         any // arguments that only contended locks need
	claim        any
	reason       any
	acquireFlags [2]any // indexed by whether the caller waits
	releaseFlags any
}

func newNode(rdb redis.UniversalClient, cfg Config) *node {
	n := &node{rdb: rdb, obedient: obeysContext(rdb)}
	switch c := rdb.(type) {
	case *redis.ClusterClient:
		// A pipeline of a cluster is as slow as its slowest node, so calls do not share one.
		n.cluster = c
	case *redis.Client:
		n.gather = &gatherer{rdb: c}
	}
	// In a cluster PUBLISH counts the receivers of one node only.
	n.args = newScriptArgs(cfg, n.cluster == nil)
	return n
}

func newScriptArgs(cfg Config, trustReceivers bool) scriptArgs {
	// Two and a half keep-alive intervals, so that one may be late without harm.
	alive := cfg.Liveness*2 + cfg.Liveness/2
	a := scriptArgs{
		ttl:   cfg.TTL,
		ttlMS: cfg.TTL.Milliseconds(),
		claim: cfg.ClaimTTL.Milliseconds(),
		rare: fmt.Sprintf("%d %d %d %d", alive.Milliseconds(), cfg.ClaimTTL.Milliseconds(),
			cfg.Grace.Milliseconds(), max(queueLife, 4*alive).Milliseconds()),
		reason: reasonLife.Milliseconds(),
	}
	receivers := ""
	if trustReceivers {
		receivers = "r"
	}
	a.acquireFlags = [2]any{receivers, "w" + receivers}
	a.releaseFlags = receivers
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

func (n *node) run(ctx context.Context, script *redis.Script, keys []string, args ...any) *redis.Cmd {
	if n.gather != nil {
		return n.gather.run(ctx, script, keys, args...)
	}
	return script.Run(ctx, n.rdb, keys, args...)
}

func (n *node) acquire(ctx context.Context, a *attempt) (r reply, err error) {
	err = n.repeated(ctx, func() error {
		cmd := n.run(ctx, acquireScript, a.keys.list(), a.token, a.settings.meta,
			n.args.acquireFlags[index(a.member != "")], n.args.ms(a.settings.ttl), n.args.rare)
		r, err = granted(cmd)
		return err
	})
	return r, err
}

// granted reads the reply of acquire.lua.
func granted(cmd *redis.Cmd) (reply, error) {
	v, err := cmd.Result()
	if err != nil {
		return reply{}, err
	}
	if fence, ok := v.(string); ok {
		us, err := strconv.ParseInt(fence, 10, 64)
		return reply{held: true, fence: us, nowUS: us}, err
	}
	vals, err := cmd.Int64Slice()
	if err != nil {
		return reply{}, err
	}
	if len(vals) != 4 {
		return reply{}, fmt.Errorf("acquire script: %d values in its reply, want 4", len(vals))
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
	err = n.repeated(ctx, func() (err error) {
		runs++
		result, err = n.run(ctx, releaseScript, k.list(), token, member, n.args.releaseFlags, n.args.claim).Int64()
		return err
	})
	if err != nil {
		return false, false, err
	}
	return result > 0 || runs > 1, result == 2, nil
}

func (n *node) extend(ctx context.Context, h *holding, ttl time.Duration) extension {
	var e extension
	e.err = n.repeated(ctx, func() error {
		e = extended(n.run(ctx, extendScript, h.keys[:keyWaiters], h.value, n.args.ms(ttl)))
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

func (n *node) reasons(ctx context.Context, locks []*holding) []string {
	pipe := n.rdb.Pipeline()
	cmds := make([]*redis.StringCmd, len(locks))
	for i, h := range locks {
		cmds[i] = pipe.Get(ctx, h.keys[keyForced])
	}
	// The error is the first of its commands, which is redis.Nil in most cases.
	_, _ = pipe.Exec(ctx) //nolint:errcheck // see above
	reasons := make([]string, len(locks))
	for i, h := range locks {
		if token, reason, ok := strings.Cut(cmds[i].Val(), " "); ok && token == h.token {
			reasons[i] = reason
		}
	}
	return reasons
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

func (n *node) forceRelease(ctx context.Context, k *keys, reason string) (held bool, from string, handed bool, err error) {
	vals, err := forceReleaseScript.Run(ctx, n.rdb, k[:], reason, n.args.releaseFlags, n.args.claim, n.args.reason).Slice()
	if err != nil {
		return false, "", false, err
	}
	if len(vals) != 3 {
		return false, "", false, fmt.Errorf("force_release script: %d values in its reply, want 3", len(vals))
	}
	value, ok := vals[1].(string)
	switch {
	case !ok:
		return false, "", false, fmt.Errorf("force_release script: %T in its reply", vals[1])
	case vals[0] == int64(1):
		holder, _ := parseHolder(value, true)
		return true, holder.Token, vals[2] == int64(1), nil
	case vals[0] == int64(0):
		return false, "", false, nil
	default:
		return false, "", false, ErrForeignKey
	}
}
