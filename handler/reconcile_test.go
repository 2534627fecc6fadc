package handler

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"flashsale/catalog"
	"flashsale/handler/auth"
	"flashsale/handler/handlertest"
	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/reconcile"
	"flashsale/order/store/database"
)

// fakeReconciler returns the test's report.
type fakeReconciler func(ctx context.Context, o reconcile.Options) (reconcile.Report, error)

func (f fakeReconciler) Reconcile(ctx context.Context, o reconcile.Options) (reconcile.Report, error) {
	return f(ctx, o)
}

func reconciling(f fakeReconciler) func(*Config) { return func(c *Config) { c.Reconciler = f } }

const reconcilePath = "/v1/admin/reconcile"

func TestReconcile(t *testing.T) {
	t.Parallel()
	var got reconcile.Options
	report := reconcile.Report{
		StartedAt: someTime, Took: 1500 * time.Millisecond, Deep: true, Repair: reconcile.RepairAll,
		Examined: 3, Differing: 1, Failed: 1, Repaired: 1, Omitted: 1,
		Items: []reconcile.ItemReport{
			{ItemID: "a", Loaded: true, Ledger: order.Ledger{Initial: 5, Left: 5}, LateReleases: 2, Partial: true, Drifts: []reconcile.Drift{
				{Kind: reconcile.DriftLeft, Expected: 5, Found: 4, Units: 1, Count: 1, Repaired: true},
				{Kind: reconcile.DriftTotal, Expected: 4, Found: 5, Units: 1, Count: 1, Note: "which is right cannot be told"},
			}},
			{ItemID: "b", Err: fmt.Errorf("reconcile: %w", inventory.ErrUnavailable)},
			{ItemID: "c", Err: errors.New("secret of the inside")},
		},
	}
	s := open(t, reconciling(func(_ context.Context, o reconcile.Options) (reconcile.Report, error) {
		got = o
		return report, nil
	}))
	for query, want := range map[string]reconcile.Options{
		"":                           {Deep: true},
		"?repair=false&deep=true":    {Deep: true},
		"?repair=true":               {Deep: true, Repair: reconcile.RepairAll},
		"?deep=false&item_id=drop-1": {ItemID: "drop-1"},
	} {
		w := s.post(t, reconcilePath+query, "root", auth.RoleAdmin, "")
		want.Actor, want.RequestID = "root", w.Header().Get("X-Request-Id")
		if w.Code != 200 || got != want {
			t.Errorf("%q: %d, asked for %+v, want %+v", query, w.Code, got, want)
		}
		const body = `{"balanced":false,"started_at":"2030-01-02T03:04:05.678Z","took_ms":1500,"deep":true,"repair":true,` +
			`"examined":3,"differing":1,"failed":1,"repaired":1,"items":[` +
			`{"item_id":"a","loaded":true,"ledger":{"initial":5,"restocked":0,"left":5,"held":0,"sold":0,"balanced":true},"drifts":[` +
			`{"kind":"left","expected":5,"found":4,"units":1,"count":1,"repaired":true},` +
			`{"kind":"total","expected":4,"found":5,"units":1,"count":1,"repaired":false,"note":"which is right cannot be told"}],"late_returns":2,"partial":true},` +
			`{"item_id":"b","error":"unavailable","drifts":[],"late_returns":0,"partial":false},` +
			`{"item_id":"c","error":"internal","drifts":[],"late_returns":0,"partial":false}],"omitted":1}`
		if w.Body.String() != body {
			t.Errorf("%q:\n%s\nwant\n%s", query, w.Body, body)
		}
	}
}

