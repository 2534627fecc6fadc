package handler

import (
	"testing"

	"flashsale/catalog"
	"flashsale/handler/auth"
)

// The list can be filtered by state; a page is full if as many items have the state, and the cursor
// continues after its last item.
func TestAdminItems_ByState(t *testing.T) {
	t.Parallel()
	var items []catalog.Item
	for i, control := range []catalog.Control{catalog.ControlOpen, catalog.ControlPaused, catalog.ControlPaused, catalog.ControlClosed, catalog.ControlPaused} {
		item := someItem()
		item.ID, item.Control = "item-"+string(rune('a'+i)), control
		items = append(items, item)
	}
	s := open(t, func(c *Config) { c.Items = &shownItems{list: &catalog.ListView{Items: items}} })
	page := func(query string) (ids, next string) {
		t.Helper()
		w := s.get(t, "/v1/admin/items"+query, "root", auth.RoleAdmin)
		if w.Code != 200 {
			t.Fatalf("%s: %d %s", query, w.Code, w.Body)
		}
		b := decodeBody(t, w.Body)
		for _, one := range b["items"].([]any) {
			id := one.(map[string]any)["id"].(string)
			ids += id[len(id)-1:]
		}
		return ids, b["next_cursor"].(string)
	}
	for query, want := range map[string]string{"": "abcde", "?state=paused": "bce", "?state=open": "a", "?state=sold_out": "", "?state=closed": "d"} {
		if got, next := page(query); got != want || next != "" {
			t.Errorf("%s: %s, next %q, want %s", query, got, next, want)
		}
	}
	got, next := page("?state=paused&limit=2")
	if got != "bc" || next == "" {
		t.Fatalf("first page %s, next %q", got, next)
	}
	if got, next = page("?state=paused&limit=2&cursor=" + next); got != "e" || next != "" {
		t.Errorf("second page %s, next %q", got, next)
	}
	for query, code := range map[string]string{"?state=gone": "parameter_invalid", "?state=": "parameter_invalid", "?cursor=x": "cursor_invalid", "?limit=0": "limit_range"} {
		wantProblem(t, s.get(t, "/v1/admin/items"+query, "root", auth.RoleAdmin).Result(), 400, code)
	}
	wantProblem(t, s.get(t, "/v1/admin/items", "alice", auth.RoleBuyer).Result(), 403, "forbidden")
}
