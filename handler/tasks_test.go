package handler

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"flashsale/handler/auth"
	"flashsale/inventory"
	"flashsale/order/store/database"
	"flashsale/order/worker"
)

// fakeTasks returns the test's results, and records its calls.
type fakeTasks struct {
	asked []string
	err   error
}

func (f *fakeTasks) say(format string, args ...any) {
	f.asked = append(f.asked, fmt.Sprintf(format, args...))
}

func (f *fakeTasks) Depths(context.Context) ([]worker.QueueDepth, error) {
	return []worker.QueueDepth{
		{Name: "one", Orders: 30, Ready: 1, Delayed: 2, Leased: 3, Dead: 4, OldestReady: 1500 * time.Microsecond, Processed: 5, Failed: 6,
			PerSecond: 1.25, WaitP50: time.Millisecond, WaitP99: 2 * time.Millisecond, Paused: true},
		{Name: "two", Orders: 10, Ready: 10, OldestReady: time.Second},
	}, f.err
}

// deadCursor is the cursor of the place that Dead returns.
var deadCursor = fmt.Sprintf("1.%d.%s", someTime.UnixMilli(), base64.RawURLEncoding.EncodeToString([]byte("x/é")))

func (f *fakeTasks) Dead(_ context.Context, group string, at worker.DeadPlace, limit int) ([]worker.DeadLetter, *worker.DeadPlace, error) {
	f.say("dead %s%d %s %d", group, at.Queue, at.ID, limit)
	return []worker.DeadLetter{
		{Queue: "one", ID: "a", Type: "purchase", Orders: 1, OrderID: someOrderID, ItemID: "thing", Attempts: 3, DiedAt: someTime, Reason: "<no>", Group: someGroup},
		{Queue: "one", ID: "b", Group: someGroup},
	}, &worker.DeadPlace{Queue: 1, DiedAt: someTime, ID: "x/é"}, f.err
}

func (f *fakeTasks) Verify(_ context.Context, repair bool) ([]worker.QueueCheck, error) {
	f.say("verify %v", repair)
	return []worker.QueueCheck{{Name: "one", Tasks: 9, Lost: 1, Doubled: 2, Bodiless: 3, Repaired: repair}, {Name: "two"}}, f.err
}

func (f *fakeTasks) Retry(_ context.Context, id string) (worker.DeadLetter, error) {
	f.say("retry %s", id)
	return worker.DeadLetter{Queue: "one", ID: "task-of-" + id, Orders: 3}, f.err
}

func (f *fakeTasks) Discard(_ context.Context, id string) (worker.DeadLetter, error) {
	f.say("discard %s", id)
	return worker.DeadLetter{Queue: "one", ID: id, Orders: 1}, f.err
}

func TestTasks(t *testing.T) {
	t.Parallel()
	tasks := &fakeTasks{}
	s := open(t, func(c *Config) { c.Tasks = tasks })
	const taskID = "/v1/admin/dead/x:0197a0f2-3c4d-7abc-8def-0123456789ab"
	for _, q := range []struct{ method, path, asked, want string }{
		{"GET", "/v1/admin/queue", "", `{"orders":40,"ready":11,"delayed":2,"leased":3,"dead":4,"oldest_age_ms":1000.000,"processed":5,` +
			`"failed_attempts":6,"per_second":1.25,"queues":[` +
			`{"name":"one","orders":30,"ready":1,"delayed":2,"leased":3,"dead":4,"oldest_age_ms":1.500,"processed":5,"failed_attempts":6,` +
			`"per_second":1.25,"wait_p50_ms":1.000,"wait_p99_ms":2.000,"paused":true},` +
			`{"name":"two","orders":10,"ready":10,"delayed":0,"leased":0,"dead":0,"oldest_age_ms":1000.000,"processed":0,"failed_attempts":0,` +
			`"per_second":0.00,"wait_p50_ms":0.000,"wait_p99_ms":0.000,"paused":false}]}`},
		{"GET", "/v1/admin/dead", "dead 0  20", `{"dead":[{"task":"a","queue":"one","type":"purchase","orders":1,"order_id":"` + someOrderID + `",` +
			`"item_id":"thing","attempts":3,"died_at":"2030-01-02T03:04:05.678Z","reason":"\u003cno\u003e","group":"` + someGroup + `"},` +
			`{"task":"b","queue":"one","type":"","orders":0,"attempts":0,"died_at":"0001-01-01T00:00:00.000Z","reason":"","group":"` + someGroup + `"}],"next_cursor":"` + deadCursor + `"}`},
		{"GET", "/v1/admin/dead?cursor=" + deadCursor + "&limit=3", "dead 1 x/é 3", ""},
		{"GET", "/v1/admin/dead?group=" + someGroup, "dead " + someGroup + "0  20", ""},
		{"POST", "/v1/admin/queue/verify", "verify false", `{"queues":[{"name":"one","tasks":9,"lost":1,"doubled":2,"bodiless":3,` +
			`"repaired":false},{"name":"two","tasks":0,"lost":0,"doubled":0,"bodiless":0,"repaired":false}],"clean":false}`},
		{"POST", "/v1/admin/queue/verify?repair=true", "verify true", ""},
		{"POST", "/v1/admin/queue/verify?repair=false", "verify false", ""},
		{"POST", taskID + "/retry", "retry x:0197a0f2-3c4d-7abc-8def-0123456789ab",
			`{"task":"task-of-x:0197a0f2-3c4d-7abc-8def-0123456789ab","queue":"one","orders":3,"state":"ready"}`},
		{"POST", "/v1/admin/dead/a%2Fb/discard", "discard a/b", `{"task":"a/b","queue":"one","orders":1,"state":"discarded"}`},
	} {
		tasks.asked = nil
		w := s.post(t, q.path, "root", auth.RoleAdmin, "")
		if q.method == http.MethodGet {
			w = s.get(t, q.path, "root", auth.RoleAdmin)
		}
		if w.Code != 200 || q.want != "" && w.Body.String() != q.want {
			t.Errorf("%s %s: %d %s\nwant %s", q.method, q.path, w.Code, w.Body, q.want)
		}
		if got := fmt.Sprint(tasks.asked); q.asked != "" && got != "["+q.asked+"]" {
			t.Errorf("%s %s asked %s, want %s", q.method, q.path, got, q.asked)
		}
		if got := w.Header().Get("Cache-Control"); got != "no-store" {
			t.Errorf("%s %s: Cache-Control %q", q.method, q.path, got)
		}
	}
}

