package redistest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// replicaWithin bounds the wait for the first copy of the master's data.
const replicaWithin = 30 * time.Second

// Replica starts a redis-server that replicates s, and returns once it has copied the data and
// follows s. It ends with the test.
//
// Replication is asynchronous: data that s has acknowledged may not have arrived yet. A test
// waits for it with WAIT on s, and promotes the replica with REPLICAOF NO ONE, which lasts
// until the replica is restarted.
func (s *Server) Replica(t testing.TB) *Server {
	t.Helper()
	r := Real(t, "--replicaof", "127.0.0.1", strconv.Itoa(s.Port()))
	if err := r.follows(); err != nil {
		t.Fatal(err)
	}
	return r
}

// follows waits until the link to the master is up.
func (s *Server) follows() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), replicaWithin)
	defer cancel()
	rdb := redis.NewClient(Options(s.Addr()))
	defer func() { err = errors.Join(err, rdb.Close()) }()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		info, err := rdb.Info(ctx, "replication").Result()
		if err == nil && infoField(info, "master_link_status") == "up" {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("redistest: the replica did not follow within %v:\n%s", replicaWithin, info), err)
		}
	}
}
