//go:build linux

package systemd_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"flashsale/handler/auth"
	"flashsale/internal/testing/await"
	"flashsale/internal/testing/deploytest"
	"flashsale/internal/testing/process"
	"flashsale/internal/testing/redistest"
)

const (
	// buyersAtOnce is how many buyers buy concurrently, and each only once.
	buyersAtOnce = 8
	// between is how many purchases are answered before each step of the update, and after the
	// last.
	between = 40
)

// update is a rolling update of two installations of the units under load.
type update struct {
	t        *testing.T
	all      map[string]unit
	hosts    [2]*machine
	running  map[string]*process.P // by host and unit
	next     atomic.Int64          // number of the next buyer
	answered atomic.Int64
	refused  atomic.Int64 // connections
	done     chan struct{}
}

// start runs the command of a unit, after the migration that it requires.
func (u *update) start(host int, name string) {
	u.t.Helper()
	m := u.hosts[host]
	args, env := m.words(u.t, "flashsale-migrate.service", u.all["flashsale-migrate.service"])
	deploytest.Run(u.t, 0, env, args...)
	addr, ops := m.addr, m.apiOps
	if strings.Contains(name, "worker") {
		addr, ops = "", m.workerOps
	}
	args, env = m.words(u.t, name, u.all[name])
	u.running[fmt.Sprint(host, name)] = process.Start(u.t, process.Spec{Command: args[0], Args: args[1:], Env: env, Addr: addr, OpsAddr: ops})
}

// replace stops a process as systemd does, and starts its successor.
func (u *update) replace(host int, name string) {
	u.t.Helper()
	u.purchases()
	p := u.running[fmt.Sprint(host, name)]
	if code := p.Stop(); code != 0 {
		u.t.Errorf("%s of host %d ended with %d:\n%s", name, host, code, p.Log())
	}
	u.start(host, name)
}

// purchases waits until some more purchases have been answered.
func (u *update) purchases() {
	u.t.Helper()
	want := u.answered.Load() + between
	await.True(u.t, "purchases are answered", func() bool { return u.answered.Load() >= want })
}

// load balances purchases between the hosts until done is closed, as a proxy does: a host whose
// health check fails, or that refuses the connection, is skipped.
func (u *update) load(item string) {
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
	for {
		select {
		case <-u.done:
			return
		default:
		}
		n := u.next.Add(1)
		err := u.buy(client, item, n)
		for try := int64(1); errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, errNotReady); try++ {
			u.refused.Add(1)
			if try == 2 {
				u.t.Errorf("buyer %d: no host takes the purchase: %v", n, err)
				return
			}
			err = u.buyAt(client, item, n, u.hosts[(n+try)%2])
		}
		if err != nil {
			u.t.Errorf("buyer %d: %v", n, err)
			return
		}
		u.answered.Add(1)
	}
}

// errNotReady means that a host is not in rotation: it does not answer its health check with 200. The
// check's own connection may be reset, because closing a listener resets what it has not accepted.
var errNotReady = errors.New("the host is not ready")

func (u *update) buy(client *http.Client, item string, n int64) error {
	return u.buyAt(client, item, n, u.hosts[n%2])
}

// buyAt buys one unit at a host that is ready. Any answer but 201 and 202 is an error.
func (u *update) buyAt(client *http.Client, item string, n int64, m *machine) error {
	health, err := http.NewRequestWithContext(u.t.Context(), http.MethodGet, "http://"+m.addr+"/readyz", http.NoBody)
	if err != nil {
		return err
	}
	status, _, err := send(client, health)
	if err != nil || status != http.StatusOK {
		return errors.Join(errNotReady, err)
	}
	buyer := fmt.Sprint("buyer-", n)
	token, err := auth.SignToken([]byte(deploytest.Secret), buyer, auth.RoleBuyer, time.Hour, time.Now())
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(u.t.Context(), http.MethodPost, "http://"+m.addr+"/v1/items/"+item+"/orders", strings.NewReader(`{"quantity":1}`))
	if err != nil {
		return err
	}
	for name, value := range map[string]string{
		"Authorization": "Bearer " + token, "Content-Type": "application/json", "Idempotency-Key": buyer,
	} {
		req.Header.Set(name, value)
	}
	status, body, err := send(client, req)
	if err == nil && status != http.StatusCreated && status != http.StatusAccepted {
		err = fmt.Errorf("%d %s", status, body)
	}
	return err
}

func send(client *http.Client, req *http.Request) (status int, body string, err error) {
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), errors.Join(err, resp.Body.Close())
}

// Given two installations of the units that share a database, when their processes are replaced one
// after another with the commands, environment and secrets of the units, then every purchase is
// accepted at once, every process ends with 0, and every order is committed.
func TestUnits_RollingUpdate(t *testing.T) {
	const stock = 1_000_000
	redis, dir := redistest.Real(t), t.TempDir()
	u := &update{t: t, all: units(t), running: make(map[string]*process.P), done: make(chan struct{})}
	for i := range u.hosts {
		u.hosts[i] = &machine{dir: dir, addr: process.FreeAddr(t), apiOps: process.FreeAddr(t), workerOps: process.FreeAddr(t)}
	}
	for name, one := range u.all {
		u.hosts[0].credentials(t, name, one, redis.Addr())
	}
	names := []string{"flashsale-api.service", "flashsale-worker@.service"}
	for host := range u.hosts {
		for _, name := range names {
			u.start(host, name)
		}
	}
	admin, base := deploytest.Token(t, "ada", "admin"), "http://"+u.hosts[0].addr
	status, body := deploytest.Call(t, "POST", base+"/v1/admin/items", admin,
		fmt.Sprintf(`{"id":"drop-1","name":"Drop","description":"d","price_minor":4900,"currency":"EUR","stock":%d,"per_user_limit":1}`, stock))
	if status != http.StatusCreated {
		t.Fatalf("create the item: %d %s", status, body)
	}
	var buyers sync.WaitGroup
	for range buyersAtOnce {
		buyers.Go(func() { u.load("drop-1") })
	}
	for host := range u.hosts {
		for _, name := range names {
			u.replace(host, name)
		}
	}
	u.purchases()
	close(u.done)
	buyers.Wait()
	t.Logf("%d purchases, %d of which met a host that was not ready", u.answered.Load(), u.refused.Load())
	var book struct {
		Held, Sold int64
		Balanced   bool
	}
	await.True(t, "every order is committed", func() bool {
		_, body := deploytest.Call(t, "GET", base+"/v1/admin/items/drop-1/ledger", admin, "")
		return json.Unmarshal([]byte(body), &book) == nil && book.Balanced && book.Held == 0
	})
	if book.Sold != u.answered.Load() {
		t.Errorf("%d units were sold for %d accepted purchases", book.Sold, u.answered.Load())
	}
}
