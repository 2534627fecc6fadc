//go:build chaos && unix

package chaos

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"flashsale/internal/verify/history"
)

func init() {
	var s *storm
	register(fault{
		ID: "F20", Name: "storms of changes", Lasts: stormLasts + 2*time.Second, Stays: true,
		Strike: func(ctx context.Context, r *run) { s = newStorm(r); s.strike(ctx) },
		Expect: func(ctx context.Context, _ *run) { s.expect(ctx) },
	})
}

const (
	// stormLasts is how long everything changes at once.
	stormLasts = 10 * time.Second
	// paymentWindow is how long an order may wait for its payment. It is short, so that whole
	// bursts of orders expire within the run.
	paymentWindow = 2 * time.Second
	// restockEvery, pauseEvery and ledgerEvery are the pauses between two changes or ledger
	// reads.
	restockEvery = 60 * time.Millisecond
	pauseEvery   = 300 * time.Millisecond
	pausedFor    = 80 * time.Millisecond
	ledgerEvery  = 20 * time.Millisecond
	// hands is the number of clients that pay and cancel.
	hands = 4
	// stormClients is the number of the storm's first client, above those of the buyers and
	// their twins.
	stormClients = 3 * buyersAtOnce
	// unitPrice is the price of a unit.
	unitPrice = 990
)

// storm changes the sales and their orders in every possible way during the purchases.
type storm struct {
	r *run
	// made are orders to be paid or cancelled. An order that does not fit expires.
	made chan history.Call
	// doing counts the changes by name.
	mu    sync.Mutex
	doing map[string]int
	// busy is how often a ledger could not be read.
	busy atomic.Int64
}

func newStorm(r *run) *storm {
	return &storm{r: r, made: make(chan history.Call, 1<<14), doing: make(map[string]int)}
}

func (s *storm) did(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.doing[what]++
}

// strike runs the storm and then closes one of the sales.
func (s *storm) strike(ctx context.Context) {
	r := s.r
	s.askForPayment(ctx)
	span := r.measure("storms")
	r.mu.Lock()
	span.each = func(h *history.Call) {
		select {
		case s.made <- *h:
		default:
		}
	}
	r.mu.Unlock()
	r.struck("storms")
	raging, calm := context.WithTimeout(ctx, stormLasts)
	defer calm()
	var all sync.WaitGroup
	parts := []func(raging, ctx context.Context, c *caller, client int){s.restock, s.pause, s.look}
	for range hands {
		parts = append(parts, s.handle)
	}
	for i, part := range parts {
		all.Go(func() { s.run(raging, ctx, stormClients+i, part) })
	}
	all.Wait()
	last := r.plan.Items[itemsOnSale-1].ID
	s.run(raging, ctx, stormClients, func(_, ctx context.Context, c *caller, client int) {
		s.change(ctx, c, client, history.Close, last)
	})
	r.end(span)
	r.over()
	r.recovered(ctx)
}

// run runs one part of the storm with its own client.
func (s *storm) run(raging, ctx context.Context, client int, part func(raging, ctx context.Context, c *caller, client int)) {
	c, err := s.r.caller()
	if err != nil {
		s.r.failf("client %d: %v", client, err)
		return
	}
	defer c.close()
	part(raging, ctx, c, client)
}

// askForPayment sets the payment window. Earlier orders need no payment.
func (s *storm) askForPayment(ctx context.Context) {
	r := s.r
	c, err := r.caller()
	if err != nil {
		r.t.Fatal(err)
	}
	defer c.close()
	for _, item := range r.plan.Items {
		body := fmt.Sprintf(`{"payment_window_seconds":%d}`, int(paymentWindow.Seconds()))
		a, err := c.do(ctx, 0, "PATCH", "/v1/admin/items/"+item.ID, c.token("chaos-admin", "admin"), body, "If-Match", "*")
		if err != nil || a.status != 200 {
			r.t.Fatalf("ask for payment of %s: %d %s %v", item.ID, a.status, a.body, err)
		}
	}
}

// settle repeats a call until its answer is definite, and returns that answer.
func (s *storm) settle(ctx context.Context, c *caller, h history.Call, path, role, body string, headers ...string) history.Call {
	until := time.Now().Add(askFor)
	for try := 0; ; try++ {
		next := h
		c.call(ctx, s.r.now, (h.Client+try)%len(c.targets), &next, "POST", path, role, body, headers...)
		if h.Op == history.Pay || h.Op == history.Cancel {
			next.Order = h.Order
		}
		if ctx.Err() != nil {
			next.Err = context.Cause(ctx).Error()
		}
		s.r.saw(&next)
		if definite(&next) || ctx.Err() != nil {
			return next
		}
		if time.Now().After(until) {
			s.r.failf("%s of %s %s was never answered for good: %d %s %s", h.Op, h.Item, h.Order, next.Status, next.Code, next.Err)
			return next
		}
		s.r.lasts(ctx, askAgain)
	}
}

// change pauses, resumes or closes a sale.
func (s *storm) change(ctx context.Context, c *caller, client int, op, item string) {
	h := s.settle(ctx, c, history.Call{Client: client, Op: op, Item: item}, "/v1/admin/items/"+item+"/"+op, "admin", "")
	if h.Status != 200 && ctx.Err() == nil {
		s.r.failf("%s %s: %d %s", op, item, h.Status, h.Code)
	}
	s.did(op)
}

