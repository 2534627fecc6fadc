//go:build chaos && unix

package chaos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/redistest"
)

const (
	// clusterMasters is the number of masters, each of which has one replica.
	clusterMasters = 3
	// clusterPartitions puts the partitions of the three items on three masters.
	clusterPartitions = 9
	clusterSlots      = 16384
	// nodeTimeout is the time in milliseconds after which a silent node counts as failed.
	nodeTimeout = "1000"
	// electsWithin is how long a replica may take to replace its master before the suite
	// promotes it.
	electsWithin = 5 * time.Second
)

// cluster is a Redis Cluster of masters with one replica each.
type cluster struct {
	t     *testing.T
	nodes []*node
}

// node is one server of a cluster.
type node struct {
	*redistest.Server
	rdb *redis.Client // to this node; it follows no redirects
}

// openCluster starts a cluster and returns once all of it serves.
func openCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{t: t}
	for range 2 * clusterMasters {
		c.start()
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	masters, replicas := c.nodes[:clusterMasters], c.nodes[clusterMasters:]
	for i, n := range masters {
		c.do(ctx, n, "cluster", "set-config-epoch", i+1)
		c.do(ctx, n, "cluster", "addslotsrange", clusterSlots*i/clusterMasters, clusterSlots*(i+1)/clusterMasters-1)
	}
	for _, n := range c.nodes[1:] {
		c.do(ctx, n, "cluster", "meet", "127.0.0.1", c.nodes[0].Port(), c.nodes[0].Bus())
	}
	c.agree(ctx)
	for i, n := range replicas {
		c.do(ctx, n, "cluster", "replicate", masters[i].rdb.ClusterMyID(ctx).Val())
	}
	for i, n := range replicas {
		c.eventually(ctx, n.Addr()+" follows its master", func() bool { return c.follows(ctx, n, masters[i]) })
	}
	return c
}

// start adds a server that does not belong to the cluster yet.
func (c *cluster) start() *node {
	c.t.Helper()
	s := redistest.Node(c.t, "--cluster-node-timeout", nodeTimeout, "--cluster-replica-validity-factor", "0")
	n := &node{Server: s, rdb: redis.NewClient(redistest.Options(s.Addr()))}
	c.t.Cleanup(func() {
		if err := n.rdb.Close(); err != nil {
			c.t.Errorf("close redis client: %v", err)
		}
	})
	c.nodes = append(c.nodes, n)
	return n
}

// do sends a command to a node; it must succeed.
func (c *cluster) do(ctx context.Context, n *node, args ...any) {
	c.t.Helper()
	if err := n.rdb.Do(ctx, args...).Err(); err != nil {
		c.t.Fatalf("%v to %s: %v", args, n.Addr(), err)
	}
}

// eventually waits for a condition, and fails the test if it does not become true in time.
func (c *cluster) eventually(ctx context.Context, what string, ok func() bool) {
	c.t.Helper()
	if err := new(run).await(ctx, patience, ok); err != nil {
		c.t.Fatalf("%s: %v", what, err)
	}
}

// agree waits until every running node knows all nodes and serves.
func (c *cluster) agree(ctx context.Context) {
	c.t.Helper()
	for _, n := range c.running() {
		c.eventually(ctx, n.Addr()+" knows the cluster", func() bool {
			info, err := n.rdb.ClusterInfo(ctx).Result()
			return err == nil && strings.Contains(info, "cluster_state:ok\r\n") &&
				strings.Contains(info, fmt.Sprintf("cluster_known_nodes:%d\r\n", len(c.nodes)))
		})
	}
}

// running are the nodes that were not killed.
func (c *cluster) running() []*node {
	return slices.DeleteFunc(slices.Clone(c.nodes), func(n *node) bool { return n.Pid() == 0 })
}

// client is a client of the cluster, which the shop closes.
func (c *cluster) client() *redis.ClusterClient {
	o := redistest.ClusterOptions(c.addrs()...)
	// The suite looks at the new master soon after a failover.
	o.ClusterStateReloadInterval = 500 * time.Millisecond
	return redis.NewClusterClient(o)
}

