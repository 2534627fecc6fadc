package inventory

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/pause"
)

// Invalidate drops the sales of items for which the database has refused an order that
// Redis accepted: the next purchase loads them again, from the database. It needs no
// Inventory, so workers can call it. A missing sale sells nothing, so a sale may be
// dropped at any time; one that is being loaded is then loaded once more. A stopped sale
// stays: see [Stop].
func Invalidate(ctx context.Context, rdb redis.UniversalClient, partitions int, items []string) error {
	k := keys{partitions}
	for _, item := range items {
		if err := dropScript.Eval(ctx, rdb, []string{k.sale(item)}, stoppedMark).Err(); err != nil {
			return fmt.Errorf("inventory: drop sale of %s: %w", item, err)
		}
	}
	return nil
}

// Unload makes an item's next purchase load its sale again, as Invalidate does, but does not
// interrupt a load that is under way. It is for a state of the database that is old
// enough for such a load to have read it.
func Unload(ctx context.Context, rdb redis.UniversalClient, partitions int, item string) error {
	if err := unloadScript.Eval(ctx, rdb, []string{keys{partitions}.sale(item)}, stoppedMark).Err(); err != nil {
		return fmt.Errorf("inventory: unload sale of %s: %w", item, err)
	}
	return nil
}

// drop drops the item's sale. If Redis does not answer, it is dropped later.
func (v *Inventory) drop(ctx context.Context, item string) {
	if err := untilKnown(ctx, func() error { return v.invalidate(ctx, item) }); err != nil {
		v.cfg.OnError(err)
		v.invalidateLater(item)
	}
}

func (v *Inventory) invalidate(ctx context.Context, item string) error {
	return Invalidate(ctx, v.rdb, v.cfg.Partitions, []string{item})
}

// invalidateLater drops the item's sale in the background, as soon as Redis answers.
func (v *Inventory) invalidateLater(item string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return
	}
	v.background.Go(func() {
		for v.invalidate(v.life, item) != nil && pause.For(v.life, resendMax) {
		}
	})
}
