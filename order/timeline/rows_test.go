package timeline

import (
	"context"
	"errors"
	"testing"

	"gorm.io/gorm"

	"flashsale/internal/testing/await"
	"flashsale/order/store/storetest"
)

// TestRows_read_Left: a client that leaves while its timeline is read gets no panic.
func TestRows_read_Left(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	left, leave := context.WithCancel(await.Context(t))
	leave()
	err := s.Reader().WithContext(await.Context(t)).Transaction(func(tx *gorm.DB) error {
		if err := new(rows).read(tx.WithContext(left), "id"); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want context.Canceled", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
