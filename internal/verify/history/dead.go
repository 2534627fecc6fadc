package history

import (
	"context"
	"fmt"

	"flashsale/inventory/accepted"

	"github.com/redis/go-redis/v9"
)

// DeadOrders returns the ids of the orders whose tasks are dead letters of the queue with this
// prefix. Errors: those of Redis.
func DeadOrders(ctx context.Context, rdb redis.Cmdable, prefix string) ([]string, error) {
	tasks, err := rdb.ZRange(ctx, prefix+"dead", 0, -1).Result()
	if err != nil || len(tasks) == 0 {
		return nil, err
	}
	payloads, err := rdb.HMGet(ctx, prefix+"body", tasks...).Result()
	if err != nil {
		return nil, fmt.Errorf("read %d dead letters: %w", len(tasks), err)
	}
	var orders []string
	for i, task := range tasks {
		text, _ := payloads[i].(string)
		for _, o := range accepted.OrdersOf(task, []byte(text)) {
			orders = append(orders, o.OrderID)
		}
	}
	return orders, nil
}
