package redistest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// moveBatch is the number of keys moved at once. It is small, so that even the keys of a
	// small slot are on both nodes for a while.
	moveBatch = 10
	// moveLimit bounds the transfer of one batch, which blocks both servers.
	moveLimit = 5 * time.Second
)

// SlotOf returns the slot of a key, 0 to 16383; the cluster computes it.
func (s *ClusterServers) SlotOf(ctx context.Context, key string) (slot int, err error) {
	err = s.direct(func(nodes []*redis.Client) error {
		n, err := firstOf(nodes, func(rdb *redis.Client) (int64, error) { return rdb.ClusterKeySlot(ctx, key).Result() })
		slot = int(n)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("redistest: slot of %q: %w", key, err)
	}
	return slot, nil
}

// Owner returns the master that serves a slot.
func (s *ClusterServers) Owner(ctx context.Context, slot int) (owner *Server, err error) {
	err = s.direct(func(nodes []*redis.Client) error {
		i, err := firstOf(nodes, func(rdb *redis.Client) (int, error) { return s.ownerSeenBy(ctx, rdb, slot) })
		if err == nil {
			owner = s.nodes[i]
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("redistest: owner of slot %d: %w", slot, err)
	}
	return owner, nil
}

// MoveSlot moves a slot with its keys from its owner to the next master in the order of Addrs
// while the cluster serves, and returns once every node agrees.
//
// between, if not nil, is called when both masters know of the move but no key has moved: from
// then on the owner answers ASK for keys it does not hold, and TRYAGAIN if it only holds some
// of a command's keys. After an error the slot may be left half moved.
func (s *ClusterServers) MoveSlot(ctx context.Context, slot int, between func()) error {
	err := s.direct(func(nodes []*redis.Client) error {
		from, err := firstOf(nodes, func(rdb *redis.Client) (int, error) { return s.ownerSeenBy(ctx, rdb, slot) })
		if err != nil {
			return err
		}
		to := (from + 1) % len(nodes)
		order := []*redis.Client{nodes[to], nodes[from]}
		for i, rdb := range nodes {
			if i != to && i != from {
				order = append(order, rdb)
			}
		}
		if err := moveSlot(ctx, slot, order, s.nodes[to], between); err != nil {
			return err
		}
		return s.agree(ctx, slot, to, nodes)
	})
	if err != nil {
		return fmt.Errorf("redistest: move slot %d: %w", slot, err)
	}
	return nil
}

// MoveSlot moves a slot with its keys from one master to another while the cluster serves. others
// are the other masters. between is as in ClusterServers.MoveSlot. After an error the slot may be
// left half moved.
func MoveSlot(ctx context.Context, slot int, from, to *Server, others []*Server, between func()) error {
	var order []*redis.Client
	for _, s := range append([]*Server{to, from}, others...) {
		order = append(order, redis.NewClient(Options(s.Addr())))
	}
	err := moveSlot(ctx, slot, order, to, between)
	for _, rdb := range order {
		err = errors.Join(err, rdb.Close())
	}
	if err != nil {
		return fmt.Errorf("redistest: move slot %d: %w", slot, err)
	}
	return nil
}

// moveSlot moves a slot to the first of the masters from the second one.
func moveSlot(ctx context.Context, slot int, masters []*redis.Client, to *Server, between func()) error {
	if err := openSlot(ctx, slot, masters[1], masters[0]); err != nil {
		return err
	}
	if between != nil {
		between()
	}
	if err := moveKeys(ctx, slot, masters[1], to); err != nil {
		return err
	}
	return closeSlot(ctx, slot, masters)
}

// openSlot announces the move to both masters, first to the receiving one, because it would
// refuse the redirected commands until it knows of the move.
func openSlot(ctx context.Context, slot int, from, to *redis.Client) error {
	fromID, err := from.ClusterMyID(ctx).Result()
	if err != nil {
		return err
	}
	toID, err := to.ClusterMyID(ctx).Result()
	if err != nil {
		return err
	}
	if err := to.Do(ctx, "cluster", "setslot", slot, "importing", fromID).Err(); err != nil {
		return fmt.Errorf("importing: %w", err)
	}
	if err := from.Do(ctx, "cluster", "setslot", slot, "migrating", toID).Err(); err != nil {
		return fmt.Errorf("migrating: %w", err)
	}
	return nil
}

// moveKeys moves the keys of a slot. It terminates under load, because a master that gives a
// slot away creates no new keys in it.
func moveKeys(ctx context.Context, slot int, from *redis.Client, to *Server) error {
	for {
		keys, err := from.ClusterGetKeysInSlot(ctx, slot, moveBatch).Result()
		if err != nil {
			return fmt.Errorf("list keys: %w", err)
		}
		if len(keys) == 0 {
			return nil
		}
		args := []any{"migrate", "127.0.0.1", to.Port(), "", 0, moveLimit.Milliseconds(), "keys"}
		for _, key := range keys {
			args = append(args, key)
		}
		if err := from.Do(ctx, args...).Err(); err != nil {
			return fmt.Errorf("migrate %d keys: %w", len(keys), err)
		}
	}
}

// closeSlot announces the new owner, the first of the masters, to every master, first to the new
// owner itself: until it knows, the old one would redirect clients to a master that redirects
// them back.
func closeSlot(ctx context.Context, slot int, masters []*redis.Client) error {
	toID, err := masters[0].ClusterMyID(ctx).Result()
	if err != nil {
		return err
	}
	for _, rdb := range masters {
		if err := rdb.Do(ctx, "cluster", "setslot", slot, "node", toID).Err(); err != nil {
			return fmt.Errorf("new owner: %w", err)
		}
	}
	return nil
}

// agree waits until every node sees the new owner of a slot.
func (s *ClusterServers) agree(ctx context.Context, slot, to int, nodes []*redis.Client) error {
	tick := time.NewTicker(clusterPoll)
	defer tick.Stop()
	for _, rdb := range nodes {
		for {
			i, err := s.ownerSeenBy(ctx, rdb, slot)
			if err == nil && i == to {
				break
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return errors.Join(fmt.Errorf("%s does not see the new owner: %w", rdb.Options().Addr, ctx.Err()), err)
			}
		}
	}
	return nil
}

// ownerSeenBy returns the index of the master that serves a slot according to one node.
func (s *ClusterServers) ownerSeenBy(ctx context.Context, rdb *redis.Client, slot int) (int, error) {
	shards, err := rdb.ClusterShards(ctx).Result()
	if err != nil {
		return 0, err
	}
	for _, shard := range shards {
		for _, r := range shard.Slots {
			if int64(slot) < r.Start || int64(slot) > r.End || len(shard.Nodes) == 0 {
				continue
			}
			addr := net.JoinHostPort("127.0.0.1", strconv.FormatInt(shard.Nodes[0].Port, 10))
			for i, n := range s.nodes {
				if n.Addr() == addr {
					return i, nil
				}
			}
			return 0, fmt.Errorf("%s is a stranger", addr)
		}
	}
	return 0, errors.New("no node serves the slot")
}

// firstOf queries the nodes in turn, because some may be down.
func firstOf[T any](nodes []*redis.Client, ask func(*redis.Client) (T, error)) (T, error) {
	var zero T
	var failed error
	for _, rdb := range nodes {
		v, err := ask(rdb)
		if err == nil {
			return v, nil
		}
		failed = errors.Join(failed, err)
	}
	return zero, failed
}
