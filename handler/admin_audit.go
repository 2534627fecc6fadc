package handler

import (
	"encoding/json"

	"flashsale/catalog"
	"flashsale/handler/encode"
	"flashsale/order"
)

// auditRoutes show the audit log.
type auditRoutes struct {
	log     auditLog
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
	b := encode.List(append(q.out[:0], `{"entries":[`...), entries, appendAuditEntry)
	q.out = append(encode.TextField(b, `],"next_cursor":`, next), '}')
	return q.json(200)
}

func (rs *auditRoutes) readFilter(q *call) (f order.AuditFilter, err error) {
	if f.Limit, err = q.query.Limit(); err != nil {
		return f, err
	}
	if f.ItemID, err = q.query.ID("item_id", catalog.ValidID, problemItemID); err != nil {
		return f, err
	}
	if f.OrderID, err = q.query.ID("order_id", validOrderID, problemOrderID); err != nil {
		return f, err
	}
	f.Before, err = rs.cursors.before(q.query, auditList(f))
	return f, err
}

// appendAuditEntry appends an entry, whose before and after are JSON already.
func appendAuditEntry(b []byte, a *order.AuditEntry) []byte {
	b = encode.IntField(b, `{"id":`, a.ID)
	b = encode.TimeField(b, `,"at":`, a.At)
	b = encode.TextField(b, `,"actor":`, a.Actor)
	b = encode.TextField(b, `,"action":`, a.Action)
	if a.ItemID != "" {
		b = appendBucket(append(b, ','), a.ItemID)
	}
	b = encode.TextIfSet(b, `,"order_id":`, a.OrderID)
	b = appendJSONIfSet(b, `,"before":`, a.Before)
	b = appendJSONIfSet(b, `,"after":`, a.After)
	b = encode.TextIfSet(b, `,"request_id":`, a.RequestID)
	return append(b, '}')
}

// appendJSONIfSet appends a value that is already JSON, or as a string if it is not valid JSON.
func appendJSONIfSet(b []byte, name, value string) []byte {
	if !json.Valid([]byte(value)) {
		return encode.TextIfSet(b, name, value)
	}
	return append(append(b, name...), value...)
}