// restock adds units and removes some while the storm lasts.
func (s *storm) restock(raging, ctx context.Context, c *caller, client int) {
	for n := 0; raging.Err() == nil; n++ {
		item := s.r.plan.Items[n%itemsOnSale].ID
		quantity := int64(1 + s.r.plan.Numbers[n%blows]%20)
		if n%4 == 3 {
			quantity = -quantity
		}
		key := "restock-" + strconv.Itoa(n)
		h := s.settle(ctx, c, history.Call{Client: client, Op: history.Restock, Item: item, Quantity: quantity, Key: key},
			"/v1/admin/items/"+item+"/restock", "admin", fmt.Sprintf(`{"quantity":%d,"reason":"storm"}`, quantity), "Idempotency-Key", key)
		switch {
		case h.Status == 200 && quantity > 0:
			s.did("restock")
		case h.Status == 200:
			s.did("take back")
		case h.Code != "stock_below_sold" && ctx.Err() == nil:
			s.r.failf("restock of %s by %d: %d %s", item, quantity, h.Status, h.Code)
		}
		s.r.lasts(raging, restockEvery)
	}
}

// pause pauses one sale after another for a moment. It resumes each of them.
func (s *storm) pause(raging, ctx context.Context, c *caller, client int) {
	for n := 0; raging.Err() == nil; n++ {
		item := s.r.plan.Items[n%itemsOnSale].ID
		s.change(ctx, c, client, history.Pause, item)
		s.r.lasts(raging, pausedFor)
		s.change(ctx, c, client, history.Resume, item)
		s.r.lasts(raging, pauseEvery)
	}
}

// look reads the ledgers: each must balance. A busy sale answers 503.
func (s *storm) look(raging, ctx context.Context, c *caller, _ int) {
	for n := 0; raging.Err() == nil; n++ {
		item := s.r.plan.Items[n%itemsOnSale].ID
		l, err := s.r.ledger(ctx, c, item)
		if err != nil {
			s.busy.Add(1)
			s.r.lasts(raging, ledgerEvery)
			continue
		}
		s.r.mu.Lock()
		s.r.ledgers = append(s.r.ledgers, history.LedgerSample{At: s.r.now(), Item: item, Ledger: *l})
		s.r.mu.Unlock()
		s.did("look")
		s.r.lasts(raging, ledgerEvery)
	}
}

// handle pays some of the orders in time and some too late, and cancels some. The others
// expire.
func (s *storm) handle(raging, ctx context.Context, c *caller, client int) {
	var late []history.Call
	for n := 0; ; n++ {
		var order history.Call
		select {
		case order = <-s.made:
		case <-raging.Done():
			return
		}
		switch n % 8 {
		case 0, 1:
			s.pay(ctx, c, client, order, "pay")
		case 2, 3:
			s.cancel(ctx, c, client, order)
		case 4:
			late = append(late, order)
		}
		if len(late) > 0 && s.r.now()-late[0].End > int64(paymentWindow)*3/2 {
			s.pay(ctx, c, client, late[0], "pay late")
			late = late[1:]
		}
	}
}

// pay pays an order; how names the moment.
func (s *storm) pay(ctx context.Context, c *caller, client int, order history.Call, how string) {
	h := s.settle(ctx, c, history.Call{Client: client, Op: history.Pay, Item: order.Item, Order: order.Order},
		"/v1/orders/"+order.Order+"/payment", "service",
		fmt.Sprintf(`{"reference":"psp-%s","amount_minor":%d,"currency":"EUR"}`, order.Order, unitPrice*order.Quantity))
	switch {
	case h.Status == 200 || h.Code == "order_expired":
		s.did(fmt.Sprintf("%s: %d", how, h.Status))
	case ctx.Err() == nil:
		s.r.failf("payment of %s: %d %s", order.Order, h.Status, h.Code)
	}
}

// cancel cancels an order as its buyer.
func (s *storm) cancel(ctx context.Context, c *caller, client int, order history.Call) {
	h := s.settle(ctx, c, history.Call{Client: client, Op: history.Cancel, User: order.User, Item: order.Item, Order: order.Order},
		"/v1/orders/"+order.Order+"/cancel", "buyer", "")
	switch {
	case h.Status == 200 || h.Code == "order_final":
		s.did(fmt.Sprintf("cancel: %d", h.Status))
	case ctx.Err() == nil:
		s.r.failf("cancellation of %s: %d %s", order.Order, h.Status, h.Code)
	}
}

// expect checks that the storm made enough changes.
func (s *storm) expect(ctx context.Context) {
	r := s.r
	noDeadLetters(ctx, r)
	for _, span := range r.spans {
		r.report(span)
		r.politely(span)
	}
	orders, err := r.shop.store.orders(ctx)
	if err != nil {
		r.failf("%v", err)
	}
	ended := make(map[string]int)
	for i := range orders {
		ended[orders[i].Status]++
	}
	r.notef("done: %v, ledgers that were busy: %d; orders: %v", s.doing, s.busy.Load(), ended)
	for _, what := range []string{"restock", "take back", history.Pause, history.Resume, history.Close, "look", "pay: 200", "pay late: 409", "cancel: 200"} {
		if s.doing[what] == 0 {
			r.voidf("there was no %s", what)
		}
	}
	for _, status := range []string{history.Paid, history.Cancelled, history.Expired} {
		if ended[status] == 0 {
			r.voidf("no order was %s at the end", status)
		}
	}
}
