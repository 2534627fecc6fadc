package redistest

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redisserver"
)

// SentinelMaster is the name under which the Sentinels of Sentinels monitor their master.
const SentinelMaster = "shop"

// sentinelCount is the number of Sentinels, of which two must agree that the master is down.
const sentinelCount = 3

// SentinelServers are Sentinels that monitor one master.
type SentinelServers struct {
	Servers []*Server
	options redis.Options // without an address
}

// SentinelConfig has the users and the certificates of Sentinels; the zero value has none.
type SentinelConfig struct {
	// User is the only user of the Sentinels that clients have, with this password and these
	// permissions; empty: clients need none.
	User, Password, Rules string
	// MasterUser and MasterPassword are those of the Sentinels at the master and its replicas.
	MasterUser, MasterPassword string
	// Authority makes the Sentinels use TLS only, also to the master; nil: no TLS.
	Authority *Authority
}

// peer is the user of the Sentinels among themselves, and of the tests.
func (c *SentinelConfig) peer() string {
	if c.User == "" {
		return ""
	}
	return "peer"
}

// Sentinels starts three Sentinels for this test that monitor master, and returns once each
// knows the others and the given number of replicas. A master counts as down after a second.
func Sentinels(t testing.TB, master *Server, replicas int, cfg SentinelConfig) *SentinelServers {
	t.Helper()
	needServer(t)
	s := &SentinelServers{options: redis.Options{Username: cfg.peer(), Password: cfg.Password, MaxRetries: -1, ContextTimeoutEnabled: true}}
	for range sentinelCount {
		one, err := startSentinel(t.TempDir(), master, cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(one.stop)
		s.Servers = append(s.Servers, one)
	}
	if cfg.Authority != nil {
		s.options.TLSConfig = cfg.Authority.Config
	}
	for _, one := range s.Servers {
		await.True(t, "the Sentinels know each other and the replicas", func() bool {
			m, err := s.state(t.Context(), one)
			return err == nil && m["num-other-sentinels"] == "2" && m["num-slaves"] == fmt.Sprint(replicas)
		})
	}
	return s
}

// startSentinel starts one Sentinel, whose configuration is in dir.
func startSentinel(dir string, master *Server, cfg SentinelConfig) (*Server, error) {
	host, port, err := net.SplitHostPort(master.Addr())
	if err != nil {
		return nil, err
	}
	lines := []string{
		fmt.Sprintf("sentinel monitor %s %s %s 2", SentinelMaster, host, port),
		"sentinel down-after-milliseconds " + SentinelMaster + " 1000",
		"sentinel failover-timeout " + SentinelMaster + " 5000",
	}
	if cfg.MasterPassword != "" {
		lines = append(lines, "sentinel auth-user "+SentinelMaster+" "+cfg.MasterUser, "sentinel auth-pass "+SentinelMaster+" "+cfg.MasterPassword)
	}
	if cfg.Password != "" {
		lines = append(lines, "user "+cfg.User+" on >"+cfg.Password+" "+cfg.Rules, "user default off",
			"user "+cfg.peer()+" on >"+cfg.Password+" allchannels +@all",
			"sentinel sentinel-user "+cfg.peer(), "sentinel sentinel-pass "+cfg.Password)
	}
	file := filepath.Join(dir, "sentinel.conf")
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startWithin)
	defer cancel()
	own := redisserver.Config{File: file, Dir: dir, Args: []string{"--sentinel"}, User: cfg.peer(), Password: cfg.Password}
	if cfg.Authority != nil {
		own.TLS, own.Args = cfg.Authority.Config, append(cfg.Authority.args(), own.Args...)
	}
	s, err := redisserver.Start(ctx, own)
	if err != nil {
		return nil, fmt.Errorf("redistest: %w", err)
	}
	return &Server{Server: s}, nil
}

// Addrs are the host:port of the Sentinels.
func (s *SentinelServers) Addrs() []string {
	addrs := make([]string, len(s.Servers))
	for i, one := range s.Servers {
		addrs[i] = one.Addr()
	}
	return addrs
}

// Master is the address of the master according to the first Sentinel, or "" with an error.
func (s *SentinelServers) Master(ctx context.Context) (string, error) {
	m, err := s.state(ctx, s.Servers[0])
	if err != nil {
		return "", err
	}
	return net.JoinHostPort(m["ip"], m["port"]), nil
}

// state is what a Sentinel knows of the master.
func (s *SentinelServers) state(ctx context.Context, of *Server) (map[string]string, error) {
	o := s.options
	o.Addr = of.Addr()
	c := redis.NewSentinelClient(&o)
	defer func() { _ = c.Close() }() //nolint:errcheck // the answer has been read
	return c.Master(ctx, SentinelMaster).Result()
}
