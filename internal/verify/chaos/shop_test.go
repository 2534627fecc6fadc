//go:build chaos && unix

package chaos

import (
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/hashtag"
	"flashsale/internal/testing/process"
	"flashsale/internal/testing/redistest"
)

// leaseTime is the worker's lease in seconds, as in its setting. It is short to keep the runs
// short.
const leaseTime = "2s"

// shop is one deployment: its own redis-server and database, and its processes.
type shop struct {
	t     *testing.T
	fault *fault
	dir   string // the folder of data, logs and, unless the fault sets another, the database

	redis   *redistest.Server     // nil on a cluster
	cluster *cluster              // nil on a single server
	rdb     redis.UniversalClient // directly to Redis, without a proxy
	// partitions is the number of partitions of the items.
	partitions int
	store      *store
	// toAPI and toWorker are the proxies between Redis and these processes; nil: none.
	toAPI, toWorker *redistest.Proxy

	apis, workers []*member
}

// member is one process of the shop and, after it has ended, its successors.
type member struct {
	shop *shop
	spec process.Spec
	*process.P
	// logs are the logs of the processes that have ended.
	logs []string
}

// openShop starts everything.
func openShop(t *testing.T, f *fault) *shop {
	t.Helper()
	s := &shop{t: t, fault: f, dir: t.TempDir(), partitions: 1}
	s.openRedis()
	s.store = databases[options.db](t, f, s.dir)
	t.Cleanup(func() {
		if err := s.rdb.Close(); err != nil {
			t.Errorf("close redis client: %v", err)
		}
	})
	if f.ProxyAPI {
		s.toAPI = redistest.NewProxy(t, s.redis.Addr())
	}
	if f.ProxyWorker {
		s.toWorker = redistest.NewProxy(t, s.redis.Addr())
	}
	args := append([]string{"up"}, s.settings(s.redisURL(nil))...)
	if s.store.direct != "" {
		args = append(args, "--db", s.store.direct) // not through a pooler
	}
	if r := process.Run(t, process.Spec{Binary: binary(t), Command: "migrate", Args: args, Dir: s.dir}); r.Code != 0 {
		t.Fatalf("migrate up: exit code %d\n%s", r.Code, r.Output)
	}
	for range f.Workers {
		s.workers = append(s.workers, s.member("worker", s.toWorker, append([]string{"--lease", leaseTime}, f.WorkerArgs...)))
	}
	for range f.APIs {
		// All buyers have the address of this machine, and each makes many purchases.
		s.apis = append(s.apis, s.member("api", s.toAPI, append([]string{"--rate-buyer", "-1"}, f.APIArgs...)))
	}
	return s
}

// openRedis starts the redis-server or the cluster, and connects to it.
func (s *shop) openRedis() {
	s.t.Helper()
	if s.fault.Cluster {
		s.cluster, s.partitions = openCluster(s.t), clusterPartitions
		s.rdb = s.cluster.client()
		return
	}
	args := slices.Clone(s.fault.RedisArgs)
	if s.fault.Redis != nil {
		args = append(args, s.fault.Redis(s.t)...)
	}
	s.redis = redistest.Real(s.t, args...)
	s.rdb = redis.NewClient(redistest.Options(s.redis.Addr()))
}

// redisURL is the service's setting for Redis, through a proxy unless that is nil.
func (s *shop) redisURL(through *redistest.Proxy) string {
	switch {
	case s.cluster != nil:
		return s.cluster.url()
	case through != nil:
		return "redis://" + through.Addr() + "/0"
	default:
		return "redis://" + s.redis.Addr() + "/0"
	}
}

// binary is the build of the service with the fault points.
func binary(t testing.TB) string {
	t.Helper()
	return process.Build(t, "-tags", "faultpoint")
}

// settings are the settings of every process.
func (s *shop) settings(redisURL string) []string {
	return []string{
		"--db", s.store.url, "--data-dir", s.dir, "--log-format", "json",
		"--redis", redisURL, "--partitions", strconv.Itoa(s.partitions),
	}
}

// member starts the first process of a member.
func (s *shop) member(command string, through *redistest.Proxy, args []string) *member {
	s.t.Helper()
	spec := process.Spec{
		Binary: binary(s.t), Command: command, Args: append(s.settings(s.redisURL(through)), args...), Dir: s.dir,
		Env: []string{"FLASHSALE_JWT_SECRET=" + secret},
	}
	if s.fault.Tune != nil {
		s.fault.Tune(&spec)
	}
	p := process.Start(s.t, spec)
	m := &member{shop: s, spec: p.Spec(), P: p}
	m.spec.NoWait = true
	return m
}

