package redistest

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/freeport"
	"flashsale/internal/testing/redisserver"
)

const (
	// masters is the smallest number of masters of which a majority remains after one fails.
	masters = 3
	// slotCount is the number of slots of every Redis Cluster.
	slotCount = 16384
	// nodeTimeout is the time after which a silent node counts as failed.
	nodeTimeout = 2 * time.Second
	// formsWithin bounds the wait until the nodes form a cluster. A new master refuses requests
	// for two seconds in any case.
	formsWithin = 60 * time.Second
	clusterPoll = 20 * time.Millisecond
)

// ClusterServers is a Redis Cluster of three masters on loopback, without replicas. A restarted
// node has lost its data (no AOF).
type ClusterServers struct {
	nodes     []*Server
	authority *Authority // nil: without TLS
}

var sharedCluster struct {
	once    sync.Once
	servers *ClusterServers
	err     error
}

// Cluster returns a client of the Redis Cluster that this test binary shares. Its tests use
// separate key prefixes; a test that disturbs a cluster uses OwnCluster. If redis-server is not
// installed, the test is skipped, or fails with CI=true.
func Cluster(t testing.TB) *redis.ClusterClient {
	t.Helper()
	needServer(t)
	sharedCluster.once.Do(func() { sharedCluster.servers, sharedCluster.err = startCluster(nil) })
	if sharedCluster.err != nil {
		t.Fatal(sharedCluster.err)
	}
	return sharedCluster.servers.Client(t)
}

// OwnCluster starts a Redis Cluster for this test, which may disturb it. It takes a few
// seconds.
func OwnCluster(t testing.TB) *ClusterServers {
	t.Helper()
	return ownCluster(t, nil)
}

// OwnClusterTLS is OwnCluster with TLS only: for clients, between the nodes and for replication.
func OwnClusterTLS(t testing.TB, a *Authority) *ClusterServers {
	t.Helper()
	return ownCluster(t, a)
}

func ownCluster(t testing.TB, a *Authority) *ClusterServers {
	t.Helper()
	needServer(t)
	s, err := startCluster(a)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.stop)
	return s
}

// Addrs are the host:port of the masters, in the order of their initial slots.
func (s *ClusterServers) Addrs() []string {
	addrs := make([]string, len(s.nodes))
	for i, n := range s.nodes {
		addrs[i] = n.Addr()
	}
	return addrs
}

// Nodes are the masters in the order of Addrs. Tests may pause, kill and restart them.
// again.
func (s *ClusterServers) Nodes() []*Server { return append([]*Server(nil), s.nodes...) }

// Client returns a client of the cluster with ClusterOptions but a longer reply timeout. It is
// closed at the end of the test.
func (s *ClusterServers) Client(t testing.TB) *redis.ClusterClient {
	t.Helper()
	if s.authority == nil {
		return clusterClient(t, s.Addrs(), nil, false)
	}
	return clusterClient(t, s.Addrs(), s.authority.Config, false)
}

// NodeOptions are Options for the node with an address. Its client follows no redirects.
func (s *ClusterServers) NodeOptions(addr string) *redis.Options {
	o := Options(addr)
	if s.authority != nil {
		o.TLSConfig = s.authority.Config
	}
	return o
}

// ProxiedClient is like Client, with a proxy in front of each node, in the order of Addrs. The
// nodes communicate directly.
func (s *ClusterServers) ProxiedClient(t testing.TB) (*redis.ClusterClient, []*Proxy) {
	t.Helper()
	proxies, at := make([]*Proxy, len(s.nodes)), map[string]string{}
	for i, addr := range s.Addrs() {
		proxies[i] = NewProxy(t, addr)
		at[addr] = proxies[i].Addr()
	}
	// The slot map and redirects contain the nodes' own addresses, so the dialer replaces them
	// by the proxies'.
	o := ClusterOptions(s.Addrs()...)
	dial := o.Dialer
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		return dial(ctx, network, cmp.Or(at[addr], addr))
	}
	rdb := redis.NewClusterClient(o)
	closeAtEnd(t, rdb)
	return rdb, proxies
}

func clusterClient(t testing.TB, addrs []string, trust *tls.Config, deadlines bool) *redis.ClusterClient {
	t.Helper()
	o := ClusterOptions(addrs...)
	if trust != nil {
		o.TLSConfig, o.Dialer = trust, nil
	}
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.ContextTimeoutEnabled = replyWithin, replyWithin, replyWithin, deadlines
	rdb := redis.NewClusterClient(o)
	closeAtEnd(t, rdb)
	return rdb
}