func (c *cluster) addrs() (all []string) {
	for _, n := range c.nodes {
		all = append(all, n.Addr())
	}
	return all
}

// url is the service's setting: three of the nodes.
func (c *cluster) url() string {
	addrs := c.addrs()[:clusterMasters]
	return "cluster+redis://" + addrs[0] + "?addr=" + strings.Join(addrs[1:], "&addr=")
}

// isMaster reports whether a node serves as a master.
func (c *cluster) isMaster(ctx context.Context, n *node) bool {
	info, err := n.rdb.InfoMap(ctx, "replication").Result()
	return err == nil && info["Replication"]["role"] == "master"
}

// follows reports whether a node is a replica of a master and has copied its data.
func (c *cluster) follows(ctx context.Context, n, master *node) bool {
	info, err := n.rdb.InfoMap(ctx, "replication").Result()
	of := info["Replication"]
	return err == nil && of["role"] == "slave" && of["master_link_status"] == "up" && of["master_port"] == strconv.Itoa(master.Port())
}

// replica returns the replica of a master, and waits until it follows.
func (c *cluster) replica(ctx context.Context, master *node) (found *node) {
	c.t.Helper()
	c.eventually(ctx, "a replica follows "+master.Addr(), func() bool {
		i := slices.IndexFunc(c.running(), func(n *node) bool { return c.follows(ctx, n, master) })
		if i >= 0 {
			found = c.running()[i]
		}
		return i >= 0
	})
	return found
}

// owner returns the master that serves a key.
func (c *cluster) owner(ctx context.Context, key string) (found *node) {
	c.t.Helper()
	c.eventually(ctx, "a master serves "+key, func() bool {
		i := slices.IndexFunc(c.running(), func(n *node) bool {
			// A replica redirects the command as well.
			return n.rdb.Exists(ctx, key).Err() == nil && c.isMaster(ctx, n)
		})
		if i >= 0 {
			found = c.running()[i]
		}
		return i >= 0
	})
	return found
}

// masters are the nodes that serve slots.
func (c *cluster) masters(ctx context.Context) []*node {
	return slices.DeleteFunc(c.running(), func(n *node) bool { return !c.isMaster(ctx, n) })
}

// promoted waits until a replica has replaced its dead master, and promotes it if the others do
// not elect it. It reports whether they did.
func (c *cluster) promoted(ctx context.Context, n *node) (elected bool) {
	c.t.Helper()
	err := new(run).await(ctx, electsWithin, func() bool { return c.isMaster(ctx, n) })
	if errors.Is(err, errNever) {
		c.do(ctx, n, "cluster", "failover", "takeover")
		c.eventually(ctx, n.Addr()+" is a master", func() bool { return c.isMaster(ctx, n) })
	}
	return err == nil
}

// how says how a replica was promoted: whether the masters elected it.
var how = map[bool]string{true: "promoted by election", false: "promoted by TAKEOVER"}

// errorsOf counts the commands that the running nodes have answered with an error of this name.
func (c *cluster) errorsOf(ctx context.Context, name string) (n int) {
	c.t.Helper()
	for _, node := range c.running() {
		info, err := node.rdb.InfoMap(ctx, "errorstats").Result()
		if err != nil {
			c.t.Fatalf("errors of %s: %v", node.Addr(), err)
		}
		v := info["Errorstats"]["errorstat_"+name]
		if v == "" {
			continue
		}
		one, err := strconv.Atoi(strings.TrimPrefix(v, "count="))
		if err != nil {
			c.t.Fatalf("errors of %s: %v", node.Addr(), err)
		}
		n += one
	}
	return n
}

// expectCluster makes the checks of every fault of a cluster.
func expectCluster(ctx context.Context, r *run) {
	noDeadLetters(ctx, r)
	n := r.shop.cluster.errorsOf(ctx, "CROSSSLOT")
	for _, m := range slices.Concat(r.shop.apis, r.shop.workers) {
		n += strings.Count(m.allLogs(), "CROSSSLOT")
	}
	if n > 0 {
		r.failf("CROSSSLOT %d times", n)
	}
}
