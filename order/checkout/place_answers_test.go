package checkout_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"flashsale/catalog"
	"flashsale/internal/bucket"
	"flashsale/internal/testing/await"
	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/checkout"
	"flashsale/order/ordertest"
	"flashsale/order/release"
	"flashsale/order/shoptest"
	"flashsale/order/store/storetest"
)

// unmarked is the part of a fake stock that has no sold-out mark.
type unmarked struct{ checkout.Stock }

func (unmarked) Refusal(string, string, string, int64) error { return nil }

// answeringStock is a stock whose answers the test gives.
type answeringStock struct {
	unmarked
	requests []*inventory.Request
	answer   func(r *inventory.Request) inventory.Outcome
	heldOf   string // the item of the last call of Held
}

func (a *answeringStock) Submit(r *inventory.Request) error {
	a.requests = append(a.requests, r)
	r.Named("o1")
	r.Done(a.answer(r))
	return nil
}

func (a *answeringStock) Held(_ context.Context, item, _ string) (int64, error) {
	a.heldOf = item
	return 0, nil
}

// versionedItems is a catalogue whose items have the version that the test sets.
type versionedItems struct {
	version  int64
	err      error
	outdated []string
}

func (v *versionedItems) Item(_ context.Context, id string) (catalog.Item, error) {
	return catalog.Item{ID: id, Version: v.version, PriceMinor: v.version}, v.err
}

func (v *versionedItems) Outdated(id string, version int64) {
	v.outdated = append(v.outdated, fmt.Sprint(id, " ", version))
	v.version = version
}

// withReleases gives a service the releases to a stock that accepts all of them.
func withReleases(t *testing.T, cfg *checkout.Config) *shoptest.Shelf {
	t.Helper()
	_, shelf := shoptest.OnShelf(t, cfg.Store)
	cfg.Releaser = release.New(cfg.Store, nil, 1, nil, func(err error) { t.Errorf("reported %v", err) })
	cfg.Releaser.Stock = shelf
	return shelf
}

// TestService_Place_Reasons: each reason for which the database refuses an order has its own
// answer.
func TestService_Place_Reasons(t *testing.T) {
	t.Parallel()
	s, waiters, at := storetest.New(t), checkout.NewWaiters(), time.Now()
	place := func(reason string) (order.Placed, error) {
		stock := &answeringStock{answer: func(*inventory.Request) inventory.Outcome {
			waiters.Settle(order.Notice{ID: "o1", Outcome: order.Outcome{Status: order.StatusRejected, Reason: reason}}, at)
			return inventory.Outcome{}
		}}
		service := checkout.NewService(checkout.Config{Store: s, Stock: stock, Waiters: waiters})
		return service.Place(await.Context(t), order.Purchase{
			ItemID: "item", Item: catalog.Item{ID: "item"}, UserID: "u", IdempotencyKey: "k", Quantity: 1, Wait: ordertest.Long,
		})
	}
	for reason, want := range map[string]error{
		order.ReasonSoldOut:   inventory.ErrSoldOut,
		order.ReasonUserLimit: inventory.ErrUserLimit,
		order.ReasonNoItem:    catalog.ErrItemNotFound,
		order.ReasonDuplicate: inventory.ErrKeyReused, // no other order of this item has the key
	} {
		if placed, err := place(reason); !errors.Is(err, want) || placed != (order.Placed{}) {
			t.Errorf("%s: %+v, %v, want %v", reason, placed, err, want)
		}
	}
	if placed, err := place(order.ReasonFailed); err != nil || placed.Order.Reason != order.ReasonFailed || !placed.Committed || !placed.CommittedAt.Equal(at) {
		t.Errorf("%s: %+v, %v, want the order, committed at %v", order.ReasonFailed, placed, err, at)
	}
	if err := s.Writer().Exec("ALTER TABLE orders RENAME TO unreadable").Error; err != nil {
		t.Fatal(err)
	}
	if placed, err := place(order.ReasonDuplicate); err == nil || errors.Is(err, inventory.ErrKeyReused) {
		t.Errorf("a duplicate whose original cannot be read: %+v, %v, want the database's error", placed, err)
	}
}

