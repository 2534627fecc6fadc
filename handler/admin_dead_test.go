package handler

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"flashsale/handler/auth"
	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/store/database"
	"flashsale/order/worker"
)

const someGroup = "3f2a91c07be4d815"

func (f *fakeTasks) Groups(context.Context) (worker.DeadGroups, error) {
	return worker.DeadGroups{Groups: []worker.DeadGroup{{ID: someGroup, Reason: "order {id}", Count: 3, FirstAt: someTime, LastAt: someTime, Example: "a"}},
		Omitted: 1, Counted: 4, Total: 5, CountedAt: someTime}, f.err
}

func (f *fakeTasks) Letter(_ context.Context, id string) (worker.DeadLetter, worker.DeadPayload, error) {
	f.say("letter %s", id)
	return worker.DeadLetter{Queue: "one", ID: id, Orders: 3, Group: someGroup}, worker.DeadPayload{
		Orders: []order.Task{
			{ID: someOrderID, ItemID: "thing", UserID: "alice", Quantity: 2, UnitPriceMinor: 7, Currency: "EUR", CreatedAt: someTime.UnixMilli(), RequestID: "r1"},
			{ID: "x", ItemID: "thing"},
		}, Omitted: 1, Unreadable: 2, Raw: "raw", Bytes: 9,
	}, f.err
}

func (f *fakeTasks) many(what string, sel worker.DeadSelection, at worker.DeadPlace) (worker.BulkResult, error) {
	before := ""
	if !sel.Before.IsZero() {
		before = sel.Before.Format(time.RFC3339Nano)
	}
	f.say("%s %s %s %d %s", what, sel.Group, before, at.Queue, at.ID)
	r := worker.BulkResult{Matched: 4, Done: []worker.DeadLetter{{ID: "a", Orders: 2}, {ID: "b", Orders: 1}}, Failed: 1, Remaining: 7, Before: someTime,
		Next: &worker.DeadPlace{Queue: 1, DiedAt: someTime, ID: "x/é"}, Err: inventory.ErrUnavailable}
	if at.Queue > 0 {
		r = worker.BulkResult{Remaining: -1, Before: sel.Before}
	}
	return r, f.err
}

func (f *fakeTasks) RetryMany(_ context.Context, sel worker.DeadSelection, at worker.DeadPlace) (worker.BulkResult, error) {
	return f.many("retry", sel, at)
}

func (f *fakeTasks) DiscardMany(_ context.Context, sel worker.DeadSelection, at worker.DeadPlace) (worker.BulkResult, error) {
	return f.many("discard", sel, at)
}

func TestDead_Groups(t *testing.T) {
	t.Parallel()
	s := open(t, func(c *Config) { c.Tasks = &fakeTasks{} })
	want := `{"groups":[{"id":"` + someGroup + `","reason":"order {id}","count":3,"first_at":"2030-01-02T03:04:05.678Z",` +
		`"last_at":"2030-01-02T03:04:05.678Z","example_task":"a"}],"omitted":1,"counted":4,"total":5,"complete":false,"counted_at":"2030-01-02T03:04:05.678Z"}`
	if w := s.get(t, "/v1/admin/dead/groups", "root", auth.RoleAdmin); w.Code != 200 || w.Body.String() != want {
		t.Errorf("%d %s\nwant %s", w.Code, w.Body, want)
	}
}

func TestDead_Letter(t *testing.T) {
	t.Parallel()
	tasks := &fakeTasks{}
	s := open(t, func(c *Config) { c.Tasks = tasks })
	want := `"payload":{"orders":[{"order_id":"` + someOrderID + `","item_id":"thing","user_id":"alice","quantity":2,"unit_price_minor":7,"currency":"EUR",` +
		`"created_at":"2030-01-02T03:04:05.678Z","request_id":"r1"},{"order_id":"x","item_id":"thing"}],"omitted":1,"unreadable":2,"raw":"raw","bytes":9}}`
	w := s.get(t, "/v1/admin/dead/a%2Fb/payload", "root", auth.RoleAdmin)
	if w.Code != 200 || !strings.HasPrefix(w.Body.String(), `{"task":"a/b","queue":"one",`) || !strings.HasSuffix(w.Body.String(), want) {
		t.Errorf("%d %s\nwant %s", w.Code, w.Body, want)
	}
	tasks.err = worker.ErrTaskNotFound
	wantProblem(t, s.get(t, "/v1/admin/dead/a/payload", "root", auth.RoleAdmin).Result(), 404, "task_not_found")
}

