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
	rdb       redis.UniversalClient
	cluster   *redis.ClusterClient // nil unless rdb is one
	obedient  bool                 // see obeysContext
	contended string               // settings that only contended locks need, see acquire.lua
}

func newNode(rdb redis.UniversalClient, cfg Config) *node {
	n := &node{rdb: rdb, obedient: obeysContext(rdb)}
	n.cluster, _ = rdb.(*redis.ClusterClient)
	// In a cluster PUBLISH counts the receivers of one node only.
	n.contended = contendedSettings(cfg, n.cluster == nil)
	return n
}

func contendedSettings(cfg Config, trustReceivers bool) string {
	reliable := ""
	if trustReceivers {
		reliable = "r"
	}
	// Two and a half keep-alive intervals, so that one may be late without harm.
	alive := cfg.Liveness*2 + cfg.Liveness/2
	return fmt.Sprintf("%s %d %d %d %d", reliable, alive.Milliseconds(), cfg.ClaimTTL.Milliseconds(),
		cfg.Grace.Milliseconds(), max(queueLife, 4*alive).Milliseconds())
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

func (n *node) acquire(ctx context.Context, a *attempt) (r reply, err error) {
	contended := n.contended
	if a.member != "" {
		contended = "w" + contended
	}
	err = n.repeated(ctx, func() error {
		r, err = granted(acquireScript.Run(ctx, n.rdb, a.keys[:], a.token, a.settings.meta, a.settings.ttl.Milliseconds(), contended))
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
	err = n.repeated(ctx, func() error {
		runs++
		result, err = releaseScript.Run(ctx, n.rdb, k[:], token, member, n.contended).Int64()
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
		e = extended(extendScript.Run(ctx, n.rdb, h.keys[:keyWaiters], h.value, ttl.Milliseconds()))
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
		return run(extendScript, ctx, pipe, h.keys[:keyWaiters], h.value, ttl.Milliseconds())
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
