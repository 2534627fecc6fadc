package order

import (
	"context"
	"sync"
	"testing"

	"flashsale/inventory"
)

// shelf is a Releaser that records what came back, by order. It knows an order
// only once, as the script does.
type shelf struct {
	mu       sync.Mutex
	units    map[string]int64
	calls    map[string]int
	answer   inventory.ReleaseStatus // in place of its own, unless 0
	err      error
	dropped  []string
	dropFail error
}

func newShelf() *shelf { return &shelf{units: map[string]int64{}, calls: map[string]int{}} }

func (s *shelf) Release(_ context.Context, item string, orders []inventory.Released) ([]inventory.ReleaseStatus, int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	status := make([]inventory.ReleaseStatus, len(orders))
	for i, o := range orders {
		s.calls[o.OrderID]++
		switch {
		case s.err != nil:
		case s.answer != 0:
			status[i] = s.answer
		case s.units[o.OrderID] > 0:
			status[i] = inventory.ReleaseRepeated
		default:
			s.units[o.OrderID] = o.Quantity
			status[i] = inventory.ReleaseDone
		}
	}
	return status, 0, s.err
}

func (s *shelf) Distrust(_ context.Context, item string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropped = append(s.dropped, item)
	return s.dropFail
}

func (s *shelf) Unload(ctx context.Context, item string) error { return s.Distrust(ctx, item) }

func (s *shelf) set(answer inventory.ReleaseStatus, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer, s.err = answer, err
}

// onShelf makes a worker's side whose units come back to a shelf.
func onShelf(t *testing.T, s *Store) (*Fulfiller, *shelf) {
	t.Helper()
	f := NewFulfiller(s, nil, nil, func(err error) { t.Logf("heard %v", err) })
	sh := newShelf()
	f.returns.stock = sh
	return f, sh
}
