package handler

import (
	"flashsale/order"
)

// auditRoutes show the audit log.
type auditRoutes struct {
	log     Trail
	cursors sealer
}

// list answers GET /v1/admin/audit.
func (rs *auditRoutes) list(q *call) error {
	f, err := rs.readFilter(q)
	if err != nil {
		return err
	}
	entries, more, err := rs.log.Audit(q.ctx(), f)
	if err != nil {
		return err
	}
	next := ""
	if len(entries) > 0 {
		next = rs.cursors.after(entries[len(entries)-1].ID, more, auditList(f))
	}
	b := appendList(append(q.out[:0], `{"entries":[`...), entries, appendAuditEntry)
	q.out = append(appendTextField(b, `],"next_cursor":`, next), '}')
	return q.json(200)
}

func (rs *auditRoutes) readFilter(q *call) (f order.AuditFilter, err error) {
	if f.Limit, err = q.pageLimit(); err != nil {
		return f, err
	}
	if f.ItemID, err = q.queryID("item_id", "item"); err != nil {
		return f, err
	}
	if f.OrderID, err = q.queryID("order_id", "order"); err != nil {
		return f, err
	}
	f.Before, err = rs.cursors.before(q, auditList(f))
	return f, err
}

// appendAuditEntry appends an entry. What it says of before and after is JSON
// already.
func appendAuditEntry(b []byte, a *order.AuditEntry) []byte {
	b = appendIntField(b, `{"id":`, a.ID)
	b = appendTimeField(b, `,"at":`, a.At)
	b = appendTextField(b, `,"actor":`, a.Actor)
	b = appendTextField(b, `,"action":`, a.Action)
	b = appendTextIfSet(b, `,"item_id":`, a.ItemID)
	b = appendTextIfSet(b, `,"order_id":`, a.OrderID)
	b = appendJSONIfSet(b, `,"before":`, a.Before)
	b = appendJSONIfSet(b, `,"after":`, a.After)
	b = appendTextIfSet(b, `,"request_id":`, a.RequestID)
	return append(b, '}')
}
