package handler

import (
	"context"
	"strconv"
	"time"

	"github.com/rs/zerolog"

	"flashsale/handler/encode"
	"flashsale/order/worker"
)

// taskService manages the task queues.
type taskService interface {
	// Depths returns the depths of all queues.
	Depths(ctx context.Context) ([]worker.QueueDepth, error)
	// Verify checks every task, and repairs problems if repair is set.
	Verify(ctx context.Context, repair bool) ([]worker.QueueCheck, error)
	deadLetters
}

// workerStatus reports on the processes that commit orders.
type workerStatus interface {
	// WorkerStatus returns the live workers and their problems.
	WorkerStatus(ctx context.Context) (worker.Status, error)
}

// queueRoutes manage the task queues.
type queueRoutes struct {
	tasks   taskService
	workers workerStatus // nil: not shown
	log     zerolog.Logger
}

// depths answers GET /v1/admin/queue: the totals, and each queue.
func (rs *queueRoutes) depths(q *call) error {
	depths, err := rs.tasks.Depths(q.ctx())
	if err != nil {
		return err
	}
	var all worker.QueueDepth
	for i := range depths {
		d := &depths[i]
		all.Orders += d.Orders
		all.Ready += d.Ready
		all.Delayed += d.Delayed
		all.Leased += d.Leased
		all.Dead += d.Dead
		all.OldestReady = max(all.OldestReady, d.OldestReady)
		all.Processed += d.Processed
		all.Failed += d.Failed
		all.PerSecond += d.PerSecond
	}
	b := appendDepth(append(q.out[:0], '{'), &all)
	b = append(encode.List(append(b, `,"queues":[`...), depths, appendQueue), ']')
	if rs.workers != nil {
		w, err := rs.workers.WorkerStatus(q.ctx())
		if err != nil {
			return err
		}
		b = appendWorkers(append(b, `,"workers":`...), &w)
	}
	q.out = append(b, '}')
	return q.json(200)
}

func appendWorkers(b []byte, w *worker.Status) []byte {
	b = encode.IntField(b, `{"live":`, int64(w.Live))
	if !w.LastFetch.IsZero() {
		b = encode.TimeField(b, `,"last_fetch_at":`, w.LastFetch)
	}
	return append(encode.TextIfSet(b, `,"trouble":`, w.Trouble), '}')
}

func appendQueue(b []byte, d *worker.QueueDepth) []byte {
	b = encode.TextField(b, `{"name":`, d.Name)
	b = appendDepth(append(b, ','), d)
	b = appendMillis(b, `,"wait_p50_ms":`, d.WaitP50)
	b = appendMillis(b, `,"wait_p99_ms":`, d.WaitP99)
	return append(encode.BoolField(b, `,"paused":`, d.Paused), '}')
}

func appendDepth(b []byte, d *worker.QueueDepth) []byte {
	b = encode.IntField(b, `"orders":`, int64(d.Orders))
	b = encode.IntField(b, `,"ready":`, int64(d.Ready))
	b = encode.IntField(b, `,"delayed":`, int64(d.Delayed))
	b = encode.IntField(b, `,"leased":`, int64(d.Leased))
	b = encode.IntField(b, `,"dead":`, int64(d.Dead))
	b = appendMillis(b, `,"oldest_age_ms":`, d.OldestReady)
	b = encode.IntField(b, `,"processed":`, d.Processed)
	b = encode.IntField(b, `,"failed_attempts":`, d.Failed)
	return strconv.AppendFloat(append(b, `,"per_second":`...), d.PerSecond, 'f', 2, 64)
}

// appendMillis appends a duration in milliseconds, with three decimals.
func appendMillis(b []byte, name string, d time.Duration) []byte {
	return strconv.AppendFloat(append(b, name...), float64(d)/float64(time.Millisecond), 'f', 3, 64)
}

// verify answers POST /v1/admin/queue/verify, with ?repair=true to repair.
func (rs *queueRoutes) verify(q *call) error {
	repair, err := q.query.Switch("repair", false)
	if err != nil {
		return err
	}
	checks, err := rs.tasks.Verify(q.ctx(), repair)
	if err != nil {
		return err
	}
	clean := true
	b := encode.List(append(q.out[:0], `{"queues":[`...), checks, func(b []byte, c *worker.QueueCheck) []byte {
		clean = clean && c.Lost+c.Doubled+c.Bodiless == 0
		b = encode.TextField(b, `{"name":`, c.Name)
		b = encode.IntField(b, `,"tasks":`, int64(c.Tasks))
		b = encode.IntField(b, `,"lost":`, int64(c.Lost))
		b = encode.IntField(b, `,"doubled":`, int64(c.Doubled))
		b = encode.IntField(b, `,"bodiless":`, int64(c.Bodiless))
		return append(encode.BoolField(b, `,"repaired":`, c.Repaired), '}')
	})
	q.out = append(encode.BoolField(b, `],"clean":`, clean), '}')
	return q.json(200)
}
