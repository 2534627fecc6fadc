package inventory_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/embedded"
	"flashsale/inventory"
	"flashsale/lock"
	"flashsale/queue"
)

// sale stands in for the database, from which a sale is loaded into Redis.
type sale struct{ stock, perBuyer int64 }

func (s sale) Epoch(context.Context) (int64, error) { return 1, nil }

func (s sale) Queued(_ context.Context, items []string) (map[string]inventory.Queued, error) {
	return map[string]inventory.Queued{items[0]: {}}, nil
}

func (s sale) Sales(_ context.Context, items []string, _ map[string]inventory.Queued,
	_ func(string, inventory.Holding) error, done func(string, inventory.Sale) error,
) error {
	return done(items[0], inventory.Sale{Left: s.stock, PerUserLimit: s.perBuyer, Control: "open", OpensAt: time.Now().Add(-time.Hour)})
}

// processes are so many API processes that sell the same item on one Redis, and
// the queue that takes its orders.
func processes(n int, s sale) (all []*inventory.Inventory, orders *queue.Queue, stop func()) {
	server, err := embedded.Start()
	check(err)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1, ContextTimeoutEnabled: true})
	orders, err = queue.New(rdb, queue.Config{Prefix: inventory.QueuePrefix(0, 1)})
	check(err)
	var closers []func(context.Context) error
	for range n {
		locks, err := lock.New(rdb, lock.Config{TTL: time.Minute})
		check(err)
		v, err := inventory.New(context.Background(), rdb, locks, []*queue.Queue{orders}, s, inventory.Config{Patience: time.Minute})
		check(err)
		all = append(all, v)
		closers = append(closers, v.Close, locks.Close)
	}
	return all, orders, func() {
		for _, end := range closers {
			check(end(context.Background()))
		}
		check(rdb.Close())
		server.Close()
	}
}

// check keeps the examples short; a program handles its errors.
func check(err error) {
	if err != nil {
		panic(err)
	}
}

// buy purchases the item "pen" and returns the outcome and the order's id.
func buy(v *inventory.Inventory, buyer, key string, quantity int64) (inventory.Outcome, string) {
	r := &inventory.Request{ItemID: "pen", Buyer: buyer, IdempotencyKey: key, Quantity: quantity}
	o, err := v.Purchase(context.Background(), r)
	check(err)
	return o, r.OrderID
}

// One script checks the stock, takes the units and queues the order. There is no
// moment at which a unit is taken and no order exists.
func ExampleInventory_Purchase() {
	shop, orders, stop := processes(1, sale{stock: 3, perBuyer: 2})
	defer stop()

	alice, _ := buy(shop[0], "alice", "k1", 2)
	bob, _ := buy(shop[0], "bob", "k1", 2)
	fmt.Println(alice.Err)
	fmt.Println(bob.Err)

	left, err := shop[0].Left(context.Background(), []string{"pen"})
	check(err)
	queued, err := orders.Stats(context.Background())
	check(err)
	fmt.Println("left:", left, "queued:", queued.Entries)
	// Output:
	// <nil>
	// inventory: sold out
	// left: [1] queued: 1
}

// No oversell: 200 buyers at two processes ask for 50 units at the same moment.
func ExampleInventory_Purchase_noOversell() {
	shop, orders, stop := processes(2, sale{stock: 50, perBuyer: 1})
	defer stop()

	var accepted atomic.Int64
	var crowd sync.WaitGroup
	for i := range 200 {
		crowd.Go(func() {
			o, _ := buy(shop[i%2], fmt.Sprint("buyer-", i), "k", 1)
			if o.Err == nil {
				accepted.Add(1)
			}
		})
	}
	crowd.Wait()

	left, err := shop[0].Left(context.Background(), []string{"pen"})
	check(err)
	queued, err := orders.Stats(context.Background())
	check(err)
	fmt.Println("accepted:", accepted.Load(), "left:", left, "queued:", queued.Entries)
	// Output:
	// accepted: 50 left: [0] queued: 50
}

// Idempotency: a repeated request gets the order that the first one made, and
// takes nothing more.
func ExampleInventory_Purchase_idempotency() {
	shop, _, stop := processes(2, sale{stock: 10, perBuyer: 5})
	defer stop()

	first, id := buy(shop[0], "alice", "k1", 1)
	repeat, _ := buy(shop[1], "alice", "k1", 1)
	other, _ := buy(shop[1], "alice", "k1", 2)
	fmt.Println("first:", first.Err)
	fmt.Println("the repeat gets the same order:", repeat.ReplayOf == id)
	fmt.Println("same key, other request:", other.Err)

	left, err := shop[0].Left(context.Background(), []string{"pen"})
	check(err)
	fmt.Println("left:", left)
	// Output:
	// first: <nil>
	// the repeat gets the same order: true
	// same key, other request: inventory: idempotency key reused for a different request
	// left: [9]
}

// The limit per buyer is counted in the same script, so a buyer who sends 20
// requests in parallel gets no more than one who sends them one by one.
func ExampleInventory_Purchase_perUserLimit() {
	shop, _, stop := processes(2, sale{stock: 100, perBuyer: 2})
	defer stop()

	var accepted atomic.Int64
	var requests sync.WaitGroup
	for i := range 20 {
		requests.Go(func() {
			o, _ := buy(shop[i%2], "alice", fmt.Sprint("k", i), 1)
			if o.Err == nil {
				accepted.Add(1)
			}
		})
	}
	requests.Wait()
	fmt.Println("accepted:", accepted.Load())
	// Output:
	// accepted: 2
}
