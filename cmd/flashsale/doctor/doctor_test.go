//go:build unix

package doctor

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"flashsale/cmd/flashsale/backend"
	"flashsale/cmd/flashsale/config"
	"flashsale/internal/testing/redistest"
	"flashsale/inventory"
	"flashsale/order/store"
	"flashsale/queue"
)

func TestMain(m *testing.M) {
	// gorm's cache of statements has a goroutine for its clean-up, which never ends.
	redistest.Main(m, goleak.IgnoreTopFunction("gorm.io/gorm/internal/lru.NewLRU[...].func1"))
}

// A difference between this machine's clock and Redis's is a problem in either direction.
func TestDoctor_ReportsClockSkew(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: it starts a redis-server, and -short asks for the quick tests")
	}
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: redistest.Real(t, "--appendfsync", "everysec").Addr()})
	t.Cleanup(func() {
		if err := rdb.Close(); err != nil {
			t.Error(err)
		}
	})
	for skew, want := range map[time.Duration]string{
		5 * time.Minute: levelFix, -5 * time.Minute: levelFix, 0: levelOK,
	} {
		d := &doctor{now: func() time.Time { return time.Now().Add(skew) }}
		d.clock(t.Context(), rdb, 1)
		if len(d.found) != 1 || d.found[0].level != want || d.found[0].part != "clock" {
			t.Errorf("skew %v: the doctor found %+v", skew, d.found)
		}
	}
}

// A full disk is a problem, and one that is nearly full is a warning.
func TestDoctor_ReportsFullDisk(t *testing.T) {
	t.Parallel()
	for free, want := range map[uint64]string{0: levelFix, fullDisk - 1: levelFix, fullDisk: levelWarn, minDisk - 1: levelWarn, minDisk: ""} {
		d := &doctor{}
		d.space(free)
		level := ""
		for _, f := range d.found {
			level += f.level
		}
		if level != want {
			t.Errorf("%d bytes are free: the doctor found %+v, want level %q", free, d.found, want)
		}
	}
}

// TestDoctor_RedisDurability: what Redis keeps is one finding. There is no additional "ok".
func TestDoctor_RedisDurability(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: it starts a redis-server, and -short asks for the quick tests")
	}
	t.Parallel()
	for _, q := range []struct{ setting, value, level, says string }{
		{"--appendonly", "no", levelFix, "(appendonly no)"},
		{"--appendfsync", "everysec", levelWarn, "synced everysec"},
		{"--appendfsync", "always", levelOK, "Redis syncs every write"},
	} {
		s := &config.Settings{Redis: "redis://" + redistest.Real(t, q.setting, q.value).Addr(), Partitions: 1}
		d := &doctor{settings: s, now: time.Now}
		d.redis(t.Context(), store.Checkup{})
		var about []finding
		for _, f := range d.found {
			if strings.Contains(f.says, "append") || strings.Contains(f.says, "202") {
				about = append(about, f)
			}
		}
		if len(about) != 1 || about[0].level != q.level || !strings.Contains(about[0].says, q.says) {
			t.Errorf("%s %s: the doctor found %+v, want one finding at %s", q.setting, q.value, about, q.level)
		}
	}
}

// TestDoctor_EveryMaster: the doctor names the master of a cluster that loses its data in a restart, has no limit of its
// memory, or refuses writes, whichever it is.
func TestDoctor_EveryMaster(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: it starts a Redis Cluster, and -short asks for the quick tests")
	}
	t.Parallel()
	nodes := redistest.OwnCluster(t).Nodes()
	set := func(n *redistest.Server, name, value string) {
		t.Helper()
		rdb := redis.NewClient(&redis.Options{Addr: n.Addr()})
		if err := errors.Join(rdb.ConfigSet(t.Context(), name, value).Err(), rdb.Close()); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range nodes {
		set(n, "appendonly", "yes")
		set(n, "appendfsync", "always")
		set(n, "maxmemory-policy", "noeviction")
		set(n, "maxmemory", "1gb")
	}
	s := &config.Settings{Redis: "cluster+redis://" + nodes[0].Addr(), Partitions: 1}
	for _, q := range []struct{ setting, bad, good, level, says string }{
		{"appendonly", "no", "yes", levelFix, "keeps no data"},
		{"maxmemory-policy", "allkeys-lru", "noeviction", levelFix, "maxmemory-policy allkeys-lru"},
		{"maxmemory", "0", "1gb", levelWarn, "maxmemory is not set"},
		{"maxmemory", "1", "1gb", levelFix, "its memory is full"},
	} {
		for _, n := range nodes {
			set(n, q.setting, q.bad)
			d := &doctor{settings: s, now: time.Now}
			d.redis(t.Context(), store.Checkup{})
			set(n, q.setting, q.good)
			found := slices.ContainsFunc(d.found, func(f finding) bool {
				return f.level == q.level && strings.Contains(f.says, q.says) && strings.Contains(f.says, n.Addr())
			})
			if !found {
				t.Errorf("%s %s on %s: the doctor found %+v", q.setting, q.bad, n.Addr(), d.found)
			}
		}
	}
	// The sentence about durability is that of the master that keeps least, also if another has another fault.
	for _, order := range [][2]int{{0, 2}, {2, 0}} {
		evicts, forgets := nodes[order[0]], nodes[order[1]]
		set(evicts, "maxmemory-policy", "allkeys-lru")
		set(forgets, "appendonly", "no")
		rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{nodes[0].Addr()}})
		says, change := backend.Durability(t.Context(), rdb, s.Redis)
		if err := rdb.Close(); err != nil {
			t.Error(err)
		}
		if !strings.Contains(says, forgets.Addr()+" keeps no data") || len(change) != 2 {
			t.Errorf("it says %q and advises %+v", says, change)
		}
		set(evicts, "maxmemory-policy", "noeviction")
		set(forgets, "appendonly", "yes")
	}
}

