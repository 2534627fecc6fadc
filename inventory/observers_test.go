package inventory

import (
	"errors"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/queue"
)

// TestNew_Observe: New gives the observers the Inventory that it returns, and fails with
// their error.
func TestNew_Observe(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(2, 1), 0)
		var given *Inventory
		v := s.inventory(t, Config{Observe: func(v *Inventory) (Observers, error) {
			given = v
			return Observers{}, nil
		}})
		if given != v {
			t.Error("the observers were made for another Inventory")
		}
		mustBuy(t, v, s.request("a", "k", 1)) // no observer is required
		failed := errors.New("no observers")
		v, err := New(await.Context(t), rdb, newLocks(t, rdb, lockConfig), []*queue.Queue{s.queue}, s.source, Config{
			Observe: func(*Inventory) (Observers, error) { return Observers{}, failed },
		})
		if v != nil || !errors.Is(err, failed) {
			t.Errorf("New returned %v and %v, want the error of the observers", v, err)
		}
	})
}
