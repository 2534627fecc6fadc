package main

import (
	"context"
	_ "embed" // the script
	"errors"

	"github.com/redis/go-redis/v9"
)

// The keys of an item.
func stockKey(item string) string  { return "peers:stock:" + item }
func buyersKey(item string) string { return "peers:buyers:" + item } // hash: units by buyer
func ordersKey(item string) string { return "peers:orders:" + item } // hash: order ids by buyer and key
func lockKey(item string) string   { return "peers:lock:" + item }

func itemKeys(item string) []string {
	return []string{stockKey(item), buyersKey(item), ordersKey(item)}
}

// entry is the order's field in ordersKey. A buyer's name has no spaces.
func entry(o order) string { return o.Buyer + " " + o.Key }

// openRedis opens a client without automatic retries, which would repeat a decrement whose reply
// was lost.
func openRedis(addr string) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: addr, PoolSize: 256, MaxRetries: -1, ContextTimeoutEnabled: true})
}

// redisStock is the stock in Redis, with the units of each buyer and the idempotency keys.
type redisStock struct{ rdb *redis.Client }

func (r redisStock) put(ctx context.Context, item string, total int64) error {
	return r.rdb.Set(ctx, stockKey(item), total, 0).Err()
}

func (r redisStock) left(ctx context.Context, item string) (int64, error) {
	return r.rdb.Get(ctx, stockKey(item)).Int64()
}

// check reads the item and decides whether the order may be placed. It returns the id of the
// order that the buyer has placed with this key before, if there is one.
func check(ctx context.Context, c redis.Cmdable, o order) (earlier string, err error) {
	var id, held, stock *redis.StringCmd
	_, err = c.Pipelined(ctx, func(p redis.Pipeliner) error {
		id = p.HGet(ctx, ordersKey(o.Item), entry(o))
		held = p.HGet(ctx, buyersKey(o.Item), o.Buyer)
		stock = p.Get(ctx, stockKey(o.Item))
		return nil
	})
	if err != nil && !errors.Is(err, redis.Nil) {
		return "", err
	}
	if id.Err() == nil {
		return id.Val(), nil
	}
	units, err := orZero(held)
	if err != nil {
		return "", err
	}
	left, err := orZero(stock)
	switch {
	case err != nil:
		return "", err
	case units+o.Quantity > perBuyer:
		return "", errLimit
	case left < o.Quantity:
		return "", errSoldOut
	}
	return "", nil
}

// orZero is the number in a reply, 0 if the key does not exist.
func orZero(c *redis.StringCmd) (int64, error) {
	n, err := c.Int64()
	if errors.Is(err, redis.Nil) {
		return 0, nil
	}
	return n, err
}

// take takes the units of an order, in one transaction.
func (r redisStock) take(ctx context.Context, c redis.Cmdable, o order) error {
	_, err := c.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.DecrBy(ctx, stockKey(o.Item), o.Quantity)
		p.HIncrBy(ctx, buyersKey(o.Item), o.Buyer, o.Quantity)
		p.HSet(ctx, ordersKey(o.Item), entry(o), o.ID)
		return nil
	})
	return err
}

// release returns the units of an order that could not be placed.
func (r redisStock) release(ctx context.Context, o order) error {
	_, err := r.rdb.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.IncrBy(ctx, stockKey(o.Item), o.Quantity)
		p.HIncrBy(ctx, buyersKey(o.Item), o.Buyer, -o.Quantity)
		p.HDel(ctx, ordersKey(o.Item), entry(o))
		return nil
	})
	return err
}

//go:embed lua/reserve.lua
var reserveSource string

var reserveScript = redis.NewScript(reserveSource)

// reserve checks and takes in one script.
func (r redisStock) reserve(ctx context.Context, o order) (id string, err error) {
	reply, err := reserveScript.Run(ctx, r.rdb, itemKeys(o.Item), o.Buyer, entry(o), o.Quantity, perBuyer, o.ID).Text()
	switch {
	case err != nil:
		return "", err
	case reply == "sold_out":
		return "", errSoldOut
	case reply == "user_limit":
		return "", errLimit
	}
	return reply, nil
}

// reserveThenInsert sells in two steps that no transaction connects: the units in Redis, then
// the row. A process that dies in between leaves units that belong to no order, unless the
// buyer repeats the request: a repeat inserts the row of the reserved order.
type reserveThenInsert struct {
	stock   redisStock
	orders  *sqliteOrders
	reserve func(ctx context.Context, o order) (id string, err error)
}

func openReserveThenInsert(ctx context.Context, s settings) (*reserveThenInsert, error) {
	orders, err := openSQLiteOrders(ctx, s.db)
	if err != nil {
		return nil, err
	}
	return &reserveThenInsert{stock: redisStock{openRedis(s.redis)}, orders: orders}, nil
}

func (r *reserveThenInsert) sell(ctx context.Context, o order) (string, error) {
	id, err := r.reserve(ctx, o)
	if err != nil {
		return "", err
	}
	repeated := id != o.ID
	o.ID = id
	if err := r.orders.insert(ctx, o); err != nil {
		if !repeated {
			err = errors.Join(err, r.stock.release(context.WithoutCancel(ctx), o))
		}
		return "", err
	}
	return id, nil
}

func (r *reserveThenInsert) close(context.Context) error {
	return errors.Join(r.orders.close(), r.stock.rdb.Close())
}
