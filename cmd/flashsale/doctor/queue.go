package doctor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/plural"
	"flashsale/internal/registry"
	"flashsale/inventory"
	"flashsale/order/worker"
	"flashsale/queue"
)

// contents checks the service's data in Redis. If Redis refuses writes, live workers look dead, so
// they are not checked.
func (d *doctor) contents(ctx context.Context, rdb redis.UniversalClient, partitions int, writable bool) {
	switch have, err := inventory.RecordedPartitions(ctx, rdb); {
	case errors.Is(err, inventory.ErrLayout):
		d.fix("partitions", err.Error(), "let the earlier version commit the queued orders, then delete its keys: see docs/deployment.md")
		return
	case err != nil:
		d.failed("partitions", err)
		return
	case have != 0 && have != partitions:
		d.fix("partitions", fmt.Sprintf("this Redis was set up with %d, but the setting is %d", have, partitions),
			"name the Redis that belongs to the database, or set the number that is recorded")
		return
	case have == 0:
		d.ok("queue", "this Redis has no data of the service yet")
		return
	}
	if waiting := d.queues(ctx, rdb, partitions); writable {
		d.workers(ctx, rdb, waiting)
	}
	d.age(ctx, rdb, partitions)
}

// queues checks the task queues, and returns the number of accepted orders that are not committed.
func (d *doctor) queues(ctx context.Context, rdb redis.UniversalClient, partitions int) (waiting int) {
	for p := range partitions {
		s := d.queue(ctx, rdb, fmt.Sprintf("orders-%d", p), inventory.QueuePrefix(p, partitions))
		waiting += s.Pending()
		d.queue(ctx, rdb, fmt.Sprintf("expiries-%d", p), inventory.ExpiryQueuePrefix(p, partitions))
	}
	return waiting
}

// workers checks that a live worker fetches tasks. Without one, waiting orders are a problem,
// and an idle service gets a warning.
func (d *doctor) workers(ctx context.Context, rdb redis.UniversalClient, waiting int) {
	workers, err := registry.New(rdb, registry.Config{Key: worker.WorkersKey})
	if err != nil {
		d.failed("workers", err)
		return
	}
	w, err := workers.List(ctx)
	if err != nil {
		d.failed("workers", err)
		return
	}
	says := noWorker(w)
	switch {
	case says == "":
		last := "no fetch yet"
		if !w.FetchedAt.IsZero() {
			last = fmt.Sprintf("last fetch %v ago", w.Now.Sub(w.FetchedAt).Round(time.Second))
		}
		d.ok("workers", "%d live, %s", len(w.Live), last)
	case waiting > 0:
		remedy := "start flashsale worker"
		if len(w.Live) > 0 {
			remedy = fmt.Sprintf("read the log of the worker on %s, and check that the database is writable", w.Live[0].Host)
		}
		d.fix("workers", fmt.Sprintf("accepted orders wait (%d), and %s", waiting, says), remedy)
	default:
		d.warn("workers", says+"; no order waits", "start flashsale worker before the sale opens")
	}
}

// noWorker returns since when no worker has fetched, or "" if one does.
func noWorker(w registry.Workers) string {
	switch {
	case worker.Trouble(w) == "":
		return ""
	case !w.FetchedAt.IsZero():
		return "no worker has fetched since " + w.FetchedAt.Format(time.RFC3339)
	case w.SeenAt.IsZero():
		return "no worker has ever registered"
	default:
		return "no worker has ever fetched"
	}
}

// queue checks one task queue.
func (d *doctor) queue(ctx context.Context, rdb redis.UniversalClient, name, prefix string) queue.Stats {
	q, err := queue.New(rdb, queue.Config{Prefix: prefix})
	if err != nil {
		d.failed("queue", err)
		return queue.Stats{}
	}
	s, err := q.Stats(ctx)
	switch {
	case err != nil:
		d.failed("queue", err)
	case s.Paused:
		d.warn("queue", name+" is paused: its tasks wait until it is resumed",
			"flashsale pauses no queue: find out what did, then resume it with redis-cli -c DEL '"+prefix+"paused'")
	case s.Dead > 0:
		d.warn("queue", name+" holds "+plural.Count(s.Dead, "dead letter"), "see flashsale queue dead, then retry or discard them")
	case s.OldestReady > time.Minute:
		d.warn("queue", fmt.Sprintf("%s: a task has been waiting for %v", name, s.OldestReady.Round(time.Second)), "make sure that a worker runs")
	default:
		d.ok("queue", "%s: %d ready, %d delayed, %d leased, no dead letters", name, s.Ready, s.Delayed, s.Leased)
	}
	return s
}
