package handler

import (
	"context"
	"time"

	"github.com/rs/zerolog"

	"flashsale/catalog"
	"flashsale/handler/encode"
	"flashsale/order/reconcile"
)

// reconciler compares the items in Redis with those in the database.
type reconciler interface {
	// Reconcile examines one item or all. Errors: catalog.ErrItemNotFound,
	// database.ErrUnavailable.
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
	b = encode.IntField(b, `,"late_returns":`, r.LateReleases)
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
