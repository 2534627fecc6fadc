package catalog

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestListen_DuringLook: what was read before a new subscription may have changed
// without a word, also when it comes in after it.
func TestListen_DuringLook(t *testing.T) {
	t.Parallel()
	s := newShop(Item{ID: "old", StockLeft: 5, Version: 1})
	inBubble(t, s, Config{LoadTimeout: time.Hour, Wait: time.Hour}, func(t *testing.T, c *Catalog) {
		gate := s.holdBack()
		done := make(chan struct{})
		go func() {
			defer close(done)
			wantItem(t, c, "old", 5)
		}()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			wantUnknown(t, c, "new")
		}()
		synctest.Wait() // the questions are on their way, their answers settled
		s.set(func(s *shop) {
			s.items["old"] = Item{ID: "old", StockLeft: 4, Version: 2}
			s.items["new"] = Item{ID: "new", StockLeft: 1, Version: 1}
			s.pause = nil
		})
		c.heardNothing() // the messages of both went by before it
		close(gate)
		<-done
		<-ended
		wantItem(t, c, "new", 1)
		wantItem(t, c, "old", 5) // as it was, while it is loaded anew
		synctest.Wait()
		wantItem(t, c, "old", 4)
	})
}