// TestService_Place_Terms: a purchase for another version of the item than the sale's is sent again
// with the sale's version, a bounded number of times.
func TestService_Place_Terms(t *testing.T) {
	t.Parallel()
	stock, items := &answeringStock{}, &versionedItems{version: 1}
	cfg := checkout.Config{Store: storetest.New(t), Stock: stock, Items: items, Waiters: checkout.NewWaiters()}
	shelf := withReleases(t, &cfg)
	service := checkout.NewService(cfg)
	p := order.Purchase{ItemID: "item", UserID: "u", IdempotencyKey: "k", Quantity: 1, SubmittedAt: time.Now(), RequestID: "r-1", Trace: parent(t)}
	var sale int64
	answer := func(r *inventory.Request) inventory.Outcome {
		if r.ItemVersion != sale {
			return inventory.Outcome{Err: &inventory.ItemVersionError{Version: sale}}
		}
		return inventory.Outcome{}
	}
	stock.answer = answer

	sale = 4
	if _, err := service.Place(await.Context(t), p); err != nil || len(stock.requests) != 2 || !slices.Equal(items.outdated, []string{"item 4"}) {
		t.Fatalf("%v after %d requests; outdated %v, want the second request with version 4", err, len(stock.requests), items.outdated)
	}
	first, second := stock.requests[0], stock.requests[1]
	if !first.SubmittedAt.Equal(p.SubmittedAt) || !second.SubmittedAt.IsZero() {
		t.Errorf("submitted at %v and %v, want %v and zero: the second has its own patience", first.SubmittedAt, second.SubmittedAt, p.SubmittedAt)
	}
	for _, r := range stock.requests {
		if r.RequestID != p.RequestID || r.Trace != p.Trace {
			t.Errorf("sent request id %q, trace %v", r.RequestID, r.Trace)
		}
	}

	// The item is changed while each of the first five requests is in progress.
	stock.requests, stock.answer = nil, func(r *inventory.Request) inventory.Outcome {
		if sale < 9 {
			sale++
		}
		return answer(r)
	}
	if _, err := service.Place(await.Context(t), p); err != nil || len(stock.requests) != 6 {
		t.Errorf("an item that changes often: %v after %d requests, want the sixth accepted", err, len(stock.requests))
	}

	// The sale has lost a change: it is loaded again.
	stock.answer, stock.requests, items.version, sale = answer, nil, 5, 4
	if _, err := service.Place(await.Context(t), p); !errors.Is(err, inventory.ErrUnavailable) || len(stock.requests) != checkout.TermsTries || len(shelf.Dropped) != checkout.TermsTries-1 {
		t.Errorf("an old sale: %v after %d requests, dropped %v", err, len(stock.requests), shelf.Dropped)
	}

	shelf.DropFail = ordertest.ErrTest
	if _, err := service.Place(await.Context(t), p); !errors.Is(err, inventory.ErrUnavailable) || !errors.Is(err, ordertest.ErrTest) {
		t.Errorf("an old sale that cannot be dropped: %v, want ErrUnavailable", err)
	}

	items.version, items.err = 1, catalog.ErrItemNotFound
	p.Item = catalog.Item{ID: "item", Version: 1}
	if _, err := service.Place(await.Context(t), p); !errors.Is(err, catalog.ErrItemNotFound) {
		t.Errorf("an item that is gone: %v, want ErrItemNotFound", err)
	}
}

// refills are buckets whose refills have the answers that the test sets.
type refills struct {
	calls []string
	ok    bool
	err   error
}

func (f *refills) Refill(_ context.Context, item *catalog.Item, id string, quantity int64) (bool, error) {
	f.calls = append(f.calls, fmt.Sprint(item.ID, " ", id, " ", quantity))
	return f.ok, f.err
}

