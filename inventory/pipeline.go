package inventory

import (
	"context"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"
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