// A paused queue is reported, with the command that resumes it, whatever else is wrong with the queue.
func TestDoctor_ReportsPausedQueue(t *testing.T) {
	t.Parallel()
	const prefix = "doctor:{p0}:"
	rdb := redistest.Embedded(t)
	q, err := queue.New(rdb, queue.Config{Prefix: prefix})
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	d := &doctor{}
	d.queue(t.Context(), rdb, "orders-0", prefix)
	if len(d.found) != 1 || d.found[0].level != levelWarn || !strings.Contains(d.found[0].remedy, "DEL '"+prefix+"paused'") {
		t.Errorf("the doctor found %+v", d.found)
	}
	if err := rdb.Del(t.Context(), prefix+"paused").Err(); err != nil {
		t.Fatal(err)
	}
	if s := d.queue(t.Context(), rdb, "orders-0", prefix); s.Paused {
		t.Errorf("the queue is still paused")
	}
}

func TestTooOld(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]bool{
		"5.0.14": true, "6.0.16": true, "6.2.0": false, "7.0.15": false, "10.0.0": false, "": false, "unknown": false,
	} {
		if got := tooOld(version); got != want {
			t.Errorf("%q: %t, want %t", version, got, want)
		}
	}
}

// Orders that wait without a worker are counted, each order of a batch.
func TestDoctor_CountsWaitingOrders(t *testing.T) {
	t.Parallel()
	rdb := redistest.Embedded(t)
	q, err := queue.New(rdb, queue.Config{Prefix: inventory.QueuePrefix(0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := q.Enqueue(t.Context(), queue.Task{ID: "a"}, queue.Task{ID: "b", Entries: 3}); err != nil {
		t.Fatal(err)
	}
	d := &doctor{now: time.Now}
	d.workers(t.Context(), rdb, d.queues(t.Context(), rdb, 1))
	const want = "accepted orders wait (4), and no worker has ever registered"
	for _, f := range d.found {
		if f.part == "workers" && f.level == levelFix && f.says == want {
			return
		}
	}
	t.Errorf("the doctor found %+v, want %q", d.found, want)
}

// TestAnswering: a replica that is being copied to, or that hangs, confirms nothing.
func TestAnswering(t *testing.T) {
	t.Parallel()
	const good = "ip=10.0.0.2,port=6379,state=online,offset=14,lag=0"
	for about, want := range map[string]int{
		good: 1,
		"ip=10.0.0.2,port=6379,state=online,offset=14,lag=10":              1,
		"ip=10.0.0.2,port=6379,state=online,offset=14,lag=11":              0,
		"ip=10.0.0.2,port=6379,state=wait_bgsave,offset=0,lag=0":           0,
		"ip=10.0.0.2,port=6379,state=online,offset=14,lag=0,io-thread=0":   1, // Redis 8
		"ip=10.0.0.2,port=6379,state=online,offset=14,lag=0,type=replica":  1, // Valkey 8
		"ip=10.0.0.2,port=6379,state=online,offset=14,lag=11,type=replica": 0,
	} {
		info := map[string]string{"role": "master", "connected_slaves": "2", "slave0": about, "slave1": good, "slave_expires_tracked_keys": "0"}
		if got, known := answering(info); got != want+1 || !known {
			t.Errorf("%q counts as %d, %v, want %d", about, got-1, known, want)
		}
	}
	for connected, want := range map[string]bool{"0": true, "1": false} {
		if got, known := answering(map[string]string{"role": "master", "connected_slaves": connected}); got != 0 || known != want {
			t.Errorf("%s connected and not described: %d, %v", connected, got, known)
		}
	}
}
