package lock

import (
	_ "embed"

	"github.com/redis/go-redis/v9"
)

// GuardLua is a fragment for scripts that may change data only if their caller holds
// the lock. Prepended to a script, it defines
//
//	lock_guard(lock_key, waiters_key, value)
//
// which returns the number of waiters, or -1 if the lock is not held with that value.
// The keys come from [Manager.GuardKeys], the value from [Lock.GuardValue].
//
//go:embed lua/guard.lua
var GuardLua string

// InstantLua is a fragment for scripts that hold a free lock only while they run, which
// saves the calls to acquire and release it. Prepended to a script, it defines
//
//	lock_instant(lock_key, waiters_key, fence_key)
//	lock_instant_end(fence_key, fence)
//
// The first returns the fencing token of this holding; nil if the lock is held or waited for:
// then try again later, or acquire it with [Manager.Acquire]; false if it must be acquired,
// because the clock of Redis was set back. A script that changes data calls the second.
// The keys come from [Manager.InstantKeys].
//
//go:embed lua/instant.lua
var InstantLua string

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
	//go:embed lua/inspect.lua
	inspectLua string
	//go:embed lua/keep.lua
	keepLua string

	acquireScript = redis.NewScript(acquireLua + handoverLua + queueLua)
	releaseScript = redis.NewScript(releaseLua + handoverLua + passOnLua)
	extendScript  = redis.NewScript(extendLua)
	inspectScript = redis.NewScript(handoverLua + inspectLua)
	keepScript    = redis.NewScript(keepLua)
)
