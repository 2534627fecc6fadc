//go:build unix

package main_test

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"flashsale/handler/auth"
	"flashsale/internal/verify/history"
)

// witness makes the calls of a sale and records the answers.
type witness struct {
	t    *testing.T
	rec  *history.Recorder
	apis []*client
	item string
}

// call makes a call and records it; c has the operation and its arguments.
func (w *witness) call(c history.Call, path, token, body string, headers ...string) history.Call {
	headers = append([]string{"Content-Type", "application/json"}, headers...)
	c.Item, c.Start = w.item, w.rec.Now()
	a, err := w.apis[c.Client%len(w.apis)].do("POST", path, token, body, headers...)
	c.End = w.rec.Now()
	if err != nil {
		c.Err = err.Error()
	} else {
		c.Status, c.Code, c.Replayed = a.Status, a.Problem.Code, a.replayed()
		if a.Order.ID != "" {
			c.Order, c.State = a.Order.ID, a.Order.Status
		}
	}
	w.rec.Record(&c)
	return c
}

func (w *witness) buy(client int, user, key string, quantity int64, async bool) history.Call {
	headers := []string{"Idempotency-Key", key}
	if async {
		headers = append(headers, "Prefer", "respond-async")
	}
	c := history.Call{Client: client, Op: history.Buy, User: user, Quantity: quantity, Key: key, Async: async}
	return w.call(c, "/v1/items/"+w.item+"/orders", w.apis[0].token(user, auth.RoleBuyer), `{"quantity":`+strconv.FormatInt(quantity, 10)+`}`, headers...)
}

// shopper buys under a few names and keys that other shoppers use too, and cancels some orders.
func (w *witness) shopper(client int, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, uint64(client)))
	for range 10 {
		user, key := fmt.Sprintf("u%d", rng.IntN(6)), fmt.Sprintf("k%d", rng.IntN(3))
		quantity := int64(1)
		if rng.IntN(8) == 0 {
			quantity = 2 // the key may have been used with quantity 1
		}
		c := w.buy(client, user, key, quantity, rng.IntN(2) == 0)
		if c.Status == 201 && rng.IntN(4) == 0 {
			about := history.Call{Client: client, Op: history.Cancel, User: user, Order: c.Order}
			w.call(about, "/v1/orders/"+c.Order+"/cancel", w.apis[0].token(user, auth.RoleBuyer), "")
		}
		// Without an answer, repeat at another process.
		for try := 1; !c.Known() && try < 20; try++ {
			<-time.After(20 * time.Millisecond)
			c = w.buy(client+try, user, key, quantity, false)
		}
	}
}

// operator changes the sale while it is open.
func (w *witness) operator(client int) {
	token := w.apis[0].token("root", auth.RoleAdmin)
	path := "/v1/admin/items/" + w.item + "/"
	restock := func(key string, quantity int64) {
		c := history.Call{Client: client, Op: history.Restock, Key: key, Quantity: quantity}
		w.call(c, path+"restock", token, fmt.Sprintf(`{"quantity":%d,"reason":"test"}`, quantity), "Idempotency-Key", key)
	}
	restock("more", 2)
	w.call(history.Call{Client: client, Op: history.Pause}, path+"pause", token, "")
	w.call(history.Call{Client: client, Op: history.Resume}, path+"resume", token, "")
	restock("more", 2)
	restock("less", -1)
}

// end reads the final state once all processing has ended.
func (w *witness) end(s *shop, limit int64) *history.Final {
	w.t.Helper()
	c := w.apis[len(w.apis)-1]
	var l ledger
	eventually(w.t, "every order is settled", soon, func() (bool, any) {
		l = s.ledger(c, w.item)
		return l.Held == 0, l
	})
	it := history.Item{ID: w.item, Initial: l.Initial, Limit: limit, Ledger: &history.Ledger{
		Initial: l.Initial, Restocked: l.Restocked, Left: l.Left, Held: l.Held, Sold: l.Sold, Balanced: l.Balanced,
	}}
	err := s.db.QueryRowContext(w.t.Context(), "SELECT COALESCE(SUM(quantity), 0) FROM stock_changes WHERE item_id = ?1", w.item).Scan(&it.Restocked)
	if err != nil {
		w.t.Fatal(err)
	}
	f := &history.Final{Items: []history.Item{it}}
	for _, r := range s.rows(w.item) {
		f.Orders = append(f.Orders, history.Order{ID: r.ID, User: r.User, Item: w.item, Quantity: r.Quantity, Key: r.Key, Status: r.Status, Reason: "?"})
	}
	return f
}

// sell makes a small crowd buy concurrently, and judges the history.
func (w *witness) sell(s *shop, seed uint64) []history.Call {
	w.t.Helper()
	const shoppers, stock, limit = 6, 9, 2
	path := filepath.Join(s.dir, fmt.Sprintf("history-%d.jsonl", seed))
	var err error
	if w.rec, err = history.Create(path); err != nil {
		w.t.Fatal(err)
	}
	w.item = s.newItem(w.apis[len(w.apis)-1], stock, limit)
	var all sync.WaitGroup
	for i := range shoppers {
		all.Go(func() { w.shopper(i, seed) })
	}
	all.Go(func() { w.operator(shoppers + 1) }) // at the last API process
	all.Wait()
	if err := w.rec.Close(); err != nil {
		w.t.Fatal(err)
	}
	calls, err := history.ReadFile(path)
	if err != nil {
		w.t.Fatal(err)
	}
	final := w.end(s, limit)
	if v := history.Check(calls, final); !v.Passed {
		w.t.Errorf("%s\n%+v", v.Line(), v.Findings)
	} else {
		w.t.Log(v.Line())
	}
	began := time.Now()
	if err := history.Linearizable(calls, final, patience); err != nil {
		w.t.Errorf("seed %d: %v", seed, err)
	}
	w.t.Logf("searched for an order of %d calls in %v", len(calls), time.Since(began))
	return calls
}

// patience bounds the search for a linearization, which takes milliseconds.
const patience = 2 * time.Minute

// TestHistory_Linearizable makes a few clients buy one item concurrently, under shared names
// and keys, while it is restocked, paused and resumed: a shop that serves one client at a time
// could give the same answers.
func TestHistory_Linearizable(t *testing.T) {
	needProcesses(t)
	engines(t, noLimit, func(t *testing.T, s *shop, c *client) {
		for seed := range uint64(3) {
			w := &witness{t: t, apis: []*client{c}}
			w.sell(s, seed)
		}
	})
}

// TestHistory_LinearizableOverCrash is the same with two API processes, one of which is killed
// after its script: its sale counts, although no client got the answer.
func TestHistory_LinearizableOverCrash(t *testing.T) {
	needProcesses(t)
	s := newRedisShop(t)
	s.worker()
	doomed := s.faulty("inventory.sent:6", "api", noLimit...)
	w := &witness{t: t, apis: []*client{dial(t, doomed), dial(t, s.api(noLimit...))}}
	calls := w.sell(s, 7)
	struck(t, doomed)
	unknown := 0
	for i := range calls {
		if !calls[i].Known() {
			unknown++
		}
	}
	if unknown == 0 {
		t.Error("every call was answered")
	}
}