func TestReconcile_Refused(t *testing.T) {
	t.Parallel()
	s := open(t, reconciling(func(context.Context, reconcile.Options) (reconcile.Report, error) {
		t.Error("a bad request was executed")
		return reconcile.Report{}, nil
	}))
	for query, want := range map[string]struct{ code, param string }{
		"?repair=yes":              {"parameter_invalid", "repair"},
		"?repair=":                 {"parameter_invalid", "repair"},
		"?deep=1":                  {"parameter_invalid", "deep"},
		"?repair=true&repair=true": {"parameter_invalid", "repair"},
		"?repiar=true":             {"unknown_parameter", "repiar"},
		"?item=drop":               {"unknown_parameter", "item"},
		"?item_id=":                {"id_invalid", "item_id"},
		"?item_id=DROP":            {"id_invalid", "item_id"},
	} {
		p := wantProblem(t, s.post(t, reconcilePath+query, "root", auth.RoleAdmin, "").Result(), 400, want.code)
		if p["param"] != want.param {
			t.Errorf("%q: param %v, want %q", query, p["param"], want.param)
		}
	}
	wantProblem(t, s.post(t, reconcilePath, "root", auth.RoleAdmin, `{"repair":true}`).Result(), 400, "unknown_field")
	wantProblem(t, s.post(t, reconcilePath, "alice", auth.RoleBuyer, "").Result(), 403, "forbidden")
	wantProblem(t, s.post(t, reconcilePath, "shop", auth.RoleService, "").Result(), 403, "forbidden")
	wantProblem(t, s.post(t, reconcilePath, "", "", "").Result(), 401, "auth_missing")
	wantProblem(t, s.get(t, reconcilePath, "root", auth.RoleAdmin).Result(), 405, "method_not_allowed")
	for err, want := range map[error]int{catalog.ErrItemNotFound: 404, database.ErrUnavailable: 503} {
		s := open(t, reconciling(func(context.Context, reconcile.Options) (reconcile.Report, error) {
			return reconcile.Report{}, fmt.Errorf("reconcile: %w", err)
		}))
		if w := s.post(t, reconcilePath, "root", auth.RoleAdmin, ""); w.Code != want {
			t.Errorf("%v: %d, want %d", err, w.Code, want)
		}
	}
	wantProblem(t, open(t).post(t, reconcilePath, "root", auth.RoleAdmin, "").Result(), 404, "route_not_found")
}

// A reconciliation may take longer than the server allows for a purchase.
func TestReconcile_MayExceedTheServersTimeLimits(t *testing.T) {
	t.Parallel()
	request := "POST " + reconcilePath + " HTTP/1.1\r\nHost: shop\r\nAuthorization: " + bearer(t, "root", auth.RoleAdmin) + "\r\nContent-Length: 0\r\n\r\n"
	wantInTime(t, request, `"balanced":true`, func(brief time.Duration) http.Handler {
		return open(t, reconciling(func(ctx context.Context, _ reconcile.Options) (reconcile.Report, error) {
			select {
			case <-ctx.Done():
				return reconcile.Report{}, context.Cause(ctx)
			case <-time.After(3 * brief):
				return reconcile.Report{Balanced: true}, nil
			}
		}))
	})
}

// wantInTime sends a request to a server with short limits, and wants a 200 and that text. On a busy
// machine the server may run out of time to read the request; then it is repeated with longer limits.
func wantInTime(t *testing.T, request, want string, shop func(brief time.Duration) http.Handler) {
	t.Helper()
	for brief := 500 * time.Millisecond; ; brief *= 2 {
		addr := handlertest.Serve(t, shop(brief), func(srv *http.Server) { srv.ReadTimeout, srv.WriteTimeout = brief, brief })
		w := handlertest.Dial(t, addr)
		w.Send(t, request)
		resp, err := w.TryAnswer()
		if err != nil && brief < 4*time.Second {
			continue
		}
		if err != nil {
			t.Fatalf("from a server with limits of %v: %v", brief, err)
		}
		body, err := io.ReadAll(resp.Body)
		if err = errors.Join(err, resp.Body.Close()); err != nil || resp.StatusCode != 200 || !strings.Contains(string(body), want) {
			t.Errorf("from a server with limits of %v: %d %s, %v", brief, resp.StatusCode, body, err)
		}
		return
	}
}
