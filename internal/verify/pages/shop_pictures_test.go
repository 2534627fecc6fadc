//go:build unix

package pages_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"flashsale/internal/testing/browser"
)

// pictureItem shows the page of an item of which a part is sold, in the language of the browser.
func pictureItem(t *testing.T, o browser.Options) *browser.Page {
	s := running(t)
	item := map[string]any{
		"name": "Aero Runner, limited edition", "description": "A light shoe for long runs.\nSizes 36 to 47.",
		"stock": 100, "per_user_limit": 3, "payment_window_seconds": 600, "closes_at": in(2 * time.Hour),
	}
	id := "aero-runner"
	if o.Lang != "" {
		id = "aero-runner-zh"
		item["name"], item["description"], item["currency"] = "Aero Runner 限量版跑鞋", "轻量长跑鞋。\n尺码 36 至 47。", "CNY"
	}
	s.newItem(t, id, item)
	for i := range 12 {
		buyer := fmt.Sprintf("%s-buyer-%d", id, i)
		s.call(t, http.StatusCreated, http.MethodPost, "/v1/items/"+id+"/orders", s.token(t, buyer, "buyer"), map[string]int{"quantity": 3}, nil,
			"Idempotency-Key", "k", "Prefer", "wait=10")
	}
	p := browser.New(t, o)
	enter(p, s.URL, "alice", "/items/"+id)
	p.WaitText("#left", "64")
	p.WaitVisible("#countdown")
	return p
}
