package inventory

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/lock"
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

// voidScript drops a sale that is not of an epoch, or is being built, maybe under
// another, unless it is stopped.
const voidScript = `local sale = redis.call('HMGET', KEYS[1], 'epoch', 'changing')
if sale[1] ~= ARGV[1] and sale[2] ~= ARGV[2] then redis.call('DEL', KEYS[1]) end return 1`

// Void drops the sales of these items that are not of this epoch, so that nothing
// is sold by them. A stopped sale stays, since it sells nothing: see [Stop]. Void may
// be called at any time. Errors: [ErrUnavailable].
func (v *Inventory) Void(ctx context.Context, epoch int64, items []string) error {
	_, err := v.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, item := range items {
			p.Eval(ctx, voidScript, []string{v.keys.sale(item)}, epoch, stoppedMark)
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

// Reload loads an item's sale unless it is loaded under the present epoch, or has
// ended. While it does, purchases of the item answer ErrRebuilding once their patience is
// spent. Errors: [ErrUnavailable], [ErrStopped], [ErrRebuilding] when the load failed.
func (v *Inventory) Reload(ctx context.Context, item string) error {
	v.refresh(ctx)
	return v.holding(ctx, item, func(held context.Context, l *lock.Lock) error {
		_, err := v.loadedLeft(held, item)
		if errors.Is(err, redis.Nil) {
			err = v.load(held, l, item)
		}
		if errors.Is(err, ErrEnded) {
			return nil
		}
		return loadError(err)
	})
}

// Warm loads an item's sale unless it is loaded, and waits for it. A load that takes longer
// than ctx goes on without the caller, who gets ErrRebuilding; further calls join it.
// Errors: those of Reload.
func (v *Inventory) Warm(ctx context.Context, item string) error {
	left, err := v.Left(ctx, []string{item})
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	case left[0] >= 0:
		return nil
	}
	loaded := v.warming.DoChan(item, func() (any, error) { return nil, v.warm(item) })
	select {
	case r := <-loaded:
		return r.Err
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrRebuilding, context.Cause(ctx))
	}
}

// warmLimit bounds a load by Warm. A sale of a hundred million orders takes half of it.
const warmLimit = time.Hour

// warm is Reload for as long as the Inventory lives.
func (v *Inventory) warm(item string) error {
	v.mu.Lock()
	if v.closed {
		v.mu.Unlock()
		return fmt.Errorf("%w: closed", ErrUnavailable)
	}
	v.background.Add(1)
	v.mu.Unlock()
	defer v.background.Done()
	ctx, cancel := context.WithTimeout(v.life, warmLimit)
	defer cancel()
	return v.Reload(ctx, item)
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

// beingLoadedLimit bounds the look at a sale whose lock was not available.
const beingLoadedLimit = 200 * time.Millisecond

// beingLoaded reports whether an item has no sale, so that who holds its lock is
// loading it, most likely.
func (v *Inventory) beingLoaded(item string) bool {
	ctx, cancel := context.WithTimeout(v.life, beingLoadedLimit)
	defer cancel()
	_, err := v.loadedLeft(ctx, item)
	return errors.Is(err, redis.Nil)
}
