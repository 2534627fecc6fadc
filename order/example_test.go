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
	"flashsale/lock"
	"flashsale/migrations"
	"flashsale/order"
	"flashsale/queue"
)

// check keeps the example short; a program handles its errors.
func check(err error) {
	if err != nil {
		panic(err)
	}
}

// openStore returns a store on an empty database.
func openStore(ctx context.Context) (store *order.Store, stop func()) {
	dir, err := os.MkdirTemp("", "order-example-")
	check(err)
	store, err = order.OpenStore(ctx, "sqlite:"+filepath.Join(dir, "shop.db"))
	check(err)
	db, err := store.DB()
	check(err)
	schema, err := migrations.New(db, "sqlite")
	check(err)
	_, err = schema.Up(ctx)
	check(err)
	return store, func() {
		check(store.Close())
		check(os.RemoveAll(dir))
	}
}

// openShop connects the parts as an API process does: the service takes purchases
// of the item "pen", and the queue holds the accepted orders.
func openShop(ctx context.Context) (shop *order.Service, orders *queue.Queue, worker *order.Fulfiller, stop func()) {
	server, err := embedded.Start()
	check(err)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1, ContextTimeoutEnabled: true})
	store, closeStore := openStore(ctx)
	orders, err = queue.New(rdb, queue.Config{Prefix: inventory.QueuePrefix(0)})
	check(err)
	locks, err := lock.New(rdb, lock.Config{TTL: time.Minute})
	check(err)
	tasks := []order.Tasks{orders}
	sales := &order.Sales{Store: store, Tasks: tasks, Partition: func(string) int { return 0 }}
	stock, err := inventory.New(ctx, rdb, locks, []*queue.Queue{orders}, sales, inventory.Config{Patience: time.Minute})
	check(err)
	items, err := catalog.New(ctx, store, stock, catalog.Config{Wait: time.Minute, LoadTimeout: time.Minute})
	check(err)
	ignore := func(error) {}
	waiters := order.NewWaiters()
	shop = order.NewService(order.Config{
		Store: store, Stock: stock, Items: items, Tasks: tasks, Waiters: waiters,
		Returns: order.NewReturns(store, rdb, 1, ignore),
	})
	_, err = shop.CreateItem(ctx, order.NewItem{ID: "pen", Name: "Pen", PriceMinor: 100, Currency: "EUR", Stock: 10, PerUserLimit: 2})
	check(err)
	return shop, orders, order.NewFulfiller(store, rdb, waiters, ignore), func() {
		check(stock.Close(ctx))
		check(items.Close(ctx))
		check(locks.Close(ctx))
		closeStore()
		check(rdb.Close())
		server.Close()
	}
}

// An order is accepted once it is in the queue (202), before the database knows of
// it. A worker commits the queued orders in batches.
func ExampleService_Place() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	shop, orders, worker, stop := openShop(ctx)
	defer stop()

	placed, err := shop.Place(ctx, order.Purchase{ItemID: "pen", UserID: "alice", IdempotencyKey: "k1", Quantity: 1})
	check(err)
	fmt.Println("answered:", placed.Order.Status, "committed:", placed.Committed)

	working, stopWorker := context.WithCancel(ctx)
	ended := make(chan error)
	go func() { ended <- worker.Work(working, []*queue.Queue{orders}, nil, queue.RunConfig{}) }()
	for placed.Order.Status == order.StatusQueued {
		placed.Order, err = shop.Get(ctx, placed.Order.ID)
		check(err)
	}
	fmt.Println("later:", placed.Order.Status)
	stopWorker()
	check(<-ended)
	// Output:
	// answered: queued committed: false
	// later: confirmed
}
