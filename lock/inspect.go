package lock

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Info is the state of a resource's lock at one moment.
type Info struct {
	Resource string
	// Held reports whether the lock's key exists. Holder is empty for a key that another
	// program wrote.
	Held   bool
	Holder Holder
	// Fence is the fencing token of the holder, or the last known one if the lock is
	// free.
	Fence int64
	// Remaining is the TTL of the key; -1 for a key without TTL, which the next acquire
	// repairs; 0 if the lock is free.
	Remaining time.Duration
	// Waiters is the number of waiters, including those that died in the last few seconds.
	// Queue lists the first 100 in their order.
	Waiters int64
	Queue   []Waiter
	// Nodes is the number of quorum nodes on which the holder has the lock; 1 on a single
	// Redis, 0 if the lock is free.
	Nodes int
}

// Holder identifies a holder of a lock or a waiter.
type Holder struct {
	Token    string // of this holding or wait
	Manager  string // id of the manager; it listens on lock:wake:<Manager>, or polls if the id begins with "~"
	Metadata string // Config.Metadata of its manager
}

// Waiter is a client that waits for a lock.
type Waiter struct {
	Holder
	// Alive is false if its keep-alive is overdue; it will be skipped.
	Alive bool
}

// inspectWaiters is the maximum number of waiters that Inspect lists.
const inspectWaiters = 100

// Inspect returns the state of a lock without changing it. The errors are ErrForeignKey,
// ErrInvalid, ErrNoQuorum if too few nodes answer, or those of Redis.
func (m *Manager) Inspect(ctx context.Context, resource string) (Info, error) {
	k, err := keysOf(m.cfg.Prefix, resource)
	if err == nil {
		var info Info
		if info, err = m.store.inspect(ctx, &k, inspectWaiters); err == nil {
			info.Resource = resource
			return info, nil
		}
	}
	return Info{}, opError("inspect", resource, err)
}

// parseHolder reads "<manager>.<random>[:<fence>][:<metadata>]". It returns an empty
// Holder for a value that another program wrote.
func parseHolder(text string, withFence bool) (h Holder, fence int64) {
	token, rest, _ := strings.Cut(text, ":")
	manager, _, ok := strings.Cut(token, ".")
	if !ok {
		return Holder{}, 0
	}
	if withFence {
		var digits string
		digits, rest, _ = strings.Cut(rest, ":")
		var err error
		if fence, err = strconv.ParseInt(digits, 10, 64); err != nil {
			return Holder{}, 0
		}
	}
	return Holder{Token: token, Manager: manager, Metadata: rest}, fence
}

func (n *node) inspect(ctx context.Context, k *keys, waiters int) (Info, error) {
	vals, err := inspectScript.Run(ctx, n.rdb, k[:], waiters).Slice()
	if err != nil {
		return Info{}, err
	}
	if len(vals) == 1 {
		return Info{}, ErrForeignKey
	}
	if len(vals) < 4 {
		return Info{}, fmt.Errorf("inspect script: %d values in its reply, want 4", len(vals))
	}
	value, ok1 := vals[0].(string)
	left, ok2 := vals[1].(int64)
	last, ok3 := vals[2].(string)
	waiting, ok4 := vals[3].(int64)
	if !ok1 || !ok2 || !ok3 || !ok4 {
		return Info{}, fmt.Errorf("inspect script: reply %T %T %T %T", vals[0], vals[1], vals[2], vals[3])
	}
	info := Info{Waiters: waiting}
	if value != "" {
		info.Held, info.Nodes = true, 1
		info.Holder, info.Fence = parseHolder(value, true)
		info.Remaining = max(time.Duration(left)*time.Millisecond, -1)
	} else if fence, err := strconv.ParseInt(strings.TrimSuffix(last, "w"), 10, 64); err == nil {
		info.Fence = fence
	}
	for i := 4; i+1 < len(vals); i += 2 {
		if entry, ok := vals[i].(string); ok {
			holder, _ := parseHolder(entry, false)
			info.Queue = append(info.Queue, Waiter{holder, vals[i+1] == int64(1)})
		}
	}
	return info, nil
}
