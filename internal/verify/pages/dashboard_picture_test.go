//go:build unix

package pages_test

import (
	"fmt"
	"net/http"
	"testing"

	"flashsale/internal/testing/browser"
)

// pictureOverview shows the overview while buyers buy, in waves of different sizes.
func pictureOverview(t *testing.T, o browser.Options) *browser.Page {
	t.Helper()
	s := running(t)
	admin := s.token(t, "root", "admin")
	items := []string{"concert-ticket", "limited-print", "sneaker-42"}
	for _, item := range items {
		s.call(t, http.StatusCreated, http.MethodPost, "/v1/admin/items", admin,
			map[string]any{"id": item, "name": item, "price_minor": 4900, "currency": "EUR", "stock": 400, "per_user_limit": 1000}, nil)
	}
	createSale(t, s, admin, "vinyl", 60)
	s.call(t, http.StatusOK, http.MethodPost, "/v1/admin/items/vinyl/pause", admin, nil, nil)
	buyer := make([]string, 20)
	for i := range buyer {
		buyer[i] = s.token(t, fmt.Sprintf("picture-%d", i), "buyer")
	}
	p := dashboardPage(t, s, admin, "/admin", o)
	p.WaitText("#stream", "Live")
	sold := 0
	for wave := range 30 {
		for i := range 4 + wave*7%19 {
			s.call(t, http.StatusCreated, http.MethodPost, "/v1/items/"+items[sold%7%3]+"/orders", buyer[i%len(buyer)], map[string]int{"quantity": 1}, nil,
				"Idempotency-Key", fmt.Sprint("picture-", sold), "Prefer", "wait=10")
			sold++
		}
		// The next figures, a second later, include them.
		p.WaitText("#tiles", fmt.Sprintf("%d since ", sold))
	}
	p.WaitText("#problem-list", "No problems found")
	p.WaitText("#paused-list", "vinyl")
	return p
}
