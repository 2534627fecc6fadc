package timeline

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"gorm.io/gorm"

	"flashsale/internal/testing/await"
	"flashsale/order"
	"flashsale/order/schema"
	"flashsale/order/store/storetest"
)

// leaving is a connection whose client leaves before a query.
type leaving struct {
	gorm.ConnPool
	before string // part of the query; "" for any
	leave  func()
}

func (l leaving) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	l.at(query)
	return l.ConnPool.QueryContext(ctx, query, args...)
}

func (l leaving) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	l.at(query)
	return l.ConnPool.QueryRowContext(ctx, query, args...) //nolint:forbidigo // the test fails if a timeline is read in this way
}

func (l leaving) at(query string) {
	if l.before == "" || query == l.before {
		l.leave()
	}
}

// TestRows_read_Left: a client that leaves while its timeline is read gets no panic.
func TestRows_read_Left(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	row := schema.Order{ID: "id", ItemID: "item", UserID: "u", Quantity: 1, Currency: "EUR", Status: string(order.StatusConfirmed), IdempotencyKey: "k"}
	if err := s.Writer().Create(&row).Error; err != nil {
		t.Fatal(err)
	}
	for _, before := range []string{"", selectReleasing} {
		left, leave := context.WithCancel(await.Context(t))
		err := s.Reader().WithContext(await.Context(t)).Transaction(func(tx *gorm.DB) error {
			session := tx.WithContext(left)
			session.Statement.ConnPool = leaving{session.Statement.ConnPool, before, leave}
			if err := new(rows).read(session, "id"); !errors.Is(err, context.Canceled) {
				t.Errorf("left before %q: got %v, want context.Canceled", before, err)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		if left.Err() == nil {
			t.Errorf("the client did not leave before %q", before)
		}
	}
}
