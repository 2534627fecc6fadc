package catalog_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/catalog"
	"flashsale/internal/embedded"
	"flashsale/lock"
)

// database stands in for the database behind the cache. It counts the ids that it reads, and
// can be made slow.
type database struct {
	mu    sync.Mutex
	items map[string]catalog.Item
	asked int
	slow  chan struct{} // not nil: an answer takes until it is closed
}

func (d *database) ItemsByID(_ context.Context, ids []string) ([]catalog.Item, error) {
	d.mu.Lock()
	d.asked += len(ids)
	slow := d.slow
	var found []catalog.Item
	for _, id := range ids {
		if item, ok := d.items[id]; ok {
			found = append(found, item)
		}
	}
	d.mu.Unlock()
	if slow != nil {
		<-slow
	}
	return found, nil
}

func (d *database) Items(context.Context) ([]catalog.Item, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []catalog.Item
	for _, item := range d.items {
		all = append(all, item)
	}
	return all, nil
}

func (d *database) ItemIDs(_ context.Context, after string, limit int) ([]string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var ids []string
	for id := range d.items {
		if id > after {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids[:min(limit, len(ids))], nil
}

// Left says that no sale is loaded, so that an item shows its own stock.
func (d *database) Left(_ context.Context, items []string) ([]int64, error) {
	return slices.Repeat([]int64{-1}, len(items)), nil
}

// set changes an item, and makes the database slow or not.
func (d *database) set(item catalog.Item, slow chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.items[item.ID], d.slow = item, slow
}

func (d *database) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.asked
}

// newDatabase has one item, a pen that costs 100.
func newDatabase() *database {
	return &database{items: map[string]catalog.Item{"pen": {ID: "pen", PriceMinor: 100, Version: 1}}}
}

// connect returns a client of a Redis inside the process.
func connect() (rdb *redis.Client, stop func()) {
	server, err := embedded.Start()
	check(err)
	rdb = redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1, ContextTimeoutEnabled: true})
	return rdb, func() {
		check(rdb.Close())
		server.Close()
	}
}

// process is a catalogue in one process. Its time-outs are so long that an example ends the
// same way on a busy machine.
func process(db *database, cfg catalog.Config) (c *catalog.Catalog, stop func()) {
	cfg.Wait, cfg.RedisTimeout = time.Minute, time.Minute
	c, err := catalog.New(context.Background(), db, db, cfg)
	check(err)
	return c, func() { check(c.Close(context.Background())) }
}

// check keeps the examples short; a program handles its errors.
func check(err error) {
	if err != nil {
		panic(err)
	}
}

// read is a crowd of readers that all want the pen at once.
func read(readers int, processes ...*catalog.Catalog) {
	var all sync.WaitGroup
	for i := range readers {
		all.Go(func() {
			_, err := processes[i%len(processes)].View(context.Background(), "pen")
			check(err)
		})
	}
	all.Wait()
}

// locked is a process that shares Redis and its locks with others.
func locked(rdb *redis.Client, db *database) (c *catalog.Catalog, stop func()) {
	locks, err := lock.New(rdb, lock.Config{TTL: time.Minute})
	check(err)
	c, stopCatalog := process(db, catalog.Config{Redis: rdb, Locks: locks})
	return c, func() {
		stopCatalog()
		check(locks.Close(context.Background()))
	}
}

// Two processes want an item that is in no cache. One of them takes the item's
// distributed lock, asks the database and fills Redis; the other waits for the
// lock and then finds the item in Redis.
func ExampleConfig_locks() {
	rdb, disconnect := connect()
	defer disconnect()
	db := newDatabase()
	first, stopFirst := locked(rdb, db)
	defer stopFirst()
	second, stopSecond := locked(rdb, db)
	defer stopSecond()

	read(100, first, second)
	fmt.Println("asked of the database:", db.count())
	// Output:
	// asked of the database: 1
}

