package inventory

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// confirmLimit is how long the replicas have to confirm a batch. It is shorter than the client
// waits for a reply.
const confirmLimit = 500 * time.Millisecond

// confirmLife is how long a confirmKey stays after its last use.
const confirmLife = time.Minute

// scriptCall is how a script is sent: by its hash or as text.
type scriptCall func(ctx context.Context, to redis.Scripter, keys []string, args ...any) *redis.Cmd

// evaluate sends the purchase script. With Config.ConfirmReplicas the reply only counts once that
// many replicas have what was written before it; else the outcome is unknown, and the batch is
// sent again.
func (s *seller) evaluate(ctx context.Context, script scriptCall, args []any) (any, error) {
	want := s.v.cfg.ConfirmReplicas
	if want == 0 {
		return script(ctx, s.v.rdb, s.keys, args...).Result()
	}
	// WAIT has no key, so a cluster client would send it to any node, and another connection
	// might have reached another master in the meantime.
	node, cluster := s.v.rdb, (*redis.ClusterClient)(nil)
	if c, ok := s.v.rdb.(*redis.ClusterClient); ok {
		master, err := c.MasterForKey(ctx, s.lock.name)
		if err != nil {
			return nil, fmt.Errorf("find the master: %w", err)
		}
		node, cluster = master, c
	}
	pipe := node.Pipeline()
	reply := script(ctx, pipe, s.keys, args...)
	// WAIT asks for what the connection wrote, from Redis 7.2 on. The script of a repeat may write
	// nothing, while its first run was on another connection.
	pipe.Set(ctx, s.v.keys.confirm(s.partition), "", confirmLife)
	wait := pipe.Do(ctx, "wait", want, confirmLimit.Milliseconds())
	_, _ = pipe.Exec(ctx) //nolint:errcheck // each command has its error
	res, err := reply.Result()
	if err != nil {
		if cluster != nil && (redis.HasErrorPrefix(err, "MOVED") || redis.HasErrorPrefix(err, "READONLY")) {
			cluster.ReloadState(ctx)
		}
		return nil, err
	}
	confirmed, err := wait.Int()
	if err != nil {
		// Not wrapped: a reply of Redis would mean that the script has not run.
		return nil, errors.New("wait for replicas: " + err.Error())
	}
	if confirmed < want {
		return nil, fmt.Errorf("confirmed by %d replicas within %s, want %d", confirmed, confirmLimit, want)
	}
	return res, nil
}
