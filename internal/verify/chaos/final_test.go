//go:build chaos && unix

package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/verify/history"
)

// closingRounds bounds how often the remaining units are bought at the end: reloading a sale
// may return units.
const closingRounds = 20

// drain waits until no processing is in progress, and buys the remaining units until there are
// none: the fault may have kept units from earlier buyers.
func (r *run) drain(ctx context.Context) {
	r.t.Helper()
	c, err := r.caller()
	if err != nil {
		r.t.Fatal(err)
	}
	defer c.close()
	for round := range closingRounds {
		left := int64(0)
		for _, item := range r.plan.Items {
			l := r.quiet(ctx, c, item.ID)
			if l == nil {
				return // the checker reports the fault
			}
			if r.fault.Stays {
				continue
			}
			left += l.Left
			r.buyOut(ctx, c, item, round, l.Left)
		}
		if left == 0 {
			return
		}
	}
	r.failf("units came back for %d rounds after the last buyer", closingRounds)
}

// buyOut buys units one by one, each for a new buyer.
func (r *run) buyOut(ctx context.Context, c *caller, item saleItem, round int, units int64) {
	for n := range units {
		h := history.Call{
			Client: 2 * buyersAtOnce, User: fmt.Sprintf("last-%d-%d", round, n), Item: item.ID,
			Quantity: 1, Key: fmt.Sprintf("last-%d", n), Async: true,
		}
		for h.Status = 0; !definite(&h) && ctx.Err() == nil; {
			h = history.Call{Client: h.Client, User: h.User, Item: h.Item, Quantity: 1, Key: h.Key, Async: true}
			c.buy(ctx, r.now, int(n)%len(c.targets), &h)
			r.saw(&h)
		}
	}
}

// quiet waits until an item's ledger balances with no units held, and returns it, or the last
// one it read.
func (r *run) quiet(ctx context.Context, c *caller, item string) *history.Ledger {
	r.t.Helper()
	var l *history.Ledger
	var saw string
	err := r.await(ctx, patience, func() bool {
		n, err := r.shop.underway(ctx)
		if err != nil || n > 0 {
			saw = fmt.Sprintf("%d orders under way, %v", n, err)
			return false
		}
		next, err := r.ledger(ctx, c, item)
		if err != nil {
			saw = err.Error()
			return false
		}
		l, saw = next, fmt.Sprintf("%+v", *next)
		return l.Balanced && l.Held == 0
	})
	if errors.Is(err, errNever) {
		r.failf("%s was not quiet at the end: %s", item, saw)
	}
	return l
}

// ledger requests an item's ledger from each API process in turn.
func (r *run) ledger(ctx context.Context, c *caller, item string) (*history.Ledger, error) {
	var errs []error
	for i := range c.targets {
		a, err := c.admin(ctx, i, "GET", "/v1/admin/items/"+item+"/ledger", nil)
		switch {
		case err != nil:
			errs = append(errs, err)
		case a.status != 200:
			errs = append(errs, fmt.Errorf("ledger of %s: %d %.200s", item, a.status, a.body))
			if a.status == 503 {
				// The next purchase loads a sale that is not loaded.
				r.knock(ctx, c, i, item)
			}
		default:
			l := new(history.Ledger)
			if err := json.Unmarshal(a.body, l); err != nil {
				return nil, fmt.Errorf("ledger of %s: %w", item, err)
			}
			return l, nil
		}
	}
	return nil, errors.Join(errs...)
}

// knock buys one unit, which loads the sale if it is not loaded.
func (r *run) knock(ctx context.Context, c *caller, api int, item string) {
	h := history.Call{Client: 2 * buyersAtOnce, User: "knocker", Item: item, Quantity: 1, Key: "knock", Async: true}
	c.buy(ctx, r.now, api, &h)
	r.saw(&h)
}

// final reads the end of the run.
func (r *run) final(ctx context.Context) (*history.Final, error) {
	f := &history.Final{AcceptedMayBeLost: r.fault.MayLoseAccepted, Fences: r.fences, Ledgers: r.ledgers, Discarded: r.discarded}
	var err error
	if f.Orders, err = r.shop.store.orders(ctx); err != nil {
		return nil, err
	}
	if f.Items, err = r.shop.store.items(ctx); err != nil {
		return nil, err
	}
	for p := range r.shop.partitions {
		dead, err := history.DeadOrders(ctx, r.shop.rdb, r.shop.ordersKey(p, ""))
		if err != nil {
			return nil, fmt.Errorf("read dead letters: %w", err)
		}
		f.Dead = append(f.Dead, dead...)
	}
	c, err := r.caller()
	if err != nil {
		return nil, err
	}
	defer c.close()
	for i := range f.Items {
		if err := r.finalItem(ctx, c, &f.Items[i]); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// finalItem adds the item's data from Redis and the service.
func (r *run) finalItem(ctx context.Context, c *caller, item *history.Item) error {
	item.Exhausted = r.gaveUp.Load() == 0 && !r.fault.Stays
	loaded := 0
	buckets := r.shop.buckets(item.ID)
	for _, id := range buckets {
		sale, err := r.shop.rdb.HMGet(ctx, r.shop.saleKey(id), "left", "epoch", "fence").Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			return fmt.Errorf("read sale of %s: %w", id, err)
		}
		text := func(i int) string { s, _ := sale[i].(string); return s }
		if text(0) == "" {
			continue
		}
		loaded++
		item.Epoch = text(1)
		left, err := strconv.ParseInt(text(0), 10, 64)
		item.Left += left
		// Each bucket has its own lock; only the tokens of bucket 0 are compared.
		if err == nil && text(2) != "" && id == item.ID {
			item.Fence, err = strconv.ParseInt(text(2), 10, 64)
		}
		if err != nil {
			return fmt.Errorf("sale of %s: %w", id, err)
		}
	}
	item.Loaded = loaded == len(buckets)
	l, err := r.ledger(ctx, c, item.ID)
	if err != nil {
		r.notef("no ledger of %s: %v", item.ID, err)
		return nil
	}
	item.Ledger = l
	return nil
}

// wholeRun bounds one run of one fault.
const wholeRun = 8 * time.Minute

// noDeadLetters expects that no order has become a dead letter: these faults do not make tasks
// fail.
func noDeadLetters(ctx context.Context, r *run) {
	for p := range r.shop.partitions {
		ids, err := r.shop.rdb.ZRange(ctx, r.shop.ordersKey(p, "dead"), 0, -1).Result()
		if err != nil {
			r.failf("read dead letters: %v", err)
		}
		for _, id := range ids {
			meta, err := r.shop.rdb.HGet(ctx, r.shop.ordersKey(p, "meta"), id).Result()
			r.failf("dead letter %s: %q %v", id, meta, err)
		}
	}
}
