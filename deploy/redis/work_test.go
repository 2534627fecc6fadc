//go:build unix

package redis_test

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/deploytest"
	"flashsale/internal/testing/process"
	"flashsale/internal/testing/redistest"
	"flashsale/inventory"
	"flashsale/queue"
)

// partitions puts the items of the tests on more than one master of a cluster.
const partitions = 3

// shop is a migrated database with its own Redis, or Redis Cluster.
type shop struct {
	t       *testing.T
	dir     string
	addrs   []string              // of the masters
	masters []*redis.Client       // of users with all permissions
	rdb     redis.UniversalClient // the same for all masters
	confirm int                   // replicas that must confirm a purchase
	trust   string                // file of the authority of the servers' certificates; "": no TLS
	api     *process.P
	worker  *process.P
}

// newShop makes the processes of a shop use the servers. At the end the test fails if one of
// them has denied a command to a user.
func newShop(t *testing.T, addrs []string, masters []*redis.Client, rdb redis.UniversalClient) *shop {
	t.Helper()
	s := &shop{t: t, dir: t.TempDir(), addrs: addrs, masters: masters, rdb: rdb}
	s.prepare()
	return s
}

// prepare migrates the database. At the end the test fails if a server has denied a command.
func (s *shop) prepare() {
	s.t.Helper()
	s.t.Cleanup(func() {
		for _, master := range s.masters {
			denials(s.t, master)
		}
	})
	deploytest.Run(s.t, 0, s.env("api"), "migrate", "up")
}

// env are the settings of a process with a user of Redis.
func (s *shop) env(user string) []string {
	url := "redis"
	if s.trust != "" {
		url = "rediss"
	}
	url += "://" + user + ":" + password + "@" + s.addrs[0]
	if len(s.addrs) > 1 {
		url = "cluster+" + url + "?addr=" + strings.Join(s.addrs[1:], "&addr=")
	}
	return []string{
		"SSL_CERT_FILE=" + cmp.Or(s.trust, os.Getenv("SSL_CERT_FILE")), "FLASHSALE_REDIS=" + url, "FLASHSALE_DATA_DIR=" + s.dir, "FLASHSALE_PARTITIONS=" + strconv.Itoa(partitions),
		"FLASHSALE_JWT_SECRET=" + deploytest.Secret, "FLASHSALE_RECONCILE_EVERY=1s", "FLASHSALE_LOG_FORMAT=json",
		"FLASHSALE_WEBHOOK_ALLOW=127.0.0.1", "FLASHSALE_CONFIRM_REPLICAS=" + strconv.Itoa(s.confirm),
	}
}

func (s *shop) start(command, readyPath string) *process.P {
	s.t.Helper()
	return process.Start(s.t, process.Spec{Command: command, Env: s.env(command), ReadyPath: readyPath})
}

func (s *shop) startBoth() {
	s.t.Helper()
	s.api, s.worker = s.start("api", ""), s.start("worker", "")
}

func (s *shop) stop(p *process.P) {
	s.t.Helper()
	if code := p.Stop(); code != 0 {
		s.t.Errorf("%s ended with %d:\n%s", p.Spec().Command, code, p.Log())
	}
}

// operate runs a command of an operator.
func (s *shop) operate(args ...string) string {
	s.t.Helper()
	return deploytest.Run(s.t, 0, s.env("operator"), args...)
}

// remote runs a command of an operator that uses the API.
func (s *shop) remote(args ...string) string {
	s.t.Helper()
	return s.operate(append(args, "--server", s.api.URL())...)
}

// call sends a request that must be answered with the status want.
func (s *shop) call(want int, method, path, subject, role, body string) string {
	s.t.Helper()
	status, answer := deploytest.Call(s.t, method, s.api.URL()+path, deploytest.Token(s.t, subject, role), body, "Idempotency-Key", "key-"+path)
	if status != want {
		s.t.Errorf("%s %s: %d %s", method, path, status, answer)
	}
	return answer
}

func (s *shop) admin(want int, method, path, body string) string {
	s.t.Helper()
	return s.call(want, method, "/v1/admin/"+path, "ada", "admin", body)
}

// denials fails the test if Redis has refused a command, and lists each once.
func denials(t *testing.T, rdb *redis.Client) {
	t.Helper()
	log, err := rdb.ACLLog(context.WithoutCancel(t.Context()), 128).Result()
	if err != nil {
		t.Error(err)
	}
	for _, e := range log {
		t.Errorf("%s was denied to %s %d times: %s %s (%d entries)", e.Object, e.Username, e.Count, e.Reason, e.Context, len(log))
	}
}

