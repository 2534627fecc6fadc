package store

import (
	"context"
	"errors"
	"sync"
	"testing"

	"gorm.io/gorm"

	"flashsale/internal/testing/await"
	"flashsale/order/ordertest"
)

// TestStore_Loading_Large: a small sale is loaded although large ones wait for each other.
func TestStore_Loading_Large(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	mustInsert(t, s, ordertest.NewItem("large", 10*largeLoad, 1))
	mustInsert(t, s, ordertest.NewItem("small", 10, 1))
	if err := s.Writer().Exec("UPDATE items SET sold = ? WHERE id = 'large'", largeLoad).Error; err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(await.Context(t))
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	large := make(chan struct{}, 10)
	for range cap(large) {
		all.Go(func() {
			err := s.Loading(ctx, []string{"large"}, func(*gorm.DB) error {
				large <- struct{}{}
				<-ctx.Done()
				return context.Cause(ctx)
			})
			if !errors.Is(err, context.Canceled) {
				t.Errorf("load of a large sale: %v", err)
			}
		})
	}
	<-large
	<-large
	for range 20 { // some of the large loads may still be about to begin
		err := s.Loading(await.Context(t), []string{"small"}, func(tx *gorm.DB) error {
			_, err := ReadItem(tx, "small")
			return err
		})
		if err != nil {
			t.Fatalf("load of a small sale: %v", err)
		}
	}
}
