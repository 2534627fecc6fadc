package inventory

import (
	"time"

	"flashsale/internal/requestid"
	"flashsale/internal/tracing"
)

// beginTrace records how long the sampled purchases of a batch waited for it, and begins their
// part of the batch. The requests have their order ids.
func (s *seller) beginTrace(batch []*Request, taken time.Time) {
	var parts []tracing.Part
	for _, r := range batch {
		if r.Trace != nil {
			r.Trace.Record("purchase.wait", r.since, taken)
			parts = append(parts, tracing.Part{Parent: r.Trace, From: taken, OrderID: r.OrderID})
		}
	}
	s.trace = tracing.Share("batch.purchase", "purchase.batch", s.item, len(batch), taken, parts)
}

func (s *seller) endTrace() {
	s.trace.End(time.Now())
	s.trace = nil
}

// about returns err with the ids of a batch's requests.
func about(batch []*Request, err error) error {
	return requestid.About(err, len(batch), func(i int) requestid.Order {
		return requestid.Order{OrderID: batch[i].OrderID, RequestID: batch[i].RequestID}
	})
}