// id returns the id of an order or an endpoint from an answer.
func id(t *testing.T, body string) string {
	t.Helper()
	var answer struct{ ID string }
	if err := json.Unmarshal([]byte(body), &answer); err != nil || answer.ID == "" {
		t.Fatalf("read %s: %v", body, err)
	}
	return answer.ID
}

// Given the users of users.acl and a replica, when the processes and the commands do all their
// work, then Redis denies nothing.
func TestUsers_Work(t *testing.T) {
	t.Parallel()
	server, rdb := newServer(t)
	if err := rdb.Do(t.Context(), "acl", "setuser", "replica", "on", ">"+password, "+psync", "+replconf", "+ping").Err(); err != nil {
		t.Fatal(err)
	}
	redistest.Real(t, "--replicaof", "127.0.0.1", strconv.Itoa(server.Port()), "--masteruser", "replica", "--masterauth", password)
	s := newShop(t, []string{server.Addr()}, []*redis.Client{rdb}, rdb)
	s.confirm = 1
	s.work(nil)
}

// The same on a Redis Cluster, whose slots move meanwhile: clients are redirected.
func TestUsers_Work_Cluster(t *testing.T) {
	t.Parallel()
	servers := redistest.OwnCluster(t)
	s := newShop(t, servers.Addrs(), withUsers(t, servers), servers.Client(t))
	s.work(func(item string, between func()) {
		ctx := await.Context(t)
		// The tag of the item's keys.
		slot, err := servers.SlotOf(ctx, inventory.QueuePrefix(inventory.PartitionOf(item, partitions), partitions))
		if err != nil {
			t.Fatal(err)
		}
		if err := servers.MoveSlot(ctx, slot, between); err != nil {
			t.Fatal(err)
		}
	})
}

// Given a Redis Cluster that only speaks TLS, also between its nodes, and the users of users.acl,
// when API and worker run, then items on every master are sold and committed, and Redis denies
// nothing.
func TestUsers_ClusterTLS(t *testing.T) {
	t.Parallel()
	authority := redistest.NewAuthority(t, "127.0.0.1")
	servers := redistest.OwnClusterTLS(t, authority)
	masters := withUsers(t, servers)
	for _, master := range masters {
		for setting, want := range map[string]string{"port": "0", "tls-cluster": "yes", "tls-replication": "yes"} {
			if got, err := master.ConfigGet(t.Context(), setting).Result(); err != nil || got[setting] != want {
				t.Errorf("%s is %q, %v; want %q", setting, got[setting], err, want)
			}
		}
	}
	// Without the authority, no connection is trusted.
	url := "FLASHSALE_REDIS=cluster+rediss://api:" + password + "@" + servers.Addrs()[0]
	out := deploytest.Run(t, 1, []string{url, "FLASHSALE_DATA_DIR=" + t.TempDir(), "FLASHSALE_JWT_SECRET=" + deploytest.Secret}, "doctor")
	if !strings.Contains(out, "unknown authority") {
		t.Errorf("doctor without the authority: %s", out)
	}
	s := &shop{t: t, dir: t.TempDir(), addrs: servers.Addrs(), masters: masters, rdb: servers.Client(t), trust: authority.File}
	s.prepare()
	s.startBoth()
	sold := make(map[int]bool)
	for i := range 3 * partitions {
		item := "item-" + strconv.Itoa(i)
		deploytest.CreateItem(t, s.api.URL(), item, "none")
		deploytest.Buy(t, s.api.URL(), item, "alice")
		sold[inventory.PartitionOf(item, partitions)] = true
	}
	if len(sold) != partitions {
		t.Errorf("items of %d partitions were sold, want %d", len(sold), partitions)
	}
	if out := s.operate("doctor"); !strings.Contains(out, "Redis syncs every write") {
		t.Errorf("doctor: %s", out)
	}
	s.remote("reconcile")
	s.stop(s.api)
	s.stop(s.worker)
}

// withUsers adds the users of users.acl to every master of a cluster, and makes it keep its data.
// The clients are those of the default user.
func withUsers(t *testing.T, servers *redistest.ClusterServers) (masters []*redis.Client) {
	t.Helper()
	for _, node := range servers.Nodes() {
		c := redis.NewClient(servers.NodeOptions(node.Addr()))
		t.Cleanup(func() {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		})
		for line := range strings.Lines(strings.ReplaceAll(text(t, "users.acl"), noLogin, ">"+password)) {
			words := strings.Fields(line)
			if words[1] == "default" {
				continue // the test uses it
			}
			args := []any{"acl", "setuser"}
			for _, word := range words[1:] {
				args = append(args, word)
			}
			if err := c.Do(t.Context(), args...).Err(); err != nil {
				t.Fatal(err)
			}
		}
		// The cluster of the tests keeps nothing, of which doctor complains.
		for _, setting := range [][2]string{{"appendfsync", "always"}, {"appendonly", "yes"}} {
			if err := c.ConfigSet(t.Context(), setting[0], setting[1]).Err(); err != nil {
				t.Fatal(err)
			}
		}
		masters = append(masters, c)
	}
	return masters
}

