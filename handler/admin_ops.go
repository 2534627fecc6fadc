package handler

import (
	"context"
	"strconv"
	"time"

	"github.com/rs/zerolog"

	"flashsale/catalog"
	"flashsale/handler/encode"
	"flashsale/order/reconcile"
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

// reconciler compares the items in Redis with those in the database.
type reconciler interface {
	// Reconcile examines one item or all. Errors: catalog.ErrItemNotFound,
	// order.ErrDatabase.
	Reconcile(ctx context.Context, o reconcile.Options) (reconcile.Report, error)
}

// reconcileRoutes compare Redis with the database.
type reconcileRoutes struct {
	reconciler    reconciler
	log, refusals zerolog.Logger
}

// reconcileLimit bounds one requested reconciliation. The server's own limits are for
// purchases.
const reconcileLimit = 5 * time.Minute

// reconcile answers POST /v1/admin/reconcile.
func (rs *reconcileRoutes) reconcile(q *call) error {
	o, err := readReconcileOptions(q)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(q.ctx(), reconcileLimit)
	defer cancel()
	q.takeTime(reconcileLimit, rs.log)
	report, err := rs.reconciler.Reconcile(ctx, o)
	if err != nil {
		return err
	}
	for i := range report.Items {
		if item := &report.Items[i]; item.Err != nil {
			rs.refusals.Warn().Str("request_id", q.requestID()).Err(item.Err).Msg("item not reconciled")
		}
	}
	q.out = appendReconcileReport(q.out[:0], &report)
	return q.json(200)
}

// readReconcileOptions reads the query.
func readReconcileOptions(q *call) (o reconcile.Options, err error) {
	o = reconcile.Options{Actor: q.identity.Subject, RequestID: q.requestID()}
	repair, err := q.query.Switch("repair", false)
	if err != nil {
		return o, err
	}
	if repair {
		o.Repair = reconcile.RepairAll
	}
	if o.Deep, err = q.query.Switch("deep", true); err != nil {
		return o, err
	}
	o.ItemID, err = q.query.ID("item_id", catalog.ValidID, problemItemID)
	return o, err
}

// appendReconcileReport appends the report of a reconciliation.
func appendReconcileReport(b []byte, r *reconcile.Report) []byte {
	b = encode.BoolField(b, `{"balanced":`, r.Balanced)
	b = encode.TimeField(b, `,"started_at":`, r.StartedAt)
	b = encode.IntField(b, `,"took_ms":`, r.Took.Milliseconds())
	b = encode.BoolField(b, `,"deep":`, r.Deep)
	b = encode.BoolField(b, `,"repair":`, r.Repair != reconcile.RepairNothing)
	b = encode.IntField(b, `,"examined":`, int64(r.Examined))
	b = encode.IntField(b, `,"differing":`, int64(r.Differing))
	b = encode.IntField(b, `,"failed":`, int64(r.Failed))
	b = encode.IntField(b, `,"repaired":`, int64(r.Repaired))
	b = append(b, `,"items":[`...)
	b = encode.List(b, r.Items, appendItemReport)
	b = encode.IntField(b, `],"omitted":`, int64(r.Omitted))
	return append(b, '}')
}

func appendItemReport(b []byte, r *reconcile.ItemReport) []byte {
	b = appendBucket(append(b, '{'), r.ItemID)
	if r.Err != nil {
		code := problemInternal.Code
		if p := lookUp(r.Err); p != nil {
			code = p.Code
		}
		b = encode.TextField(b, `,"error":`, code)
	} else {
		b = encode.BoolField(b, `,"loaded":`, r.Loaded)
		b = appendLedger(append(b, `,"ledger":`...), r.Ledger)
	}
	b = append(b, `,"drifts":[`...)
	b = encode.List(b, r.Drifts, appendDrift)
	b = append(b, ']')
	b = encode.IntField(b, `,"late_returns":`, r.LateReturns)
	b = encode.BoolField(b, `,"partial":`, r.Partial)
	return append(b, '}')
}

func appendDrift(b []byte, d *reconcile.Drift) []byte {
	b = encode.TextField(b, `{"kind":`, string(d.Kind))
	b = encode.IntField(b, `,"expected":`, d.Expected)
	b = encode.IntField(b, `,"found":`, d.Found)
	b = encode.IntField(b, `,"units":`, d.Units)
	b = encode.IntField(b, `,"count":`, int64(d.Count))
	b = encode.BoolField(b, `,"repaired":`, d.Repaired)
	return append(encode.TextIfSet(b, `,"note":`, d.Note), '}')
}
