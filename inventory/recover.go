package inventory

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// State is how the Redis of one partition stands.
type State struct {
	// Epoch is the build of all state that the data belongs to; 0 when it does not
	// say, which is when Redis is new or has lost its data.
	Epoch int64
	// RunID names this run of the server; '' when it does not tell.
	RunID string
	// Uptime is how long the server has run; negative when it does not tell.
	Uptime time.Duration
	// Built is the last epoch under which somebody has loaded all sales to the end.
	Built int64
}

// States reads how the Redis of each partition stands. Errors: [ErrUnavailable].
func (v *Inventory) States(ctx context.Context) ([]State, error) {
	states := make([]State, v.cfg.Partitions)
	for p := range states {
		found, err := stateScript.Run(ctx, v.rdb, []string{epochKey(p), builtKey(p)}).StringSlice()
		if err != nil || len(found) != 4 {
			return nil, fmt.Errorf("read state of partition %d: %w: %w", p, ErrUnavailable, err)
		}
		states[p].RunID = found[1]
		// What is no number says nothing either.
		if n, err := strconv.ParseInt(found[0], 10, 64); err == nil {
			states[p].Epoch = n
		}
		states[p].Uptime = -1
		if n, err := strconv.ParseInt(found[2], 10, 64); err == nil && n >= 0 {
			states[p].Uptime = time.Duration(n) * time.Second
		}
		if n, err := strconv.ParseInt(found[3], 10, 64); err == nil {
			states[p].Built = n
		}
	}
	return states, nil
}

// RewriteLogs lets every server that writes a log write it again from its memory.
// Redis 7.0 truncates a log whose end was cut inside a script's effects at the last
// whole command, and goes on writing behind a transaction that is open; the next
// start would carry out half of that script. A server that does not know the
// command, or is doing it, is left alone. Errors: [ErrUnavailable].
func (v *Inventory) RewriteLogs(ctx context.Context) error {
	rewrite := func(ctx context.Context, c redis.Cmdable) error {
		err := c.BgRewriteAOF(ctx).Err()
		if refused := redis.Error(nil); errors.As(err, &refused) {
			return nil
		}
		return err
	}
	var err error
	switch rdb := v.rdb.(type) {
	case *redis.ClusterClient:
		err = rdb.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error { return rewrite(ctx, c) })
	default:
		err = rewrite(ctx, rdb)
	}
	if err != nil {
		return fmt.Errorf("rewrite Redis's log: %w: %w", ErrUnavailable, err)
	}
	return nil
}

// Mark is how far a sale in Redis has come.
type Mark struct {
	// Loaded says that there is a sale under the epoch asked for, whole and not
	// being changed; without it the rest is 0.
	Loaded   bool
	Sequence int64 // see [Sale]
	Version  int64 // the item's
}

// Marks reads how far the sales of these items have come, in their order.
// Errors: [ErrUnavailable].
func (v *Inventory) Marks(ctx context.Context, epoch int64, items []string) ([]Mark, error) {
	cmds := make([]*redis.SliceCmd, len(items))
	_, err := v.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, item := range items {
			cmds[i] = p.HMGet(ctx, v.keys.sale(item), "epoch", "left", "changing", "sequence", "version")
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read marks of %d sales: %w: %w", len(items), ErrUnavailable, err)
	}
	marks := make([]Mark, len(items))
	for i, c := range cmds {
		found := c.Val()
		if len(found) != 5 || found[1] == nil || found[2] != nil || found[0] != strconv.FormatInt(epoch, 10) {
			continue
		}
		sequence, _ := found[3].(string)
		version, _ := found[4].(string)
		version, _, _ = strings.Cut(version, ".")
		m := &marks[i]
		var err1, err2 error
		m.Sequence, err1 = strconv.ParseInt(sequence, 10, 64)
		m.Version, err2 = strconv.ParseInt(version, 10, 64)
		m.Loaded = err1 == nil && err2 == nil // a damaged sale is for the reconciliation
	}
	return marks, nil
}

// Void drops the sales of these items that are not of this epoch, so that nothing
// is sold by them. A stopped sale stays, since it sells nothing: see [Stop]. Void may
// be called at any time. Errors: [ErrUnavailable].
func (v *Inventory) Void(ctx context.Context, epoch int64, items []string) error {
	_, err := v.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, item := range items {
			voidScript.Eval(ctx, p, []string{v.keys.sale(item)}, epoch, stoppedMark)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("drop sales: %w: %w", ErrUnavailable, err)
	}
	return nil
}

// Declare says that the data in Redis is of this epoch. Sales of another must
// have been dropped before, and this process sells under it from now on.
// Errors: [ErrUnavailable].
func (v *Inventory) Declare(ctx context.Context, epoch int64) error {
	v.Adopt(epoch)
	// It may have been lost with the rest, and doctor goes by it.
	if err := CheckPartitions(ctx, v.rdb, v.cfg.Partitions); err != nil {
		return fmt.Errorf("declare epoch %d: %w: %w", epoch, ErrUnavailable, err)
	}
	for p := range v.cfg.Partitions {
		if err := v.rdb.Set(ctx, epochKey(p), epoch, 0).Err(); err != nil {
			return fmt.Errorf("declare epoch %d: %w: %w", epoch, ErrUnavailable, err)
		}
	}
	return nil
}

// Built says that the sales of this epoch were loaded, as far as they can be.
// Errors: [ErrUnavailable].
func (v *Inventory) Built(ctx context.Context, epoch int64) error {
	for p := range v.cfg.Partitions {
		if err := v.rdb.Set(ctx, builtKey(p), epoch, 0).Err(); err != nil {
			return fmt.Errorf("note that the sales of epoch %d are loaded: %w: %w", epoch, ErrUnavailable, err)
		}
	}
	return nil
}

// Adopt makes this process sell under an epoch that another has declared, unless
// it knows of a later one.
func (v *Inventory) Adopt(epoch int64) {
	for {
		was := v.epoch.Load()
		if epoch <= was || v.epoch.CompareAndSwap(was, epoch) {
			return
		}
	}
}

// refresh asks for the present epoch, and reports whether it is another than the
// one this process sold under.
func (v *Inventory) refresh(ctx context.Context) (changed bool) {
	epoch, err := v.source.Epoch(ctx)
	if err != nil {
		v.cfg.OnError(fmt.Errorf("ask for the epoch: %w", err))
		return false
	}
	return v.epoch.Swap(epoch) != epoch
}

// floor is the highest sequence of an item's sale that this process was told of.
func (v *Inventory) floor(item string) int64 {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if s := v.sellers[item]; s != nil {
		return s.floor.Load()
	}
	return v.floors[item]
}
