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
	contended string               // settings that only contended locks need, see acquire.lua
}

func newNode(rdb redis.UniversalClient, cfg Config) *node {
	n := &node{rdb: rdb}
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
	for lost, next := false, time.Millisecond; ; {
		err := run()
		switch {
		case err == nil || ctx.Err() != nil:
			return err
		case unknown(err) && !lost:
			lost = true
		case !n.moving(err) || !wait(ctx, next):
			return err
		default:
			next = min(2*next, 50*time.Millisecond)
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
	extendThese := func(these []int) {
		together(ctx, n.rdb.Pipeline(), these, results, extendScript, func(i int) ([]string, []any) {
			return locks[i].keys[:keyWaiters], []any{locks[i].value, ttl.Milliseconds()}
		})
	}
	if n.cluster == nil {
		extendThese(upTo(len(locks)))
		return results
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
		all.Go(func() { extendThese(group) })
	}
	all.Wait()
	return results
}

// keep runs keep.lua for locks of a quorum on this node.
func (n *node) keep(ctx context.Context, locks []*holding, ttl time.Duration, restore bool) []extension {
	results := make([]extension, len(locks))
	together(ctx, n.rdb.Pipeline(), upTo(len(locks)), results, keepScript, func(i int) ([]string, []any) {
		h := locks[i]
		return []string{h.keys[keyLock], h.keys[keyFence]},
			[]any{h.token, h.fence, h.settings.meta, ttl.Milliseconds(), restore}
	})
	return results
}

// upTo returns the indexes below n.
func upTo(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// together runs a script for the locks with these indexes in one round trip and stores their
// results. Where Redis does not know the script, it repeats them in a second one: a pipeline
// does not fall back from EVALSHA to EVAL.
func together(ctx context.Context, pipe redis.Pipeliner, these []int, results []extension, script *redis.Script, args func(i int) ([]string, []any)) {
	for _, run := range []func(context.Context, redis.Scripter, []string, ...any) *redis.Cmd{script.EvalSha, script.Eval} {
		cmds := make([]*redis.Cmd, len(these))
		for j, i := range these {
			keys, values := args(i)
			cmds[j] = run(ctx, pipe, keys, values...)
		}
		// err is the first error of the commands. A command that was not sent has no
		// error of its own.
		_, err := pipe.Exec(ctx)
		var unknown []int
		for j, cmd := range cmds {
			if err != nil && cmd.Err() == nil && cmd.Val() == nil {
				cmd.SetErr(err)
			}
			results[these[j]] = extended(cmd)
			if redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") {
				unknown = append(unknown, these[j])
			}
		}
		if these = unknown; len(these) == 0 {
			return
		}
	}
}
