package inventory

import (
	_ "embed" // for the scripts
	"fmt"

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
)

// The scripts are composed: the lock's guard and the queue's enqueue run inside
// them, so that the check, the sale and the task are one atomic step.
var (
	purchaseScript = redis.NewScript(lock.GuardLua + "\n" + queue.EnqueueLua + "\n" + purchaseLua)
	loadScript     = redis.NewScript(lock.GuardLua + "\n" + loadLua)
	claimScript    = redis.NewScript(claimLua)
	releaseScript  = redis.NewScript(versionLua + "\n" + releaseLua)
	suspendScript  = redis.NewScript(lock.GuardLua + "\n" + suspendLua)
	renameScript   = redis.NewScript(lock.GuardLua + "\n" + versionLua + "\n" + renameLua)
	stateScript    = redis.NewScript(stateLua)
	freeScript     = redis.NewScript(freeLua)
	adjustScript   = redis.NewScript(versionLua + "\n" + adjustLua)
)

// purchaseReply is what the purchase script answers.
type purchaseReply struct {
	status   string
	waiting  int64
	verdicts string
	left     int64
	version  string
	nowMS    int64
	opensMS  int64
	closesMS int64  // 0: no end
	sequence int64  // of the sale
	limit    int64  // units that one buyer may hold
	accepted int64  // how many accepted keys the sale has; -1 unless nothing is left
	more     string // accepted keys that the caller did not know
	replayed []any  // order ids, in the order of the verdicts R
}

func parsePurchaseReply(v any) (purchaseReply, error) {
	var r purchaseReply
	list, ok := v.([]any)
	if !ok || len(list) < 2 {
		return r, fmt.Errorf("inventory: purchase script answered %T", v)
	}
	var ok1, ok2 bool
	r.status, ok1 = list[0].(string)
	r.waiting, ok2 = list[1].(int64)
	if !ok1 || !ok2 {
		return r, fmt.Errorf("inventory: purchase script answered %T, %T", list[0], list[1])
	}
	if r.status != "ok" {
		return r, nil
	}
	if len(list) < 12 {
		return r, fmt.Errorf("inventory: purchase script answered %d values", len(list))
	}
	var oks [10]bool
	r.verdicts, oks[0] = list[2].(string)
	r.left, oks[1] = list[3].(int64)
	r.version, oks[2] = list[4].(string)
	r.nowMS, oks[3] = list[5].(int64)
	r.opensMS, oks[4] = list[6].(int64)
	r.closesMS, oks[5] = list[7].(int64)
	r.sequence, oks[6] = list[8].(int64)
	r.limit, oks[7] = list[9].(int64)
	r.accepted, oks[8] = list[10].(int64)
	r.more, oks[9] = list[11].(string)
	if oks != [10]bool{true, true, true, true, true, true, true, true, true, true} {
		return r, fmt.Errorf("inventory: purchase script answered %T", list[2:12])
	}
	r.replayed = list[12:]
	return r, nil
}
