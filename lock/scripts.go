package lock

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// GuardLua is a fragment for scripts that must change nothing unless their
// caller holds the lock. Put before a script it defines
//
//	lock_guard(lock_key, waiters_key, value)
//
// which returns how many wait for the lock, or -1 when the lock is not held
// with that value. The keys come from [Manager.GuardKeys], the value from
// [Lock.GuardValue].
//
//go:embed lua/guard.lua
var GuardLua string

var (
	//go:embed lua/handover.lua
	handoverLua string
	//go:embed lua/acquire.lua
	acquireLua string
	//go:embed lua/queue.lua
	queueLua string
	//go:embed lua/release.lua
	releaseLua string
	//go:embed lua/pass_on.lua
	passOnLua string
	//go:embed lua/extend.lua
	extendLua string

	acquireScript = redis.NewScript(acquireLua + handoverLua + queueLua)
	releaseScript = redis.NewScript(releaseLua + handoverLua + passOnLua)
	extendScript  = redis.NewScript(extendLua)
)

const (
	// fenceLife is how long the last fencing token is kept. After that the
	// clock of Redis alone keeps tokens rising.
	fenceLife = 24 * time.Hour
	// queueLife is how long an abandoned queue is kept at least.
	queueLife = time.Minute
)

// scriptArgs are the arguments that are the same in every call of a manager,
// boxed once.
type scriptArgs struct {
	ttl, alive, claim, grace, fence, queue, receivers any
}

func newScriptArgs(cfg Config, trustReceivers bool) scriptArgs {
	// Two missed signs of life and a half: one may be late without harm.
	alive := cfg.Liveness*2 + cfg.Liveness/2
	receivers := "0"
	if trustReceivers {
		receivers = "1"
	}
	return scriptArgs{
		ttl:       cfg.TTL.Milliseconds(),
		alive:     alive.Milliseconds(),
		claim:     cfg.ClaimTTL.Milliseconds(),
		grace:     cfg.Grace.Milliseconds(),
		fence:     fenceLife.Milliseconds(),
		queue:     max(queueLife, 4*alive).Milliseconds(),
		receivers: receivers,
	}
}

// reply is what acquire.lua answered.
type reply struct {
	held     bool
	fence    int64
	lapse    time.Duration // while not held: until the lock may lapse
	repaired bool
	nowUS    int64 // the clock of Redis when the script ran, microseconds
}

// runAcquire runs acquire.lua, and once more when the connection failed, which
// with the same token changes nothing that the first run did. An empty member
// does not wait.
func (m *Manager) runAcquire(ctx context.Context, k []string, token, member string) (reply, error) {
	a := &m.args
	var vals []int64
	var err error
	for range 2 {
		vals, err = acquireScript.Run(ctx, m.rdb, k, token, member,
			a.ttl, a.alive, a.claim, a.grace, a.fence, a.queue, a.receivers).Int64Slice()
		if !unknown(err) || ctx.Err() != nil {
			break
		}
	}
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
		return reply{lapse: time.Duration(vals[1]) * time.Millisecond, repaired: vals[2] == 1, nowUS: vals[3]}, nil
	default:
		return reply{}, ErrForeignKey
	}
}

// runRelease runs release.lua, and once more when the connection failed. Then
// it cannot be told whether the first run released, so "not held" counts as
// released.
func (m *Manager) runRelease(ctx context.Context, k []string, token, member string) (held, handed bool, err error) {
	a := &m.args
	for try := range 2 {
		var vals []int64
		vals, err = releaseScript.Run(ctx, m.rdb, k, token, member, a.claim, a.fence, a.receivers).Int64Slice()
		if err == nil && len(vals) != 2 {
			return false, false, fmt.Errorf("release script: %d values in its reply, want 2", len(vals))
		}
		if err == nil {
			return vals[0] == 1 || try > 0, vals[1] == 1, nil
		}
		if !unknown(err) || ctx.Err() != nil {
			break
		}
	}
	return false, false, err
}

// runExtend runs extend.lua and says whether the lock was held.
func (m *Manager) runExtend(ctx context.Context, l *Lock, ttl time.Duration) (bool, error) {
	n, err := extendScript.Run(ctx, m.rdb, l.keys[:1], l.value, ttl.Milliseconds()).Int64()
	return n == 1, err
}

// extendAll runs extend.lua for many locks in one round trip per node. The
// replies come in the order of the locks.
func (m *Manager) extendAll(ctx context.Context, locks []*Lock, ttl time.Duration) []*redis.Cmd {
	cmds := make([]*redis.Cmd, len(locks))
	send := func(want func(i int) bool, call func(redis.Scripter, *Lock) *redis.Cmd) {
		pipe := m.rdb.Pipeline()
		for i, l := range locks {
			if want(i) {
				cmds[i] = call(pipe, l)
			}
		}
		if pipe.Len() == 0 {
			return
		}
		// The error of the pipeline is the first one of its commands, and each
		// command's own is looked at.
		if _, err := pipe.Exec(ctx); err != nil {
			return
		}
	}
	send(func(int) bool { return true }, func(p redis.Scripter, l *Lock) *redis.Cmd {
		return extendScript.EvalSha(ctx, p, l.keys[:1], l.value, ttl.Milliseconds())
	})
	// A pipeline does not fall back from EVALSHA by itself.
	noScript := func(i int) bool { return redis.HasErrorPrefix(cmds[i].Err(), "NOSCRIPT") }
	send(noScript, func(p redis.Scripter, l *Lock) *redis.Cmd {
		return extendScript.Eval(ctx, p, l.keys[:1], l.value, ttl.Milliseconds())
	})
	return cmds
}

// unknown says whether err leaves open if Redis ran the script: it is neither
// Redis's own answer nor one of ours.
func unknown(err error) bool {
	if err == nil {
		return false
	}
	var answer redis.Error
	return !errors.As(err, &answer) && !errors.Is(err, ErrForeignKey) &&
		!errors.Is(err, ErrClosed) && !errors.Is(err, ErrTaken)
}
