package server

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/pause"
	"flashsale/internal/testing/freeport"
	"flashsale/internal/testing/redisserver"
)

const (
	// Masters is the number of masters of a Cluster.
	Masters = 3
	// slots is the number of slots of every Redis Cluster.
	slots = 16384
	// formsWithin bounds the wait until the masters form a cluster.
	formsWithin = time.Minute
)

// Cluster is a Redis Cluster of three masters on loopback, without replicas. A master that was
// killed has its data once it is started again, and the others serve their slots meanwhile.
type Cluster struct {
	Masters []*redisserver.Server // in the order of their slots
	buses   []int                 // ports of the cluster bus
}

// StartCluster starts a cluster with an append-only file, and returns once all its slots are
// served. appendFsync is Redis's own setting.
func StartCluster(ctx context.Context, appendFsync string) (*Cluster, error) {
	ctx, cancel := context.WithTimeout(ctx, formsWithin)
	defer cancel()
	c := &Cluster{}
	for range Masters {
		bus, err := freeport.Port()
		if err != nil {
			return nil, errors.Join(err, c.Stop())
		}
		s, err := redisserver.Start(ctx, redisserver.Config{Args: []string{
			"--appendfsync", appendFsync, "--auto-aof-rewrite-percentage", "0",
			"--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--cluster-port", strconv.Itoa(bus),
			"--cluster-announce-ip", "127.0.0.1", "--cluster-node-timeout", "2000", "--cluster-require-full-coverage", "no",
		}})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%w (make deps installs redis-server)", err), c.Stop())
		}
		c.Masters, c.buses = append(c.Masters, s), append(c.buses, bus)
	}
	for i := range c.Masters {
		if err := c.join(ctx, i); err != nil {
			return nil, errors.Join(fmt.Errorf("form a cluster: %w", err), c.Stop())
		}
	}
	if err := c.Serves(ctx); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

// join assigns a master its share of the slots and introduces it to the previous ones.
func (c *Cluster) join(ctx context.Context, i int) (err error) {
	rdb := redis.NewClient(&redis.Options{Addr: c.Masters[i].Addr()})
	defer func() { err = errors.Join(err, rdb.Close()) }()
	// With distinct epochs the masters have no conflict to resolve first.
	if err := rdb.Do(ctx, "cluster", "set-config-epoch", i+1).Err(); err != nil {
		return err
	}
	if err := rdb.ClusterAddSlotsRange(ctx, slots*i/Masters, slots*(i+1)/Masters-1).Err(); err != nil {
		return err
	}
	for n, s := range c.Masters[:i] {
		if err := rdb.Do(ctx, "cluster", "meet", "127.0.0.1", s.Port(), c.buses[n]).Err(); err != nil {
			return err
		}
	}
	return nil
}

// Serves waits until every master knows the others and all slots are served.
func (c *Cluster) Serves(ctx context.Context) error {
	for _, s := range c.Masters {
		if err := serves(ctx, s.Addr()); err != nil {
			return fmt.Errorf("master %s does not serve: %w", s.Addr(), err)
		}
	}
	return nil
}

func serves(ctx context.Context, addr string) (err error) {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer func() { err = errors.Join(err, rdb.Close()) }()
	for {
		info, err := rdb.ClusterInfo(ctx).Result()
		if err == nil && strings.Contains(info, "cluster_state:ok\r\n") &&
			strings.Contains(info, "cluster_slots_ok:"+strconv.Itoa(slots)+"\r\n") {
			return nil
		}
		if perr := pause.OrCause(ctx, 20*time.Millisecond); perr != nil {
			return errors.Join(perr, err)
		}
	}
}

// URL is the cluster as the service's --redis.
func (c *Cluster) URL() string {
	addrs := make([]string, len(c.Masters))
	for i, s := range c.Masters {
		addrs[i] = s.Addr()
	}
	return "cluster+redis://" + addrs[0] + "?addr=" + strings.Join(addrs[1:], "&addr=")
}

// Stop ends the masters and removes their data.
func (c *Cluster) Stop() error {
	var errs []error
	for _, s := range c.Masters {
		errs = append(errs, s.Stop())
	}
	return errors.Join(errs...)
}
