package inventory

import (
	"context"
	_ "embed" // for the scripts
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"

	"flashsale/lock"
	"flashsale/queue"
)

var (
	//go:embed lua/purchase.lua
	purchaseLua string
	//go:embed lua/load.lua
	loadLua string
	//go:embed lua/claim.lua
	claimLua string
	//go:embed lua/fragment_version.lua
	versionLua string
	//go:embed lua/fragment_buyer.lua
	buyerLua string
	//go:embed lua/release.lua
	releaseLua string
	//go:embed lua/suspend.lua
	suspendLua string
	//go:embed lua/adjust.lua
	adjustLua string
	//go:embed lua/rename.lua
	renameLua string
	//go:embed lua/state.lua
	stateLua string
	//go:embed lua/free.lua
	freeLua string
	//go:embed lua/stop.lua
	stopLua string
	//go:embed lua/resume.lua
	resumeLua string
	//go:embed lua/drop.lua
	dropLua string
	//go:embed lua/unload.lua
	unloadLua string
	//go:embed lua/void.lua
	voidLua string
)

// The scripts include the lock's guard and the queue's enqueue, so that the check, the
// sale and the task are one atomic step.
var (
	purchaseScript = redis.NewScript(lock.GuardLua + "\n" + lock.InstantLua + "\n" + queue.EnqueueLua + "\n" + buyerLua + "\n" + purchaseLua)
	loadScript     = redis.NewScript(lock.GuardLua + "\n" + buyerLua + "\n" + loadLua)
	claimScript    = redis.NewScript(claimLua)
	releaseScript  = redis.NewScript(versionLua + "\n" + buyerLua + "\n" + releaseLua)
	suspendScript  = redis.NewScript(lock.GuardLua + "\n" + suspendLua)
	renameScript   = redis.NewScript(lock.GuardLua + "\n" + versionLua + "\n" + buyerLua + "\n" + renameLua)
	stateScript    = redis.NewScript(stateLua)
	freeScript     = redis.NewScript(freeLua)
	stopScript     = redis.NewScript(stopLua)
	resumeScript   = redis.NewScript(resumeLua)
	dropScript     = redis.NewScript(dropLua)
	unloadScript   = redis.NewScript(unloadLua)
	voidScript     = redis.NewScript(voidLua)
	adjustScript   = redis.NewScript(versionLua + "\n" + adjustLua)
)

// pipelined sends commands of several sales in one call. Each has its own result; one that fails, for example because of
// a key of another type, does not affect the others. The error says that none was sent: go-redis leaves the
// commands without an error if Redis refuses the connection, for example its password.
func pipelined(ctx context.Context, rdb redis.UniversalClient, add func(p redis.Pipeliner)) error {
	cmds, err := rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		add(p)
		return nil
	})
	if err == nil || slices.ContainsFunc(cmds, func(c redis.Cmder) bool { return c.Err() != nil }) {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

// otherType reports whether a command failed because another program has overwritten a sale's key with a value of
// another type. That concerns only this sale: every script fails on it, so nothing is sold from it.
func otherType(err error) bool { return redis.HasErrorPrefix(err, "WRONGTYPE") }
