package handler

import (
	"strings"
	"testing"

	"flashsale/handler/auth"
)

// TestNearNames: an item's JSON and its creation name the stock differently, so the refusal of
// one name suggests the other. The same applies to other likely mistakes.
func TestNearNames(t *testing.T) {
	t.Parallel()
	s := open(t)
	const head = `{"id":"a","name":"A","price_minor":1,"currency":"EUR","stock":1,`
	for _, tc := range []struct {
		method, body, param, want string
	}{
		{"POST", head + `"stock_total":5}`, "stock_total", "named stock"},
		{"POST", head + `"stock_left":5}`, "stock_left", "named stock"},
		{"POST", `{"stock_total":5}`, "stock_total", "named stock"},
		{"POST", head + `"price":5}`, "price", "price_minor"},
		{"POST", head + `"state":"open"}`, "state", "opens_at"},
		{"POST", head + `"version":1}`, "version", "omit it"},
		{"POST", head + `"perUserLimit":5}`, "perUserLimit", "Use per_user_limit"},
		{"POST", head + `"Opens-At":5}`, "Opens-At", "Use opens_at"},
		{"POST", head + `"colour":5}`, "colour", "omit it"},
		{"POST", head + `"zeta":5,"alpha":5,"stock_left":5}`, "alpha", "omit it"},
		{"PATCH", `{"stock_total":5}`, "stock_total", "/restock"},
		{"PATCH", `{"stock_left":5}`, "stock_left", "/restock"},
		{"PATCH", `{"quantity":5}`, "quantity", "/restock"},
		{"PATCH", `{"state":"closed"}`, "state", "/close"},
		{"PATCH", `{"version":5}`, "version", "If-Match"},
		{"POST", head + `"image":"/a.jpg"}`, "image", "image_url"},
		{"PATCH", `{"Name":"x"}`, "Name", "Use name"},
	} {
		path, code := "/v1/admin/items", "unknown_field"
		var headers []string
		if tc.method == "PATCH" {
			path, headers = thingPath, []string{"If-Match", "*"}
		}
		got := wantProblem(t, s.send(t, tc.method, path, "root", auth.RoleAdmin, tc.body, headers...).Result(), 400, code)
		if detail, ok := got["detail"].(string); !ok || got["param"] != tc.param || !strings.Contains(detail, tc.want) {
			t.Errorf("%s %s: param %v, detail %v; want %s and %q", tc.method, tc.body, got["param"], got["detail"], tc.param, tc.want)
		}
	}
	got := wantProblem(t, s.send(t, "PATCH", thingPath, "root", auth.RoleAdmin, `{"stock":5}`, "If-Match", "*").Result(), 422, "field_fixed")
	if detail, ok := got["detail"].(string); !ok || !strings.Contains(detail, "/restock") {
		t.Errorf("PATCH of stock: %v", got["detail"])
	}
}
