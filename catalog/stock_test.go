package catalog

import (
	"context"
	"fmt"
	"testing"
	"time"

	"flashsale/internal/pause"
)

// slowStock answers each query in a time that is well within the limit of one.
type slowStock struct{ took time.Duration }

func (s slowStock) Left(ctx context.Context, items []string) ([]int64, error) {
	if !pause.For(ctx, s.took) {
		return nil, context.Cause(ctx)
	}
	return make([]int64, len(items)), nil
}

// TestStock_ManyItems: a list so long that its stock takes several queries is shown with it,
// and queries for single items go on.
func TestStock_ManyItems(t *testing.T) {
	t.Parallel()
	s := newShop(Item{ID: "a", StockLeft: 9})
	for i := range 5 * stockChunk {
		id := fmt.Sprintf("i%d", i)
		s.items[id] = Item{ID: id, StockLeft: 9}
	}
	cfg := Config{StockTimeout: 250 * time.Millisecond, OnError: func(err error) { t.Errorf("got error %v", err) }}
	inBubble(t, s, cfg, func(t *testing.T, c *Catalog) {
		c.stock = slowStock{100 * time.Millisecond}
		l, err := c.List(t.Context())
		if err != nil || l.Items[0].StockLeft != 0 {
			t.Errorf("%d left, %v, want the live 0", l.Items[0].StockLeft, err)
		}
		wantItem(t, c, "a", 0)
	})
}