// TestService_Place_Bucket: a purchase of a divided item is one of the buyer's bucket, which is
// refilled for it if it is sold out.
func TestService_Place_Bucket(t *testing.T) {
	t.Parallel()
	stock, items, buckets := &answeringStock{}, &versionedItems{version: 2}, &refills{}
	cfg := checkout.Config{Store: storetest.New(t), Stock: stock, Items: items, Buckets: buckets, Waiters: checkout.NewWaiters()}
	shelf := withReleases(t, &cfg)
	service := checkout.NewService(cfg)
	item := catalog.Item{ID: "item", Version: 9, Buckets: 2}
	user := "u0" // of another bucket than the first
	for n := 1; bucket.Home(item.ID, user, item.Buckets) == item.ID; n++ {
		user = fmt.Sprint("u", n)
	}
	home := bucket.Home(item.ID, user, item.Buckets)
	refill := "item " + home + " 3"
	gone := inventory.Outcome{ReplayOf: "gone"}
	soldOut := inventory.Outcome{Err: inventory.ErrSoldOut}
	for _, tt := range []struct {
		name    string
		answers []inventory.Outcome
		refills refills
		want    error
		calls   []string
		dropped []string
	}{
		{"in stock", []inventory.Outcome{{}}, refills{}, nil, nil, nil},
		{"refilled", []inventory.Outcome{soldOut, soldOut, {}}, refills{ok: true}, nil, []string{refill, refill}, nil},
		{"sold out", []inventory.Outcome{soldOut}, refills{}, inventory.ErrSoldOut, []string{refill}, nil},
		{"not refilled", []inventory.Outcome{soldOut}, refills{err: ordertest.ErrTest}, ordertest.ErrTest, []string{refill}, nil},
		{"a repeat of an order that is lost", []inventory.Outcome{gone}, refills{}, inventory.ErrUnavailable, nil, []string{home}},
	} {
		*buckets, stock.requests, shelf.Dropped = tt.refills, nil, nil
		stock.answer = func(r *inventory.Request) inventory.Outcome {
			if r.ItemID != home || r.ItemVersion != items.version {
				t.Errorf("%s: requested version %d of %s, want %d of %s", tt.name, r.ItemVersion, r.ItemID, items.version, home)
			}
			return tt.answers[len(stock.requests)-1]
		}
		_, err := service.Place(await.Context(t), order.Purchase{ItemID: item.ID, Item: item, UserID: user, IdempotencyKey: "k", Quantity: 3})
		if !errors.Is(err, tt.want) || len(stock.requests) != len(tt.answers) || !slices.Equal(buckets.calls, tt.calls) || !slices.Equal(shelf.Dropped, tt.dropped) {
			t.Errorf("%s: %v after %d requests, refills %v, dropped %v", tt.name, err, len(stock.requests), buckets.calls, shelf.Dropped)
		}
	}
	if _, err := service.Held(await.Context(t), &item, user); err != nil || stock.heldOf != home {
		t.Errorf("held units of %s, %v, want those of %s", stock.heldOf, err, home)
	}
}

// TestService_Place_Gone: a client that goes away before the answer gets the cause.
func TestService_Place_Gone(t *testing.T) {
	t.Parallel()
	service := checkout.NewService(checkout.Config{Store: storetest.New(t), Stock: silentStock{}, Waiters: checkout.NewWaiters()})
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(ordertest.ErrTest)
	for _, wait := range []time.Duration{0, ordertest.Long} {
		p := order.Purchase{ItemID: "item", Item: catalog.Item{ID: "item"}, UserID: "u", IdempotencyKey: "k", Quantity: 1, Wait: wait}
		if _, err := service.Place(ctx, p); !errors.Is(err, ordertest.ErrTest) {
			t.Errorf("with a wait of %v: %v, want the context's cause", wait, err)
		}
	}
}

// silentStock is a stock that gives no answer.
type silentStock struct{ unmarked }

func (silentStock) Submit(*inventory.Request) error { return nil }