// Avalanche: entries that were loaded together would expire together. Jitter
// takes up to a fifth off each one's TTL.
func ExampleDefence_avalanche() {
	for _, off := range []catalog.Defence{catalog.Avalanche, 0} {
		rdb, disconnect := connect()
		db := newDatabase()
		for i := range 100 {
			id := fmt.Sprint("item-", i)
			db.items[id] = catalog.Item{ID: id, Version: 1}
		}
		c, stop := process(db, catalog.Config{Redis: rdb, Keep: 10 * time.Hour, Off: off})
		loaded := time.Now()
		var ends []time.Duration // after the start
		for id := range db.items {
			_, err := c.View(context.Background(), id)
			check(err)
			ttl, err := rdb.PTTL(context.Background(), "fs:{p0}:item:"+id).Result()
			check(err)
			ends = append(ends, time.Since(loaded)+ttl)
		}
		fmt.Println("expire over more than an hour:", slices.Max(ends)-slices.Min(ends) > time.Hour)
		stop()
		disconnect()
	}
	// Output:
	// expire over more than an hour: false
	// expire over more than an hour: true
}

// Breakdown of a hot key, solved by a mutex: of all readers that miss, one loads
// the item and the others wait for its result.
func ExampleDefence_breakdownMutex() {
	db := newDatabase()
	c, stop := process(db, catalog.Config{Life: time.Hour, Fresh: time.Hour, Keep: time.Hour}) // nothing is reloaded for its age
	defer stop()

	read(100, c)
	fmt.Println("asked of the database:", db.count())
	// Output:
	// asked of the database: 1
}

// Breakdown of a hot key, solved by logical expiry: an item that is past its time
// is still shown, while one background load replaces it. No reader waits.
func ExampleDefence_breakdownLogicalExpiry() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	db := newDatabase()
	c, stop := process(db, catalog.Config{Life: time.Millisecond, Fresh: time.Millisecond, Keep: time.Hour})
	defer stop()
	price := func() int64 {
		v, err := c.View(ctx, "pen")
		check(err)
		return v.Item.PriceMinor
	}

	fmt.Println("first reader:", price())
	slow := make(chan struct{})
	db.set(catalog.Item{ID: "pen", PriceMinor: 120, Version: 2}, slow)
	<-time.After(2 * time.Millisecond) // past the logical expiry
	fmt.Println("while it is loaded:", price(), price(), price())

	close(slow) // the database answers
	for price() != 120 {
		<-time.After(time.Millisecond)
	}
	fmt.Println("afterwards:", price())
	// Output:
	// first reader: 100
	// while it is loaded: 100 100 100
	// afterwards: 120
}

// Penetration by invented ids, stopped by a Bloom filter of all ids: it never
// refuses an item that exists, and lets about one invented id in a thousand pass.
func ExampleDefence_bloom() {
	rdb, disconnect := connect()
	defer disconnect()
	db := newDatabase()
	c, stop := process(db, catalog.Config{Redis: rdb, Off: catalog.Negatives})
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	ended := make(chan error)
	go func() { ended <- c.Run(ctx) }() // builds the filter and receives new items
	for c.Ready(ctx) != nil && ctx.Err() == nil {
		<-time.After(time.Millisecond)
	}

	before := db.count()
	for i := range 1000 {
		_, err := c.View(ctx, fmt.Sprint("invented-", i))
		if !errors.Is(err, catalog.ErrItemNotFound) {
			fmt.Println(err)
		}
	}
	fmt.Println("fewer than 10 of 1000 reach the database:", db.count()-before < 10)
	cancel()
	check(<-ended)
	// Output:
	// fewer than 10 of 1000 reach the database: true
}

// Penetration by one unknown id again and again, stopped by null caching: that the
// id is unknown is remembered for a short time.
func ExampleDefence_negatives() {
	db := newDatabase()
	c, stop := process(db, catalog.Config{Negative: time.Minute, Off: catalog.Bloom})
	defer stop()

	for range 1000 {
		_, err := c.View(context.Background(), "no-such-item")
		if !errors.Is(err, catalog.ErrItemNotFound) {
			fmt.Println(err)
		}
	}
	fmt.Println("asked of the database:", db.count())
	// Output:
	// asked of the database: 1
}

// Penetration by malformed ids, stopped by a check of the parameter before any
// cache is asked.
func ExampleValidID() {
	for _, id := range []string{"drop-1", "-1", "1 OR 1=1", "../etc/passwd", "Drop-1"} {
		fmt.Println(catalog.ValidID(id), id)
	}
	// Output:
	// true drop-1
	// false -1
	// false 1 OR 1=1
	// false ../etc/passwd
	// false Drop-1
}
