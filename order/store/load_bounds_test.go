package store_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"gorm.io/gorm"

	"flashsale/internal/testing/await"
	"flashsale/order/ordertest"
	"flashsale/order/store"
	"flashsale/order/store/storetest"
)

// TestStore_Loading_Bounds: loads and long reads have their own connections, so buyers'
// reads are answered while all of those are in use; and large loads leave some of them to
// small ones.
func TestStore_Loading_Bounds(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	storetest.MustInsert(t, s, ordertest.NewItem("large", 10*store.LargeLoad, 1))
	storetest.MustInsert(t, s, ordertest.NewItem("small", 10, 1))
	if err := s.Writer().Exec("UPDATE items SET sold = ? WHERE id = 'large'", store.LargeLoad).Error; err != nil {
		t.Fatal(err)
	}
	storetest.MustCommit(t, s, ordertest.Bought("order", "small", "u", "k", 1))
	ctx, cancel := context.WithCancel(await.Context(t))
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	began := make(chan string, 100)
	load := func(item string) {
		all.Go(func() {
			err := s.Loading(ctx, []string{item}, func(tx *gorm.DB) error {
				if _, err := store.ReadItem(tx, item); err != nil {
					return err
				}
				began <- item
				<-ctx.Done()
				return context.Cause(ctx)
			})
			if !errors.Is(err, context.Canceled) {
				t.Errorf("load of %s: %v", item, err)
			}
		})
	}
	wait := func(want string) {
		t.Helper()
		select {
		case got := <-began:
			if got != want {
				t.Fatalf("%s is loaded, want %s", got, want)
			}
		case <-time.After(ordertest.Limit):
			t.Fatalf("%s is not loaded", want)
		}
	}
	for range 6 {
		load("large")
	}
	for range store.LargeLoads {
		wait("large")
	}
	for range store.Loaders - store.LargeLoads {
		load("small")
		wait("small")
	}
	for range store.LongReaders {
		all.Go(func() {
			err := store.Snapshot(ctx, s, func(tx *gorm.DB) error {
				if _, err := store.ReadItem(tx, "small"); err != nil {
					return err
				}
				began <- "snapshot"
				<-ctx.Done()
				return context.Cause(ctx)
			})
			if !errors.Is(err, context.Canceled) {
				t.Errorf("snapshot: %v", err)
			}
		})
		wait("snapshot")
	}
	for range 2 * store.Readers {
		if o, err := s.Order(await.Context(t), "order"); err != nil || o.ID != "order" {
			t.Fatalf("an order while sales are loaded: %+v, %v", o, err)
		}
	}
	select {
	case item := <-began:
		t.Errorf("another load of %s began beside %d", item, store.Loaders)
	default:
	}
}