// TestDead_Many: the caller follows next_cursor, which carries the bound in time; each letter is logged.
func TestDead_Many(t *testing.T) {
	t.Parallel()
	tasks := &fakeTasks{}
	var log strings.Builder
	s := open(t, func(c *Config) { c.Tasks, c.Log = tasks, zerolog.New(&log) })
	post := func(path, body, asked string) string {
		t.Helper()
		tasks.asked = nil
		w := s.post(t, path, "root", auth.RoleAdmin, body)
		if w.Code != 200 {
			t.Fatalf("%s: %d %s", body, w.Code, w.Body)
		}
		if got := fmt.Sprint(tasks.asked); got != "["+asked+"]" {
			t.Errorf("%s asked %s, want %s", body, got, asked)
		}
		return w.Body.String()
	}
	const first = `{"matched":4,"done":2,"failed":1,"orders":3,"remaining":7,"before":"2030-01-02T03:04:05.678Z","next_cursor":"`
	got := post("/v1/admin/dead/retry", `{"all":true}`, "retry   0 ")
	cursor := strings.TrimSuffix(strings.TrimPrefix(got, first), `"}`)
	if !strings.HasPrefix(got, first) || cursor == "" {
		t.Fatalf("%s, want %s", got, first)
	}
	if n := strings.Count(log.String(), "dead letter resolved"); n != 2 || !strings.Contains(log.String(), `"task":"b","queue":"","orders":1,"state":"ready","sub":"root"`) {
		t.Errorf("%d lines: %s", n, log.String())
	}
	const last = `{"matched":0,"done":0,"failed":0,"orders":0,"before":"2030-01-02T03:04:05.678Z","next_cursor":""}`
	for _, more := range []string{"", `,"before":"2030-01-02T03:04:05.678Z"`, `,"before":"2031-01-02T03:04:05+01:00"`} {
		if got := post("/v1/admin/dead/retry", `{"all":true,"cursor":"`+cursor+`"`+more+`}`, "retry  2030-01-02T03:04:05.678Z 1 x/é"); got != last {
			t.Errorf("%s, want %s", got, last)
		}
	}
	post("/v1/admin/dead/discard", `{"group":"`+someGroup+`","before":"2029-01-01T00:00:00.0001Z","cursor":""}`, "discard "+someGroup+" 2029-01-01T00:00:00.001Z 0 ")

	tasks.asked = nil
	for body, want := range map[string]struct {
		status int
		code   string
	}{
		`{}`:                                {400, "field_missing"},
		`{"before":"2030-01-01T00:00:00Z"}`: {400, "field_missing"},
		`{"all":true,"group":"` + someGroup + `"}`: {422, "field_range"},
		`{"all":false}`:                                                          {422, "field_range"},
		`{"group":"x"}`:                                                          {422, "field_range"},
		`{"all":true,"before":"yesterday"}`:                                      {422, "field_range"},
		`{"all":true,"before":"1999-01-01T00:00:00Z"}`:                           {422, "field_range"},
		`{"all":1}`:                                                              {400, "field_type"},
		`{"every":true}`:                                                         {400, "unknown_field"},
		`{"all":true,"cursor":"x"}`:                                              {400, "cursor_invalid"},
		`{"all":true,"cursor":"ready.all.1.0.2."}`:                               {400, "cursor_invalid"},
		`{"all":true,"cursor":"ready.all.1.0..YQ"}`:                              {400, "cursor_invalid"},
		`{"all":true,"cursor":"ready.all.1.-1.."}`:                               {400, "cursor_invalid"},
		`{"all":true,"cursor":"ready.all.x.0.."}`:                                {400, "cursor_invalid"},
		`{"all":true,"cursor":"ready.all.1.0.z.YQ"}`:                             {400, "cursor_invalid"},
		`{"all":true,"cursor":"discarded.all.1.0.."}`:                            {400, "cursor_invalid"},
		`{"group":"` + someGroup + `","cursor":"` + cursor + `"}`:                {400, "cursor_invalid"},
		`{"all":true,"before":"2029-01-01T00:00:00Z","cursor":"` + cursor + `"}`: {400, "cursor_invalid"},
	} {
		wantProblem(t, s.post(t, "/v1/admin/dead/retry", "root", auth.RoleAdmin, body).Result(), want.status, want.code)
	}
	wantProblem(t, s.get(t, "/v1/admin/dead?group=x", "root", auth.RoleAdmin).Result(), 400, "id_invalid")
	wantProblem(t, s.post(t, "/v1/admin/dead/retry", "shop", auth.RoleService, `{"all":true}`).Result(), 403, "forbidden")
	if len(tasks.asked) != 0 {
		t.Errorf("refused requests called %v", tasks.asked)
	}
}

// TestDead_Many_Err: the refusals say that the same request can be repeated.
func TestDead_Many_Err(t *testing.T) {
	t.Parallel()
	tasks := &fakeTasks{}
	s := open(t, func(c *Config) { c.Tasks = tasks })
	for err, code := range map[error]string{
		inventory.ErrUnavailable: "unavailable", inventory.ErrOverloaded: "overloaded", database.ErrUnavailable: "unavailable", context.DeadlineExceeded: "unavailable",
	} {
		tasks.err = fmt.Errorf("retry: %w", err)
		body := wantProblem(t, s.post(t, "/v1/admin/dead/retry", "root", auth.RoleAdmin, `{"all":true}`).Result(), 503, code)
		if !errors.Is(err, inventory.ErrOverloaded) && !strings.Contains(fmt.Sprint(body["detail"]), "continues where it stopped") {
			t.Errorf("%v: %v", err, body)
		}
	}
}