// work uses every part of the service that uses Redis. move moves the keys of an item to another
// master, and calls a function when none of them has moved yet; nil if there is one server.
func (s *shop) work(move func(item string, between func())) {
	t := s.t
	t.Helper()
	s.startBoth()
	url := s.api.URL()
	deploytest.CreateItem(t, url, "free", "none")
	deploytest.CreateItem(t, url, "paid", "1h")
	deploytest.CreateItem(t, url, "short", "1s")
	events := s.endpoint()
	deploytest.Buy(t, url, "free", "alice")
	paid, cancelled := id(t, deploytest.Buy(t, url, "paid", "alice")), id(t, deploytest.Buy(t, url, "paid", "bob"))
	s.call(200, "POST", "/v1/orders/"+paid+"/payment", "psp", "service", `{"reference":"r-1","amount_minor":4900,"currency":"EUR"}`)
	s.call(200, "POST", "/v1/orders/"+cancelled+"/cancel", "bob", "buyer", "")
	expired := id(t, deploytest.Buy(t, url, "short", "carol"))
	await.True(t, "the unpaid order expires", func() bool {
		return strings.Contains(s.call(200, "GET", "/v1/orders/"+expired, "carol", "buyer", ""), `"expired"`)
	})
	if move != nil {
		// Some script reads keys that do not exist, and is redirected with ASK.
		move("free", func() { await.True(t, "a client sends ASKING", s.asked) })
		s.sells("mia")
	}
	for _, path := range []string{
		"items", "items/paid", "items/paid/ledger", "queue", "dead", "dead/groups", "orders/" + paid + "/timeline",
		"buyers/alice", "system", "audit", "payments", "webhooks",
	} {
		s.admin(200, "GET", path, "")
	}
	for _, args := range [][]string{
		{"item", "list"}, {"item", "change", "paid", "--name", "Other"}, {"item", "restock", "paid", "--quantity", "5", "--reason", "delivery"}, {"item", "pause", "paid"},
		{"item", "resume", "paid"}, {"item", "warm", "paid"}, {"queue", "stats"}, {"queue", "verify", "--repair"},
		{"order", "refund", paid, "--restock=true"}, {"item", "close", "paid"}, {"reconcile", "--repair"},
	} {
		s.remote(args...)
	}
	s.top()
	s.deadLetters()
	s.webhooks(events)
	s.erase("alice")
	s.operate("doctor")
	s.rollBack("redis")
	s.rollBack("database")
	s.rebuild()
	s.stop(s.api)
	s.stop(s.worker)
}

// asked reports whether a client has sent ASKING to one of the masters.
func (s *shop) asked() bool {
	s.t.Helper()
	for _, master := range s.masters {
		stats, err := master.Info(s.t.Context(), "commandstats").Result()
		if err != nil {
			s.t.Fatal(err)
		}
		if strings.Contains(stats, "cmdstat_asking:") {
			return true
		}
	}
	return false
}

// endpoint creates a webhook endpoint, whose requests are counted.
func (s *shop) endpoint() (count *atomic.Int64) {
	s.t.Helper()
	count = new(atomic.Int64)
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { count.Add(1) }))
	s.t.Cleanup(server.Close)
	s.admin(201, "POST", "webhooks", `{"url":"`+server.URL+`"}`)
	return count
}

// webhooks waits for the events of the orders, and uses the routes that change an endpoint.
func (s *shop) webhooks(count *atomic.Int64) {
	s.t.Helper()
	var list struct{ Webhooks []struct{ ID string } }
	answer := s.admin(200, "GET", "webhooks", "")
	if err := json.Unmarshal([]byte(answer), &list); err != nil || len(list.Webhooks) != 1 {
		s.t.Fatalf("read %s: %v", answer, err)
	}
	one := "webhooks/" + list.Webhooks[0].ID
	await.True(s.t, "the events of the orders arrive", func() bool { return count.Load() >= 3 })
	s.admin(200, "POST", one+"/rotate", "")
	s.admin(202, "POST", one+"/test", "")
	s.admin(200, "GET", one+"/deliveries", "")
	s.admin(200, "PATCH", one, `{"enabled":false}`)
	s.admin(204, "DELETE", one, "")
}

