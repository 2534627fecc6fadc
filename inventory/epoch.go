package inventory

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/plural"
)

// State is the state of the Redis of one partition.
type State struct {
	// Epoch is the epoch that the data belongs to; 0 when Redis is new or has lost its
	// data.
	Epoch int64
	// RunID identifies this run of the server; '' when the server does not report it.
	RunID string
	// Uptime is how long the server has run; negative when the server does not report it.
	Uptime time.Duration
	// Built is the last epoch for which a process has loaded all sales completely.
	Built int64
}

// States reads the state of each partition's Redis. Errors: [ErrLineage], [ErrUnavailable].
func (v *Inventory) States(ctx context.Context) ([]State, error) {
	states := make([]State, v.cfg.Partitions)
	for p := range states {
		keys := []string{v.keys.epoch(p), v.keys.built(p)}
		if p == 0 && v.cfg.Lineage != "" {
			keys = append(keys, lineageKey)
		}
		found, err := stateScript.Run(ctx, v.rdb, keys).StringSlice()
		if err != nil || len(found) != 5 {
			return nil, fmt.Errorf("read state of partition %d: %w: %w", p, ErrUnavailable, err)
		}
		if err := compareLineage(found[4], v.cfg.Lineage); err != nil {
			return nil, err
		}
		states[p].RunID = found[1]
		// Values that are not numbers count as missing.
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

// RewriteLogs makes every server with an append-only file rewrite it from memory. If that
// file ends inside a script's effects, Redis 7.0 truncates it at the last whole command,
// which leaves a transaction open, and appends to it; the next start would execute half of
// that script. It ignores a server that does not know the command, or that is rewriting
// already. Errors: [ErrUnavailable].
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

// Progress is the progress of a sale in Redis.
type Progress struct {
	// Loaded says that there is a whole sale under the given epoch that is not being
	// changed; otherwise the rest is 0.
	Loaded   bool
	Sequence int64 // see [Sale]
	Version  int64 // the item's
}

// Progress reads the progress of these items' sales, in their order. A sale whose key has another type is not loaded.
// Errors: [ErrUnavailable].
func (v *Inventory) Progress(ctx context.Context, epoch int64, items []string) ([]Progress, error) {
	cmds := make([]*redis.SliceCmd, len(items))
	err := pipelined(ctx, v.rdb, func(p redis.Pipeliner) {
		for i, item := range items {
			cmds[i] = p.HMGet(ctx, v.keys.sale(item), "epoch", "left", "changing", "sequence", "version", "per_user_limit")
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read marks of %s: %w", plural.Count(len(items), "sale"), err)
	}
	list := make([]Progress, len(items))
	for i, c := range cmds {
		found, err := c.Result()
		if err != nil && !otherType(err) {
			return nil, fmt.Errorf("read marks of %s: %w: %w", plural.Count(len(items), "sale"), ErrUnavailable, err)
		}
		if len(found) != 6 || found[1] == nil || found[2] != nil || found[5] == nil || found[0] != strconv.FormatInt(epoch, 10) {
			continue
		}
		sequence, _ := found[3].(string)
		version, _ := found[4].(string)
		version, _, _ = strings.Cut(version, ".")
		p := &list[i]
		var err1, err2 error
		p.Sequence, err1 = strconv.ParseInt(sequence, 10, 64)
		p.Version, err2 = strconv.ParseInt(version, 10, 64)
		p.Loaded = err1 == nil && err2 == nil // a damaged sale is for the reconciliation
	}
	return list, nil
}

// Void drops the sales of these items that belong to another epoch, so that nothing is
// sold from them. A stopped sale stays, since it sells nothing: see [Stop]. So does a sale whose key has
// another type. Void may be called at any time. Errors: [ErrUnavailable].
func (v *Inventory) Void(ctx context.Context, epoch int64, items []string) error {
	cmds := make([]*redis.Cmd, len(items))
	err := pipelined(ctx, v.rdb, func(p redis.Pipeliner) {
		for i, item := range items {
			cmds[i] = voidScript.Eval(ctx, p, []string{v.keys.sale(item)}, epoch, stoppedMark)
		}
	})
	if err != nil {
		return fmt.Errorf("drop sales: %w", err)
	}
	for _, c := range cmds {
		if err := c.Err(); err != nil && !otherType(err) {
			return fmt.Errorf("drop sales: %w: %w", ErrUnavailable, err)
		}
	}
	return nil
}

// Declare records that the data in Redis belongs to this epoch. Sales of other epochs must
// have been dropped before. This process sells under the epoch from now on.
// Errors: [ErrLineage], [ErrUnavailable].
func (v *Inventory) Declare(ctx context.Context, epoch int64) error {
	v.Adopt(epoch)
	// The lineage and the number of partitions may have been lost with the rest, and later starts
	// and the doctor command read them.
	if v.cfg.Lineage != "" {
		if err := CheckLineage(ctx, v.rdb, v.cfg.Lineage); errors.Is(err, ErrLineage) {
			return err
		} else if err != nil {
			return fmt.Errorf("declare epoch %d: %w: %w", epoch, ErrUnavailable, err)
		}
	}
	if err := CheckPartitions(ctx, v.rdb, v.cfg.Partitions); err != nil {
		return fmt.Errorf("declare epoch %d: %w: %w", epoch, ErrUnavailable, err)
	}
	for p := range v.cfg.Partitions {
		if err := v.rdb.Set(ctx, v.keys.epoch(p), epoch, 0).Err(); err != nil {
			return fmt.Errorf("declare epoch %d: %w: %w", epoch, ErrUnavailable, err)
		}
	}
	return nil
}

// Built records that all sales of this epoch that can be loaded were loaded.
// Errors: [ErrUnavailable].
func (v *Inventory) Built(ctx context.Context, epoch int64) error {
	for p := range v.cfg.Partitions {
		if err := v.rdb.Set(ctx, v.keys.built(p), epoch, 0).Err(); err != nil {
			return fmt.Errorf("note that the sales of epoch %d are loaded: %w: %w", epoch, ErrUnavailable, err)
		}
	}
	return nil
}

// Adopt makes this process sell under an epoch that another process has declared, unless
// it has a later one.
func (v *Inventory) Adopt(epoch int64) {
	for {
		was := v.epoch.Load()
		if epoch <= was || v.epoch.CompareAndSwap(was, epoch) {
			return
		}
	}
}

// refresh reads the current epoch, and reports whether it differs from the one under which
// this process has sold.
func (v *Inventory) refresh(ctx context.Context) (changed bool) {
	epoch, err := v.source.Epoch(ctx)
	if err != nil {
		v.cfg.OnError(fmt.Errorf("ask for the epoch: %w", err))
		return false
	}
	return v.epoch.Swap(epoch) != epoch
}
