package order_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/catalog"
	"flashsale/internal/embedded"
	"flashsale/inventory"
	"flashsale/inventory/accepted"
	"flashsale/lock"
	"flashsale/migrations"
	"flashsale/order"
	"flashsale/order/checkout"
	"flashsale/order/items"
	"flashsale/order/release"
	"flashsale/order/sales"
	"flashsale/order/store"
	"flashsale/order/worker"
	"flashsale/queue"
)

// check keeps the example short; a real program handles its errors.
func check(err error) {
	if err != nil {
		panic(err)
	}
}

// openStore returns a store on an empty database.
func openStore(ctx context.Context) (s *store.Store, stop func()) {
	dir, err := os.MkdirTemp("", "order-example-")
	check(err)
	s, err = store.Open(ctx, "sqlite:"+filepath.Join(dir, "shop.db"))
	check(err)
	db, err := s.Writer().DB()
	check(err)
	schema, err := migrations.New(db, "sqlite")
	check(err)
	_, err = schema.Up(ctx)
	check(err)
	return s, func() {
		check(s.Close())
		check(os.RemoveAll(dir))
	}
}

// exampleShop is a shop that sells the item "pen": an API process and a worker with one
// Redis and one database.
type exampleShop struct {
	service *checkout.Service
	orders  *queue.Queue // the accepted orders
	worker  *worker.Fulfiller
	rdb     *redis.Client
}

// openShop connects the parts as a process does. It starts no worker.
func openShop(ctx context.Context, stock int64) (s exampleShop, stop func()) {
	server, err := embedded.Start()
	check(err)
	s.rdb = redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1, ContextTimeoutEnabled: true})
	db, closeStore := openStore(ctx)
	s.orders, err = queue.New(s.rdb, queue.Config{Prefix: inventory.QueuePrefix(0, 1)})
	check(err)
	locks, err := lock.New(s.rdb, lock.Config{TTL: time.Minute})
	check(err)
	tasks := []order.Queued{accepted.NewOrders(s.orders)}
	source := &sales.Source{Store: db, Tasks: tasks, Partition: func(string) int { return 0 }}
	// Without a sold-out mark every purchase calls Redis.
	sold, err := inventory.New(ctx, s.rdb, locks, []*queue.Queue{s.orders}, source, inventory.Config{Patience: time.Minute, MarkLife: time.Nanosecond})
	check(err)
	cache, err := catalog.New(ctx, db, sold, catalog.Config{Wait: time.Minute, LoadTimeout: time.Minute})
	check(err)
	ignore := func(error) {}
	waiters := checkout.NewWaiters()
	s.service = checkout.NewService(checkout.Config{
		Store: db, Stock: sold, Items: cache, Tasks: tasks, Waiters: waiters,
		Releaser: release.New(db, s.rdb, 1, sold.DropSoldOutMark, ignore),
	})
	_, err = (&items.Service{Store: db, Stock: sold, Catalog: cache, OnError: ignore}).CreateItem(ctx, order.NewItem{
		ID: "pen", Name: "Pen", PriceMinor: 100, Currency: "EUR", Stock: stock, PerUserLimit: 1,
	})
	check(err)
	s.worker = worker.NewFulfiller(db, s.rdb, waiters, ignore)
	return s, func() {
		check(sold.Close(ctx))
		check(cache.Close(ctx))
		check(locks.Close(ctx))
		closeStore()
		check(s.rdb.Close())
		server.Close()
	}
}

// work runs the worker until stop is called.
func (s exampleShop) work(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error)
	go func() { ended <- s.worker.Work(ctx, []*queue.Queue{s.orders}, nil, queue.RunConfig{}) }()
	return func() {
		cancel()
		check(<-ended)
	}
}

// An order is accepted once it is in the queue (202), before it is in the database. A
// worker commits the queued orders in batches.
func ExampleService_Place() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	shop, stop := openShop(ctx, 10)
	defer stop()

	placed, err := shop.service.Place(ctx, order.Purchase{ItemID: "pen", UserID: "alice", IdempotencyKey: "k1", Quantity: 1})
	check(err)
	fmt.Println("answered:", placed.Order.Status, "committed:", placed.Committed)

	defer shop.work(ctx)()
	for placed.Order.Status == order.StatusQueued {
		placed.Order, err = shop.service.Get(ctx, placed.Order.ID)
		check(err)
	}
	fmt.Println("later:", placed.Order.Status)
	// Output:
	// answered: queued committed: false
	// later: confirmed
}

// Redis counts the stock, and the database decides: if Redis has returned with a wrong
// count, an order that it wrongly accepts is refused.
func ExampleService_Place_noOversell() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	shop, stop := openShop(ctx, 1)
	defer stop()
	defer shop.work(ctx)()
	buy := func(user string) (order.Placed, error) {
		return shop.service.Place(ctx, order.Purchase{
			ItemID: "pen", UserID: user, IdempotencyKey: "k1", Quantity: 1, Wait: 30 * time.Second,
		})
	}

	placed, err := buy("alice")
	check(err)
	fmt.Println("alice:", placed.Order.Status)

	// Redis loses the sale of the only unit.
	check(shop.rdb.HSet(ctx, "fs:{p0}:sale:pen", "left", 1).Err())
	_, err = buy("bob")
	fmt.Println("bob:", err)
	refused, _, err := shop.service.List(ctx, order.Filter{UserID: "bob", Limit: 1})
	check(err)
	for _, o := range refused {
		fmt.Println("in the database:", o.Status, o.Reason)
	}
	// Output:
	// alice: confirmed
	// bob: inventory: sold out
	// in the database: rejected sold_out
}
