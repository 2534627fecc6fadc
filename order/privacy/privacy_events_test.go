package privacy

import (
	"strings"
	"testing"
	"time"

	"flashsale/internal/testing/await"
	"flashsale/order/ordertest"
	"flashsale/order/store/storetest"
)

// TestStore_Telling_Erased: unsent events of an erased buyer's orders name the pseudonym.
func TestStore_Telling_Erased(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	storetest.MustInsert(t, s, ordertest.Asking("item", 9, 2, time.Minute))
	ordertest.SubscribeAll(t, s)
	storetest.MustCommit(t, s, ordertest.Bought("o1", "item", "alice", "k", 1), ordertest.Bought("o2", "item", "alice2", "k", 1))
	if _, err := s.Pay(await.Context(t), "o1", ordertest.Money("psp-1", 1)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Pay(await.Context(t), "o1", ordertest.Money("psp-2", 1)); err == nil {
		t.Fatal("a second payment was accepted")
	}
	if n, err := EraseFromItem(await.Context(t), s, "alice", "item", "erased-1", Erasure{Actor: "root"}); err != nil || n != 1 {
		t.Fatal(n, err)
	}
	var events []struct{ Type, OrderID, Body string }
	if err := s.Reader().Raw("SELECT type, order_id, body FROM webhook_events").Scan(&events).Error; err != nil || len(events) == 0 {
		t.Fatal(len(events), err)
	}
	for _, e := range events {
		want := `"user_id":"erased-1"`
		if e.OrderID == "o2" {
			want = `"user_id":"alice2"`
		}
		if !strings.Contains(e.Body, want) || strings.Contains(e.Body, `"alice"`) {
			t.Errorf("%s of %s: %s", e.Type, e.OrderID, e.Body)
		}
	}
}