// startCluster starts the masters, with TLS if there is an authority, distributes the slots among them, and returns once all of
// them serve.
func startCluster(a *Authority) (*ClusterServers, error) {
	s := &ClusterServers{nodes: make([]*Server, masters), authority: a}
	errs := make([]error, masters)
	var wg sync.WaitGroup
	for i := range s.nodes {
		wg.Go(func() { s.nodes[i], errs[i] = startNode(a, "--appendonly", "no") })
	}
	wg.Wait()
	err := errors.Join(errs...)
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), formsWithin)
		defer cancel()
		err = s.form(ctx)
	}
	if err != nil {
		s.stop()
		return nil, fmt.Errorf("redistest: start cluster: %w", err)
	}
	return s, nil
}

// Node starts a redis-server for this test that can join a Redis Cluster and does not belong to
// one yet. args are appended to its command line.
func Node(t testing.TB, args ...string) *Server {
	t.Helper()
	needServer(t)
	s, err := startNode(nil, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.stop)
	return s
}

// Bus is the port of the cluster bus, 0 outside a cluster.
func (s *Server) Bus() int { return s.bus }

func startNode(a *Authority, args ...string) (*Server, error) {
	if a != nil {
		args = append([]string{"--tls-cluster", "yes"}, args...)
	}
	for range redisserver.Tries {
		bus, err := freeport.Port()
		if err != nil {
			return nil, err
		}
		s, err := startTLS(a, append([]string{
			"--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf",
			"--cluster-port", strconv.Itoa(bus), "--cluster-announce-ip", "127.0.0.1",
			"--cluster-node-timeout", strconv.FormatInt(nodeTimeout.Milliseconds(), 10),
		}, args...)...)
		if err == nil {
			s.bus = bus
			return s, nil
		}
		if !errors.Is(err, redisserver.ErrEnded) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%w, %d times", redisserver.ErrEnded, redisserver.Tries)
}

// form makes the servers one cluster.
func (s *ClusterServers) form(ctx context.Context) error {
	return s.direct(func(nodes []*redis.Client) error {
		for i, rdb := range nodes {
			if err := s.join(ctx, i, rdb); err != nil {
				return fmt.Errorf("node %d: %w", i, err)
			}
		}
		for _, rdb := range nodes {
			if err := serves(ctx, rdb); err != nil {
				return err
			}
		}
		return nil
	})
}

// join assigns node i its share of the slots and introduces it to the previous nodes.
func (s *ClusterServers) join(ctx context.Context, i int, rdb *redis.Client) error {
	// Each node gets a distinct epoch at the start. Otherwise they would first have to resolve
	// the conflict.
	if err := rdb.Do(ctx, "cluster", "set-config-epoch", i+1).Err(); err != nil {
		return fmt.Errorf("set epoch: %w", err)
	}
	first, last := slotCount*i/masters, slotCount*(i+1)/masters-1
	if err := rdb.ClusterAddSlotsRange(ctx, first, last).Err(); err != nil {
		return fmt.Errorf("add slots: %w", err)
	}
	for _, n := range s.nodes[:i] {
		if err := rdb.Do(ctx, "cluster", "meet", "127.0.0.1", n.Port(), n.bus).Err(); err != nil {
			return fmt.Errorf("meet: %w", err)
		}
	}
	return nil
}

// direct calls fn with clients of the nodes, in the order of Addrs, that follow no redirects.
func (s *ClusterServers) direct(fn func(nodes []*redis.Client) error) error {
	clients := make([]*redis.Client, len(s.nodes))
	for i, n := range s.nodes {
		clients[i] = redis.NewClient(s.NodeOptions(n.Addr()))
	}
	err := fn(clients)
	for _, rdb := range clients {
		err = errors.Join(err, rdb.Close())
	}
	return err
}

// serves waits until a node knows all masters and all slots and serves requests.
func serves(ctx context.Context, rdb *redis.Client) error {
	tick := time.NewTicker(clusterPoll)
	defer tick.Stop()
	for {
		info, err := rdb.ClusterInfo(ctx).Result()
		if err == nil && infoField(info, "cluster_state") == "ok" &&
			infoField(info, "cluster_size") == strconv.Itoa(masters) &&
			infoField(info, "cluster_known_nodes") == strconv.Itoa(masters) &&
			infoField(info, "cluster_slots_ok") == strconv.Itoa(slotCount) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("%s does not serve: %w\n%s", rdb.Options().Addr, ctx.Err(), info), err)
		}
	}
}

func (s *ClusterServers) stop() {
	for _, n := range s.nodes {
		if n != nil {
			n.stop()
		}
	}
}
