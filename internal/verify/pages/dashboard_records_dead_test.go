//go:build unix

package pages_test

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/browser"
	"flashsale/internal/testing/process"
	"flashsale/internal/testing/redistest"
	"flashsale/inventory"
	"flashsale/queue"
)

// deadShop is an API with orders whose tasks wait in a Redis of its own, because no worker runs.
type deadShop struct {
	service

	settings []string // of every process
	env      []string
	tasks    *queue.Queue
	admin    string // a token
}

func newDeadShop(t *testing.T) *deadShop {
	t.Helper()
	if testing.Short() {
		t.Skip("skipped: it starts the service and a browser, and -short asks for the quick tests")
	}
	browser.Program(t)
	server := redistest.Real(t, "--appendfsync", "everysec")
	dir := t.TempDir()
	s := &deadShop{
		settings: []string{"--db", "sqlite:" + filepath.Join(dir, "shop.db"), "--data-dir", dir, "--redis", "redis://" + server.Addr() + "/0"},
		env:      []string{"FLASHSALE_JWT_SECRET=a secret of the tests, long enough for HS256"},
	}
	s.run(t, "migrate", "up", s.settings[0], s.settings[1])
	s.URL = process.Start(t, process.Spec{Binary: process.Build(t), Command: "api", Args: append([]string{"--rate-buyer", "-1"}, s.settings...), Env: s.env}).URL()
	s.admin = s.token(t, "root", "admin")
	rdb := redis.NewClient(redistest.Options(server.Addr()))
	t.Cleanup(func() {
		if err := rdb.Close(); err != nil {
			t.Errorf("close redis client: %v", err)
		}
	})
	tasks, err := queue.New(rdb, queue.Config{Prefix: inventory.QueuePrefix(0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	s.tasks = tasks
	return s
}

// run runs a command and returns its output.
func (s *deadShop) run(t *testing.T, args ...string) string {
	t.Helper()
	r := process.Run(t, process.Spec{Binary: process.Build(t), Args: args, Env: s.env})
	if r.Code != 0 {
		t.Fatalf("flashsale %s: exit code %d\n%s", strings.Join(args, " "), r.Code, r.Output)
	}
	return strings.TrimSpace(r.Output)
}

// token returns a token, signed by the command because the API is not in development mode.
func (s *deadShop) token(t *testing.T, subject, role string) string {
	t.Helper()
	return s.run(t, "token", "--sub", subject, "--role", role)
}

// die buys n units of an item and makes the tasks of their orders dead letters. It returns the ids of the orders.
func (s *deadShop) die(t *testing.T, item string, n int, reason string) []string {
	t.Helper()
	buyer := s.token(t, "buyer-of-"+item, "buyer")
	s.call(t, http.StatusCreated, http.MethodPost, "/v1/admin/items", s.admin, map[string]any{
		"id": item, "name": item, "price_minor": 4900, "currency": "EUR", "stock": n + 100, "per_user_limit": n + 100,
	}, nil)
	orders := make([]string, n)
	for i := range orders {
		var order struct{ ID string }
		s.call(t, http.StatusAccepted, http.MethodPost, "/v1/items/"+item+"/orders", buyer, map[string]any{"quantity": 1}, &order,
			"Idempotency-Key", fmt.Sprintf("%s-%d", item, i), "Prefer", "respond-async")
		orders[i] = order.ID
	}
	ctx := await.Context(t)
	for left := n; left > 0; {
		left -= s.bury(ctx, t, reason)
	}
	return orders
}

// bury makes some ready tasks dead letters and returns the number of their orders.
func (s *deadShop) bury(ctx context.Context, t *testing.T, reason string) int {
	t.Helper()
	f, err := s.tasks.Dequeue(ctx, 100)
	if err != nil {
		t.Fatal(err)
	}
	dead := make([]queue.Rejection, len(f.Tasks))
	for i := range f.Tasks {
		dead[i] = queue.Rejection{Task: f.Tasks[i], Dead: true, Reason: fmt.Sprintf(reason, f.Tasks[i].ID)}
	}
	if _, err := s.tasks.Reject(ctx, dead...); err != nil {
		t.Fatal(err)
	}
	return len(dead)
}

// Given 2,500 dead letters with one error and some with another one, when an admin retries the first group, then a
// bar shows the progress, the tasks are queued again, and a worker commits their orders. One of the other group is
// retried on the page of its order, which follows the commit; one is read, and discarded after its item's id was
// typed; the rest is discarded together.
func TestDashboardRecords_Dead(t *testing.T) {
	t.Parallel()
	const many = 2500 // more than the service retries in one step
	s := newDeadShop(t)
	lost := s.die(t, "lamp", many, "commit order %s: constraint failed")
	few := s.die(t, "vase", 5, "decode task %s: unexpected end of input")
	p := s.logIn(t, browser.Options{}, s.admin, "/admin/dead")
	p.WaitText(".total", "2,505 dead letters in 2 groups")
	p.WaitText("[data-group]:first-child", "commit order {id}: constraint failed")
	s.viewDead(t)

	p.Click("[data-group]:first-child button >> Retry group")
	p.Click("dialog button >> Retry")
	p.WaitText("#running", "Finished: the group")
	p.WaitText("#running .counts", "2,500 of 2,500 retried, 2,500 orders in them")
	p.WaitTrue(`document.querySelector("#running progress").position === 1`)
	p.WaitText(".total", "5 dead letters in 1 group")
	steps := 0
	for _, r := range p.Requests() {
		if strings.HasSuffix(r.URL, "/v1/admin/dead/retry") {
			steps++
		}
	}
	if steps < 3 {
		t.Errorf("%d letters were retried in %d steps", many, steps)
	}
	process.Start(t, process.Spec{Binary: process.Build(t), Command: "worker", Args: s.settings, Env: s.env})
	for _, id := range []string{lost[0], lost[many-1]} {
		await.True(t, "the commit of the order "+id, func() bool {
			var order struct{ Status string }
			s.call(t, http.StatusOK, http.MethodGet, "/v1/orders/"+id, s.admin, nil, &order)
			return order.Status == "confirmed"
		})
	}

	p.Goto(s.URL + "/admin/orders/" + few[0])
	p.WaitText("main .card .badge", "dead")
	p.WaitText(".timeline [data-kind=dead_letter]", "unexpected end of input")
	p.Click("main .card button >> Retry")
	p.WaitText("main .badge", "confirmed")
	p.WaitText(".timeline [data-kind=committed]", "after the request")
	p.Goto(s.URL + "/admin/dead")

	p.Click("[data-group] a >> Show tasks")
	p.WaitCount("#letters tbody tr", 4)
	p.Click("#letters button >> Payload")
	p.WaitText("#letters .below", "buyer-of-vase")
	p.CheckAxe()
	picture(p, "dead-payload")
	p.Click("#letters button >> Discard")
	confirmName(p, "vase", "Discard")
	p.WaitText("#letters tbody .badge", "discarded")
	p.Click(".total + * button >> Discard all")
	confirmName(p, "discard all", "Discard")
	p.WaitText("#running .counts", "3 of 3 discarded")
	p.WaitText("#overview", "There are no dead letters.")
	picture(p, "dead-finished")
	p.Goto(s.URL + "/admin/orders/" + few[1])
	p.WaitText("main .badge", "rejected")
}

// viewDead checks the pages of dead letters as each kind of browser shows them.
func (s *deadShop) viewDead(t *testing.T) {
	t.Helper()
	for name, o := range viewers {
		p := s.logIn(t, o, s.admin, "/admin/dead?group=all")
		p.WaitCount("#letters tbody tr", 50)
		p.WaitCount("[data-group]", 2)
		p.CheckAxe()
		fits(t, p)
		picture(p, "dead-"+name)
		p.Click("[data-group] button >> Discard group")
		p.WaitText("dialog", "to confirm")
		p.CheckAxe()
		p.Close()
	}
}

// Given a bulk retry whose answers are lost, when an admin stops it, then it stops and can be continued. A letter that
// died after the list was shown stays. The page of a retried order follows it, also after a failed request.
func TestDashboardRecords_DeadStop(t *testing.T) {
	t.Parallel()
	s := newDeadShop(t)
	orders := s.die(t, "lamp", 3, "commit order %s: constraint failed")
	p := s.logIn(t, browser.Options{}, s.admin, "/admin/dead")
	p.WaitText(".total", "3 dead letters in 1 group")
	s.die(t, "late", 1, "commit order %s: constraint failed")
	p.Block("http://*:*/v1/admin/dead/retry")
	p.Click(".total + * button >> Retry all")
	p.Click("dialog button >> Retry")
	p.WaitText("#running", "Request failed, retrying in")
	p.Click("#running button >> Stop")
	p.WaitText("#running", "Not finished: all dead letters")
	p.Block()
	p.Click("#running button >> Continue")
	p.WaitText("#running", "Finished: all dead letters")
	p.WaitText("#running .counts", "3 of 3 retried")
	p.WaitText(".total", "1 dead letter in 1 group")
	p.Click("#running button >> Close")
	p.WaitGone("#running section")

	p.Goto(s.URL + "/admin/orders/" + orders[0])
	p.WaitText("#live", "This page is updated automatically.")
	p.Block("http://*:*/v1/admin/orders/*/timeline")
	p.WaitText("#live", "Request failed, retrying in")
	p.Block()
	p.WaitText("#live", "This page is updated automatically.")
}

// Given dead letters and no worker, then the overview shows both problems; once a worker runs, and the letters
// are discarded, it shows none.
func TestDashboard_Problems(t *testing.T) {
	t.Parallel()
	s := newDeadShop(t)
	s.die(t, "lamp", 2, "commit order %s: constraint failed")
	p := s.logIn(t, browser.Options{}, s.admin, "/admin")
	p.WaitText("#problem-list", "2 tasks failed permanently and wait for a decision.")
	p.WaitText("#problem-list", "No worker commits orders")
	p.CheckAxe()
	process.Start(t, process.Spec{Binary: process.Build(t), Command: "worker", Args: s.settings, Env: s.env})
	p.Click("#check")
	p.WaitNoText("#problem-list", "No worker commits orders")
	p.Click("#problem-list a >> Retry or discard")
	p.Click(".total + * button >> Discard all")
	confirmName(p, "discard all", "Discard")
	p.WaitText("#overview", "There are no dead letters.")
	p.Goto(s.URL + "/admin")
	p.WaitText("#problem-list", "No problems found")
}