// top shows the live figures until it has shown one line.
func (s *shop) top() {
	s.t.Helper()
	p := process.Start(s.t, process.Spec{
		Command: "top", Args: []string{"--json", "--server", s.api.URL()}, Env: s.env("operator"), NoWait: true,
	})
	await.True(s.t, "top shows figures", func() bool { return strings.Contains(p.Log(), `"accepted_per_second"`) })
	p.Kill()
}

// erase erases a buyer's data, once the buyer has no order in the queue.
func (s *shop) erase(buyer string) {
	s.t.Helper()
	token := deploytest.Token(s.t, "ada", "admin")
	await.True(s.t, "the buyer is erased", func() bool {
		status, body := deploytest.Call(s.t, "POST", s.api.URL()+"/v1/admin/buyers/"+buyer+"/erase", token, `{"reason":"letter 7"}`)
		if status != http.StatusOK && status != http.StatusConflict {
			s.t.Fatalf("erase: %d %s", status, body)
		}
		return status == http.StatusOK && !strings.Contains(body, `"orders":0`)
	})
}

// deadLetters makes two orders dead letters while no worker runs, and retries one and discards one.
func (s *shop) deadLetters() {
	t := s.t
	t.Helper()
	s.stop(s.worker)
	tasks, err := queue.New(s.rdb, queue.Config{Prefix: inventory.QueuePrefix(inventory.PartitionOf("free", partitions), partitions)})
	if err != nil {
		t.Fatal(err)
	}
	for _, buyer := range []string{"dan", "eve"} {
		status, body := deploytest.Call(t, "POST", s.api.URL()+"/v1/items/free/orders", deploytest.Token(t, buyer, "buyer"), `{"quantity":1}`,
			"Idempotency-Key", "k", "Prefer", "respond-async")
		if status != http.StatusAccepted {
			t.Fatalf("%s buys: %d %s", buyer, status, body)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		f, err := tasks.Dequeue(ctx, 1)
		if err != nil || len(f.Tasks) != 1 {
			t.Fatalf("%d tasks, %v", len(f.Tasks), err)
		}
		if _, err := tasks.Reject(ctx, queue.Rejection{Task: f.Tasks[0], Dead: true, Reason: "no ink"}); err != nil {
			t.Fatal(err)
		}
		cancel()
		if out := s.remote("queue", "dead"); !strings.Contains(out, "no ink") {
			t.Errorf("dead letters: %s", out)
		}
		command := "discard --all --yes"
		if buyer == "eve" {
			command = "retry --all"
		}
		s.remote(append([]string{"queue"}, strings.Fields(command)...)...)
	}
	s.worker = s.start("worker", "")
}

// rollBack replaces the database by a backup, so that Redis has an order that the database does
// not have, and makes one of the two right.
func (s *shop) rollBack(from string) {
	t := s.t
	t.Helper()
	file := filepath.Join(t.TempDir(), "backup.db")
	s.operate("backup", file)
	deploytest.Buy(t, s.api.URL(), "free", "after-backup-"+from)
	s.stop(s.api)
	s.stop(s.worker)
	s.operate("restore", file)
	s.api, s.worker = s.start("api", "/healthz"), s.start("worker", "")
	list := filepath.Join(t.TempDir(), "orders.jsonl")
	out := s.operate("recover", "--from", from, "--list", list)
	if b, err := os.ReadFile(list); err != nil || !strings.Contains(string(b), "after-backup-"+from) {
		t.Errorf("recover --from %s: %v\n%s\n%s", from, err, out, b)
	}
	s.sells("after-recovery-" + from)
}

// sells waits until a buyer's purchase is committed.
func (s *shop) sells(buyer string) {
	s.t.Helper()
	token := deploytest.Token(s.t, buyer, "buyer")
	await.True(s.t, "the sale sells to "+buyer, func() bool {
		status, _ := deploytest.Call(s.t, "POST", s.api.URL()+"/v1/items/free/orders", token, `{"quantity":1}`, "Idempotency-Key", "k")
		return status == http.StatusCreated
	})
}

// rebuild makes the processes rebuild a sale that Redis has lost.
func (s *shop) rebuild() {
	s.t.Helper()
	for _, master := range s.masters {
		if err := master.FlushAll(s.t.Context()).Err(); err != nil {
			s.t.Fatal(err)
		}
	}
	s.sells("frank")
}