// The operators' page of the queues shows the workers.
func TestTasks_DepthsShowTheWorkers(t *testing.T) {
	t.Parallel()
	workers := &fakeWorkers{}
	s := open(t, func(c *Config) { c.Tasks, c.Workers = &fakeTasks{}, workers })
	for want, status := range map[string]worker.Status{
		`,"workers":{"live":2,"last_fetch_at":"2030-01-02T03:04:05.678Z"}}`: {Live: 2, LastFetch: someTime},
		`,"workers":{"live":0,"trouble":"none has ever registered"}}`:       {Trouble: "none has ever registered"},
	} {
		workers.status = status
		if w := s.get(t, "/v1/admin/queue", "root", auth.RoleAdmin); w.Code != 200 || !strings.HasSuffix(w.Body.String(), "]"+want) {
			t.Errorf("%d %s, want %s", w.Code, w.Body, want)
		}
	}
	workers.err = inventory.ErrUnavailable
	wantProblem(t, s.get(t, "/v1/admin/queue", "root", auth.RoleAdmin).Result(), 503, "unavailable")
}

func TestTasks_Err(t *testing.T) {
	t.Parallel()
	tasks := &fakeTasks{}
	s := open(t, func(c *Config) { c.Tasks = tasks })
	for _, q := range []struct {
		path   string
		status int
		code   string
		param  any
	}{
		{"/v1/admin/queue?x=1", 400, "unknown_parameter", "x"},
		{"/v1/admin/queue?%zz", 400, "parameter_invalid", "%zz"},
		{"/v1/admin/dead?limit=0", 400, "limit_range", "limit"},
		{"/v1/admin/dead?limit=101", 400, "limit_range", "limit"},
		{"/v1/admin/dead?limit=1&limit=2", 400, "parameter_invalid", "limit"},
		{"/v1/admin/dead?cursor=", 400, "cursor_invalid", "cursor"},
		{"/v1/admin/dead?cursor=1", 400, "cursor_invalid", "cursor"},
		{"/v1/admin/dead?cursor=-1..", 400, "cursor_invalid", "cursor"},
		{"/v1/admin/dead?cursor=4294967295..", 400, "cursor_invalid", "cursor"},
		{"/v1/admin/dead?cursor=1.2.", 400, "cursor_invalid", "cursor"},
		{"/v1/admin/dead?cursor=1..YQ", 400, "cursor_invalid", "cursor"},
		{"/v1/admin/dead?cursor=1.z.YQ", 400, "cursor_invalid", "cursor"},
		{"/v1/admin/dead?user_id=1", 400, "unknown_parameter", "user_id"},
	} {
		body := wantProblem(t, s.get(t, q.path, "root", auth.RoleAdmin).Result(), q.status, q.code)
		if body["param"] != q.param {
			t.Errorf("%s: param %v, want %v", q.path, body["param"], q.param)
		}
		wantProblem(t, s.get(t, q.path, "alice", auth.RoleBuyer).Result(), 403, "forbidden")
		wantProblem(t, s.get(t, q.path, "", "").Result(), 401, "auth_missing")
	}
	for _, q := range []struct {
		path, body string
		status     int
		code       string
	}{
		{"/v1/admin/queue/verify?repair=yes", "", 400, "parameter_invalid"},
		{"/v1/admin/queue/verify?mend=true", "", 400, "unknown_parameter"},
		{"/v1/admin/queue/verify", `{"repair":true}`, 400, "unknown_field"},
		{"/v1/admin/dead/a/retry", `[]`, 400, "json_invalid"},
		{"/v1/admin/dead/a%20b/retry", "", 400, "id_invalid"},
		{"/v1/admin/dead/%C3%A4/discard", "", 400, "id_invalid"},
	} {
		wantProblem(t, s.post(t, q.path, "root", auth.RoleAdmin, q.body).Result(), q.status, q.code)
		wantProblem(t, s.post(t, q.path, "shop", auth.RoleService, q.body).Result(), 403, "forbidden")
	}
	if len(tasks.asked) != 0 {
		t.Errorf("refused requests called %v", tasks.asked)
	}
	for err, want := range map[error]struct {
		status int
		code   string
	}{
		worker.ErrTaskNotFound:   {404, "task_not_found"},
		inventory.ErrOverloaded:  {503, "overloaded"},
		inventory.ErrUnavailable: {503, "unavailable"},
		database.ErrUnavailable:  {503, "unavailable"},
	} {
		tasks.err = fmt.Errorf("decide: %w", err)
		wantProblem(t, s.post(t, "/v1/admin/dead/a/retry", "root", auth.RoleAdmin, "").Result(), want.status, want.code)
	}
	for _, path := range []string{"/v1/admin/queue", "/v1/admin/dead"} {
		tasks.err = inventory.ErrUnavailable
		wantProblem(t, s.get(t, path, "root", auth.RoleAdmin).Result(), 503, "unavailable")
		wantProblem(t, open(t).get(t, path, "root", auth.RoleAdmin).Result(), 404, "route_not_found")
	}
}
