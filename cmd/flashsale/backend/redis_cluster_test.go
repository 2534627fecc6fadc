package backend

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/breaker"
	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// opened returns the service's client of an engine.
func opened(t *testing.T, setting string) redis.UniversalClient {
	t.Helper()
	rdb, closers, err := OpenRedis(setting, breaker.New(breaker.Config{}), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, end := range closers {
			if err := end(); err != nil {
				t.Error(err)
			}
		}
	})
	return rdb
}

// A start waits while a cluster has lost a node, and not if no node answers.
func TestCheckRedis_ClusterWithoutNode(t *testing.T) {
	t.Parallel()
	nodes := redistest.OwnCluster(t).Nodes()
	setting := "cluster+redis://" + nodes[1].Addr()
	kill := func(n *redistest.Server) {
		if err := n.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	kill(nodes[0])
	var causes []string
	err := CheckRedis(await.Context(t), setting, opened(t, setting), func(cause string) {
		causes = append(causes, cause)
		if err := nodes[0].Start(); err != nil {
			t.Error(err)
		}
	})
	if err != nil || len(causes) != 1 {
		t.Fatalf("%v after waiting for %q; want one cause", err, causes)
	}
	// The breaker may open before the call ends.
	if c := causes[0]; !strings.Contains(c, "connection refused ("+nodes[0].Addr()) && c != "a node of the cluster does not answer ("+nodes[0].Addr()+")" {
		t.Errorf("it waited for %q, want the cause to name %s", c, nodes[0].Addr())
	}

	for _, n := range nodes {
		kill(n)
	}
	err = CheckRedis(await.Context(t), setting, opened(t, setting), func(cause string) { t.Errorf("it waits for %q", cause) })
	if err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("without a node: %v, want a refused connection", err)
	}
}
