package handler

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"flashsale/catalog"
	"flashsale/handler/auth"
	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/store/database"
)

// failingItems is an unavailable catalogue.
type failingItems struct {
	fakeItems
	err error
}

func (f failingItems) View(context.Context, string) (*catalog.View, error) { return nil, f.err }
func (f failingItems) Warm(context.Context, string) (*catalog.View, error) { return nil, f.err }

// The detail of a 503 suggests repeating the request with its key only if the route requires an
// Idempotency-Key. For a read it suggests retrying, and for a change it says that the change
// may have been made.
func TestUnavailable_DetailFitsTheRoute(t *testing.T) {
	t.Parallel()
	const orderPath = "/v1/orders/" + someOrderID
	for _, failure := range []error{
		inventory.ErrUnavailable, inventory.ErrRebuilding, inventory.ErrOverloaded, database.ErrUnavailable, context.DeadlineExceeded,
	} {
		s := open(t, func(c *Config) {
			c.Items = failingItems{fakeItems{"thing": someItem()}, failure}
			c.Tasks = &fakeTasks{err: failure}
		})
		s.orders.place = func(context.Context, order.Purchase) (order.Placed, error) { return order.Placed{}, failure }
		s.orders.get = func(string) (order.Order, error) { return order.Order{}, failure }
		s.orders.pay = func(string, order.Payment) (order.Order, error) { return order.Order{}, failure }
		s.orders.cancel = func(string, order.Canceller) (order.Order, error) { return order.Order{}, failure }
		s.sales.err, s.changes.err = failure, failure
		for _, q := range []struct {
			method, path string
			role         auth.Role
			body         string
			want         string // key, read or change
		}{
			{"POST", purchasePath, auth.RoleBuyer, wireBody, "key"},
			{"POST", thingPath + "/restock", auth.RoleAdmin, `{"quantity":1,"reason":"more"}`, "key"},
			{"GET", "/v1/items/thing", auth.RoleBuyer, "", "read"},
			{"GET", orderPath, auth.RoleBuyer, "", "read"},
			{"GET", thingPath + "/ledger", auth.RoleAdmin, "", "read"},
			{"GET", "/v1/admin/queue", auth.RoleAdmin, "", "read"},
			{"GET", "/v1/admin/dead", auth.RoleAdmin, "", "read"},
			{"POST", "/v1/admin/items", auth.RoleAdmin, `{"id":"new","name":"n","price_minor":1,"currency":"EUR","stock":1}`, "change"},
			{"PATCH", thingPath, auth.RoleAdmin, `{"name":"n"}`, "change"},
			{"POST", thingPath + "/pause", auth.RoleAdmin, "", "change"},
			{"POST", thingPath + "/close", auth.RoleAdmin, "", "change"},
			{"POST", thingPath + "/warm", auth.RoleAdmin, "", "change"},
			{"POST", orderPath + "/cancel", auth.RoleBuyer, "", "change"},
			{"POST", orderPath + "/cancel", auth.RoleAdmin, "", "change"},
			{"POST", orderPath + "/payment", auth.RoleService, `{"reference":"r","amount_minor":1,"currency":"EUR"}`, "change"},
			{"POST", "/v1/admin/dead/task/retry", auth.RoleAdmin, "", "change"},
			{"POST", "/v1/admin/dead/task/discard", auth.RoleAdmin, "", "change"},
		} {
			// The presence of the header makes no difference: the detail depends on the route.
			w := s.send(t, q.method, q.path, "alice", q.role, q.body, "Idempotency-Key", "k", "If-Match", "*")
			if w.Code != 503 {
				t.Errorf("%s %s with %v: status = %d, want 503: %s", q.method, q.path, failure, w.Code, w.Body)
				continue
			}
			detail := fmt.Sprint(decodeBody(t, w.Body)["detail"])
			got := "read"
			switch {
			case strings.Contains(detail, "Idempotency-Key"):
				got = "key"
			case strings.Contains(detail, "may not have been applied"):
				got = "change"
			}
			if got != q.want {
				t.Errorf("%s %s with %v: %q speaks to a %s, want %s", q.method, q.path, failure, detail, got, q.want)
			}
		}
	}
}

// No answer mentions the header to requests without it.
func TestErrorTable_OnlyKeyedRoutesNameTheKey(t *testing.T) {
	t.Parallel()
	for _, row := range errorTable {
		for _, method := range []string{"GET", "HEAD", "POST", "PATCH", "DELETE"} {
			if p := row.answer.For(false, method); p.Status == 503 && strings.Contains(p.Detail, "Idempotency-Key") {
				t.Errorf("%v tells a %s: %s", row.err, method, p.Detail)
			}
		}
	}
}