// again starts a successor for a process that has ended, as a supervisor would, and does not
// wait until it is ready. point is a place at which it kills itself ("order.committed:3") or
// stops itself ("order.committed:3:stop"), see package faultpoint; empty: none.
func (m *member) again(point string) {
	m.shop.t.Helper()
	m.logs = append(m.logs, m.P.Log())
	spec := m.spec
	if point != "" {
		spec.Env = append(spec.Env[:len(spec.Env):len(spec.Env)], "FAULTPOINT="+point)
	}
	m.P = process.Start(m.shop.t, spec)
}

// allLogs is the output of all processes of the member.
func (m *member) allLogs() string { return strings.Join(append(m.logs, m.P.Log()), "") }

// ended waits until the process has ended. Errors: errNever.
func (m *member) ended(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	code, err := m.P.Wait(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", errNever, err)
	case code != -1:
		return fmt.Errorf("%w: it ended with code %d, and not by a signal", errNever, code)
	}
	return nil
}

// urls are the addresses of the API processes.
func (s *shop) urls() []string {
	all := make([]string, len(s.apis))
	for i, m := range s.apis {
		all[i] = m.URL()
	}
	return all
}

// The service's keys, as documented in docs/ARCHITECTURE.md.
func (s *shop) tag(partition int) string {
	return "fs:{" + hashtag.Of(partition, s.partitions) + "}:"
}

func (s *shop) ordersKey(partition int, part string) string {
	return s.tag(partition) + "q:orders:" + part
}

// partition is the partition of an item or a bucket.
func (s *shop) partition(id string) int {
	item, bucket, _ := strings.Cut(id, ".")
	number, _ := strconv.Atoi(bucket) //nolint:errcheck // none: bucket 0
	h := fnv.New32a()
	_, _ = h.Write([]byte(item)) // a hash's Write never fails
	return (int(h.Sum32()%uint32(s.partitions)) + number) % s.partitions
}

// buckets are the ids under which an item is sold.
func (s *shop) buckets(item string) []string {
	ids := []string{item}
	for n := 1; n < s.fault.Buckets; n++ {
		ids = append(ids, item+"."+strconv.Itoa(n))
	}
	return ids
}

// itemOf is the item of a bucket.
func itemOf(id string) string {
	item, _, _ := strings.Cut(id, ".")
	return item
}

func (s *shop) saleKey(item string) string { return s.tag(s.partition(item)) + "sale:" + item }
func (s *shop) lockKey(item string) string { return s.saleKey(item) + ":lock" }

// underway is the number of tasks in the queues of orders that are not dead letters.
func (s *shop) underway(ctx context.Context) (n int64, err error) {
	for partition := range s.partitions {
		var sets [3]*redis.IntCmd
		// In one step: a task moves from one set to another.
		_, err := s.rdb.TxPipelined(ctx, func(p redis.Pipeliner) error {
			for i, set := range []string{"ready", "leased", "delayed"} {
				sets[i] = p.ZCard(ctx, s.ordersKey(partition, set))
			}
			return nil
		})
		if err != nil {
			return 0, err
		}
		n += sets[0].Val() + sets[1].Val() + sets[2].Val()
	}
	return n, nil
}

// counts reads the number of acknowledged orders and the number of failed attempts, which
// includes expired leases.
func (s *shop) counts(ctx context.Context) (processed, failed int64) {
	for partition := range s.partitions {
		all, err := s.rdb.HGetAll(ctx, s.ordersKey(partition, "counts")).Result()
		if err != nil {
			return 0, 0 // Redis may be down; callers poll
		}
		for field, value := range all {
			n, err := strconv.ParseInt(value, 10, 64)
			switch {
			case err != nil:
			case field == "failed":
				failed += n
			case field == "processed" || strings.HasPrefix(field, "m"): // the count of one minute
				processed += n
			}
		}
	}
	return processed, failed
}

// fence reads the fencing token in the sale and the last one that its lock has issued; 0 if
// there is none.
func (s *shop) fence(ctx context.Context, item string) (sold, minted int64) {
	if v, err := s.rdb.HGet(ctx, s.saleKey(item), "fence").Int64(); err == nil {
		sold = v
	}
	if v, err := s.rdb.Get(ctx, s.lockKey(item)+":fence").Result(); err == nil {
		if n, err := strconv.ParseInt(strings.TrimSuffix(v, "w"), 10, 64); err == nil {
			minted = n
		}
	}
	return sold, minted
}

// createItems creates the items and opens their sales.
func (r *run) createItems(ctx context.Context) {
	r.t.Helper()
	c, err := r.caller()
	if err != nil {
		r.t.Fatal(err)
	}
	defer c.close()
	for _, item := range r.plan.Items {
		a, err := c.admin(ctx, 0, "POST", "/v1/admin/items", map[string]any{
			"id": item.ID, "name": "Thing", "price_minor": 990, "currency": "EUR",
			"stock": item.Stock, "per_user_limit": item.Limit, "buckets": max(r.fault.Buckets, 1),
		})
		if err != nil || a.status != 201 {
			r.t.Fatalf("create %s: %d %s %v", item.ID, a.status, a.body, err)
		}
	}
}
