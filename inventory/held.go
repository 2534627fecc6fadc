package inventory

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Held returns how many units of an item a buyer holds: the count that the purchase script compares
// with the limit. It is 0 if the sale is not loaded. Errors: [ErrUnavailable].
func (v *Inventory) Held(ctx context.Context, item, buyer string) (int64, error) {
	value, err := v.rdb.HGet(ctx, v.keys.buyers(item), buyer).Result()
	if errors.Is(err, redis.Nil) {
		return 0, nil
	}
	units, _, _ := strings.Cut(value, " ") // see fragment_buyer.lua
	n, perr := strconv.ParseInt(units, 10, 64)
	if err = errors.Join(err, perr); err != nil {
		return 0, fmt.Errorf("read units of a buyer of %s: %w: %w", item, ErrUnavailable, err)
	}
	return n, nil
}
