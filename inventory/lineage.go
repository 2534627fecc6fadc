package inventory

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// ErrLineage means that Redis belongs to another database: it has the stock and the queued orders
// of another shop.
var ErrLineage = errors.New("inventory: this Redis belongs to another database")

// CheckLineage records the lineage of the database at the first start, and returns ErrLineage
// when Redis has that of another.
func CheckLineage(ctx context.Context, rdb redis.UniversalClient, lineage string) error {
	if err := rdb.SetNX(ctx, lineageKey, lineage, 0).Err(); err != nil {
		return fmt.Errorf("inventory: record lineage: %w", err)
	}
	return MatchLineage(ctx, rdb, lineage)
}

// MatchLineage returns ErrLineage when Redis has the lineage of another database. It records
// nothing: a Redis without a lineage is new, or has lost its data.
func MatchLineage(ctx context.Context, rdb redis.Cmdable, lineage string) error {
	have, err := rdb.Get(ctx, lineageKey).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return fmt.Errorf("inventory: read lineage: %w", err)
	}
	return compareLineage(have, lineage)
}

// compareLineage compares the recorded lineage, "" for none, with that of the database.
func compareLineage(have, lineage string) error {
	if have != "" && have != lineage {
		return fmt.Errorf("%w: lineage %s is recorded in %s, and the database has %s", ErrLineage, have, lineageKey, lineage)
	}
	return nil
}
