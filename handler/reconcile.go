package handler

import (
	"context"
	"net/http"
	"time"

	"github.com/rs/zerolog"

	"flashsale/order"
)

// Reconciler compares what Redis and the database say of the items.
type Reconciler interface {
	// Reconcile examines one item or all. Errors: catalog.ErrItemNotFound,
	// order.ErrDatabase.
	Reconcile(ctx context.Context, o order.ReconcileOptions) (order.ReconcileReport, error)
}

// reconcileRoutes compare Redis with the database.
type reconcileRoutes struct {
	reconciler    Reconciler
	log, refusals zerolog.Logger
}

// reconcileLimit bounds one reconciliation that was asked for. The server's own
// limits are made for purchases.
const reconcileLimit = 5 * time.Minute

// reconcile answers POST /v1/admin/reconcile.
func (rs *reconcileRoutes) reconcile(q *call) error {
	o, err := q.readReconcileOptions()
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

// takeTime lets a request take longer than the server allows to others. The time
// for reading it is over when it is read.
func (q *call) takeTime(d time.Duration, log zerolog.Logger) {
	err := http.NewResponseController(q.c.Writer).SetWriteDeadline(time.Now().Add(d + writeTimeout))
	if err != nil {
		log.Debug().Str("request_id", q.requestID()).Err(err).Msg("time limits stay as they are")
	}
}

// readReconcileOptions reads the query.
func (q *call) readReconcileOptions() (o order.ReconcileOptions, err error) {
	o = order.ReconcileOptions{Actor: q.who.Subject, RequestID: q.requestID()}
	repair, err := q.querySwitch("repair", false)
	if err != nil {
		return o, err
	}
	if repair {
		o.Repair = order.RepairAll
	}
	if o.Deep, err = q.querySwitch("deep", true); err != nil {
		return o, err
	}
	o.ItemID, err = q.queryID("item_id", "item")
	return o, err
}

// appendReconcileReport appends the report of a reconciliation.
func appendReconcileReport(b []byte, r *order.ReconcileReport) []byte {
	b = appendBoolField(b, `{"balanced":`, r.Balanced)
	b = appendTimeField(b, `,"started_at":`, r.StartedAt)
	b = appendIntField(b, `,"took_ms":`, r.Took.Milliseconds())
	b = appendBoolField(b, `,"deep":`, r.Deep)
	b = appendBoolField(b, `,"repair":`, r.Repair != order.RepairNothing)
	b = appendIntField(b, `,"examined":`, int64(r.Examined))
	b = appendIntField(b, `,"differing":`, int64(r.Differing))
	b = appendIntField(b, `,"failed":`, int64(r.Failed))
	b = appendIntField(b, `,"repaired":`, int64(r.Repaired))
	b = append(b, `,"items":[`...)
	b = appendList(b, r.Items, appendItemReport)
	b = appendIntField(b, `],"omitted":`, int64(r.Omitted))
	return append(b, '}')
}

func appendItemReport(b []byte, r *order.ItemReport) []byte {
	b = appendTextField(b, `{"item_id":`, r.ItemID)
	if r.Err != nil {
		code := problemInternal.code
		if p := lookUp(r.Err); p != nil {
			code = p.code
		}
		b = appendTextField(b, `,"error":`, code)
	} else {
		b = appendBoolField(b, `,"loaded":`, r.Loaded)
		b = appendLedger(append(b, `,"ledger":`...), r.Ledger)
	}
	b = append(b, `,"drifts":[`...)
	b = appendList(b, r.Drifts, appendDrift)
	b = append(b, ']')
	b = appendIntField(b, `,"late_returns":`, r.LateReturns)
	b = appendBoolField(b, `,"partial":`, r.Partial)
	return append(b, '}')
}

func appendDrift(b []byte, d *order.Drift) []byte {
	b = appendTextField(b, `{"kind":`, string(d.Kind))
	b = appendIntField(b, `,"expected":`, d.Expected)
	b = appendIntField(b, `,"found":`, d.Found)
	b = appendIntField(b, `,"units":`, d.Units)
	b = appendIntField(b, `,"count":`, int64(d.Count))
	b = appendBoolField(b, `,"repaired":`, d.Repaired)
	return append(appendTextIfSet(b, `,"note":`, d.Note), '}')
}
