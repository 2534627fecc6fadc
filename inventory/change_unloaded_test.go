package inventory

import (
	"context"
	"errors"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// pauses returns a commit of the pause of the shop's item.
func (s *shop) pauses(t *testing.T) func(context.Context) (int64, error) {
	t.Helper()
	return func(context.Context) (int64, error) {
		s.source.set(func(src *stored) {
			sale := src.sales[s.item]
			sale.Control, sale.Version = "paused", 2
			src.sales[s.item] = sale
		})
		return 2, nil
	}
}

// TestInventory_Change_NotLoaded: an item whose sale is missing is changed only in the
// database; the next purchase loads it with the change.
func TestInventory_Change_NotLoaded(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(10, 1), 0)
		v := s.inventory(t, Config{})
		if err := v.Change(await.Context(t), s.item, Change{AddLeft: 5, PerUserLimit: ptr(int64(3))}, func(context.Context) (int64, error) {
			s.stock(5, 2)
			s.source.set(func(src *stored) {
				sale := src.sales[s.item]
				sale.PerUserLimit = 3
				src.sales[s.item] = sale
			})
			return 2, nil
		}); err != nil {
			t.Fatal(err)
		}
		if st := s.state(t); len(st.sale) != 0 || s.source.loads != 0 {
			t.Errorf("%d loads, sale %v, want none", s.source.loads, st.sale)
		}
		mustBuy(t, v, s.request("u", "k", 3))
		if st := s.audit(t); st.left(t) != 12 {
			t.Errorf("left is %d, want 12", st.left(t))
		}
	})
}

// TestInventory_Change_WhileLoading: a pause returns while another process loads the sale, and
// that load, which has read the item before, does not open it unpaused.
func TestInventory_Change_WhileLoading(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(10, 1), 0)
		v, other := s.inventory(t, Config{}), s.inventory(t, Config{})
		read, goOn := make(chan struct{}, 10), make(chan struct{})
		s.source.set(func(src *stored) {
			src.after = func(ctx context.Context) error {
				read <- struct{}{}
				select {
				case <-goOn:
					return nil
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			}
		})
		outcome := make(chan Outcome, 1)
		go func() { outcome <- buy(t, other, s.request("u", "k", 1)) }()
		<-read
		if err := v.Change(await.Context(t), s.item, Change{Control: ptr("paused")}, s.pauses(t)); err != nil {
			t.Fatal(err)
		}
		select {
		case o := <-outcome:
			t.Fatalf("the purchase was answered before the load: %+v", o)
		default:
		}
		// A commit that changes nothing does not interrupt the load.
		if err := v.Change(await.Context(t), s.item, Change{PerUserLimit: ptr(int64(1))}, func(context.Context) (int64, error) {
			return 0, ErrUnchanged
		}); !errors.Is(err, ErrUnchanged) {
			t.Errorf("a change that was not made: %v", err)
		}
		close(goOn)
		if o := <-outcome; !errors.Is(o.Err, ErrPaused) {
			t.Errorf("a purchase after the load: %+v, want ErrPaused", o)
		}
		if st := s.state(t); st.sale["control"] != "paused" || len(st.queue) != 0 || s.source.loads != 2 {
			t.Errorf("sale %v after %d loads, %d orders; want it paused after 2", st.sale, s.source.loads, len(st.queue))
		}
	})
}

// TestInventory_Change_LoadEnds: a load that has read the item before the change opens the
// sale before the change reaches it. The change is applied to that sale; a change with an
// unknown outcome drops it.
func TestInventory_Change_LoadEnds(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		for name, unknown := range map[string]error{"Made": nil, "Unknown": errTest} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s := newShop(t, rdb, open(10, 1), 0)
				v, other := s.inventory(t, Config{}), s.inventory(t, Config{})
				l, err := other.locks.Acquire(await.Context(t), v.keys.lock(s.item))
				if err != nil {
					t.Fatal(err)
				}
				pauses := s.pauses(t)
				err = v.Change(await.Context(t), s.item, Change{Control: ptr("paused")}, func(ctx context.Context) (int64, error) {
					if err := other.load(await.Context(t), l, s.item); err != nil {
						t.Error(err)
					}
					version, err := pauses(ctx)
					return version, errors.Join(err, unknown)
				})
				if !errors.Is(err, unknown) || (err == nil) != (unknown == nil) {
					t.Errorf("change: %v, want %v", err, unknown)
				}
				if err := l.Release(await.Context(t)); err != nil {
					t.Error(err)
				}
				if st := s.state(t); unknown == nil && st.sale["control"] != "paused" || unknown != nil && len(st.sale) != 0 {
					t.Errorf("the sale is %v", st.sale)
				}
				mustRefuse(t, v, s.request("u", "k", 1), ErrPaused)
			})
		}
	})
}

// TestInventory_Change_Stopped: a sale that must not be loaded is not changed either.
func TestInventory_Change_Stopped(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(10, 1), 0)
		v := s.inventory(t, Config{MayLoad: func(context.Context, []string) (map[string]error, error) {
			return map[string]error{s.item: ErrStopped}, nil
		}})
		for _, marked := range []bool{false, true} {
			if marked {
				if err := Stop(await.Context(t), rdb, 1, []string{s.item}); err != nil {
					t.Fatal(err)
				}
			}
			before := s.state(t)
			err := v.Change(await.Context(t), s.item, Change{Control: ptr("paused")}, func(context.Context) (int64, error) {
				t.Error("it was committed")
				return 2, nil
			})
			if !errors.Is(err, ErrStopped) {
				t.Errorf("change: %v, want ErrStopped", err)
			}
			same(t, before, s.state(t))
		}
	})
}
