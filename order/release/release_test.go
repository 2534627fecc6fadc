package release

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/breaker"
	"flashsale/internal/pause"
	"flashsale/inventory"
	"flashsale/order/store"
)

// scripted is a stock whose calls answer one after the other; the last answer is repeated.
type scripted struct {
	answers []answer
	asked   [][]string // the orders of each call
}

type answer struct {
	done     int // how many orders are released
	sequence int64
	err      error
	took     time.Duration
}

func (s *scripted) Release(ctx context.Context, _ string, orders []inventory.Released) ([]inventory.ReleaseStatus, int64, error) {
	var ids []string
	for i := range orders {
		ids = append(ids, orders[i].OrderID)
	}
	a := s.answers[min(len(s.asked), len(s.answers)-1)]
	s.asked = append(s.asked, ids)
	pause.For(ctx, a.took)
	status := make([]inventory.ReleaseStatus, len(orders))
	for i := range min(a.done, len(status)) {
		status[i] = inventory.ReleaseDone
	}
	return status, a.sequence, a.err
}

func (s *scripted) Invalidate(context.Context, string) error { return nil }
func (s *scripted) Unload(context.Context, string) error     { return nil }

// TestReleaser_ReleaseToSale_Again: after a lost reply, only the orders without one are released again, a
// few times. A Redis that is known to be down, does not respond, or has refused, is not asked again.
func TestReleaser_ReleaseToSale_Again(t *testing.T) {
	t.Parallel()
	list := []store.Release{{OrderID: "a", Quantity: 1}, {OrderID: "b", Quantity: 1}, {OrderID: "c", Quantity: 1}}
	for name, test := range map[string]struct {
		answers  []answer
		asked    string
		done     int
		sequence int64
		err      error
	}{
		"Answered":  {answers: []answer{{done: 3, sequence: 7}}, asked: "[[a b c]]", done: 3, sequence: 7},
		"Page lost": {answers: []answer{{done: 1, sequence: 7, err: io.EOF}, {done: 0, err: io.EOF}, {done: 2, sequence: 8}}, asked: "[[a b c] [b c] [b c]]", done: 3, sequence: 8},
		"All lost":  {answers: []answer{{done: 2, sequence: 7, err: io.EOF}, {err: io.EOF}}, asked: "[[a b c] [c] [c] [c]]", done: 2, sequence: 7, err: io.EOF},
		"Silent":    {answers: []answer{{err: io.EOF, took: time.Second}}, asked: "[[a b c]]", err: io.EOF},
		"Down":      {answers: []answer{{err: fmt.Errorf("release: %w", breaker.ErrOpen)}}, asked: "[[a b c]]", err: breaker.ErrOpen},
		"Refused":   {answers: []answer{{err: fmt.Errorf("release: %w", refused("OOM"))}}, asked: "[[a b c]]", err: refused("OOM")},
	} {
		t.Run(name, inOwnTime(func(t *testing.T) {
			stock := &scripted{answers: test.answers}
			r := New(nil, nil, 1, nil, func(err error) { t.Error(err) })
			r.Stock = stock
			status, sequence, err := r.ReleaseToSale(t.Context(), "item", list)
			done := len(slices.DeleteFunc(status, func(s inventory.ReleaseStatus) bool { return s != inventory.ReleaseDone }))
			if asked := fmt.Sprint(stock.asked); asked != test.asked || done != test.done || sequence != test.sequence || !errors.Is(err, test.err) {
				t.Errorf("asked for %s, %d released, sequence %d, %v; want %s, %d, %d, %v", asked, done, sequence, err, test.asked, test.done, test.sequence, test.err)
			}
		}))
	}
}

// inOwnTime runs a test in virtual time.
func inOwnTime(test func(t *testing.T)) func(t *testing.T) {
	return func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, test)
	}
}

// refused is an error reply of Redis.
type refused string

func (r refused) Error() string { return string(r) }
func (refused) RedisError()     {}

var _ redis.Error = refused("")
