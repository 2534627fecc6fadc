package handler

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"net/url"

	"flashsale/catalog"
	"flashsale/order"
)

// audit answers GET /v1/admin/audit.
func (e *edge) audit(q *call) error {
	if err := checkAccept(q.c.Request.Header); err != nil {
		return err
	}
	if err := e.limit(q); err != nil {
		return err
	}
	f, err := e.readAuditFilter(q.c.Request.URL.RawQuery)
	if err != nil {
		return err
	}
	entries, more, err := e.Trail.Audit(q.ctx(), f)
	if err != nil {
		return err
	}
	b := append(q.out[:0], `{"entries":[`...)
	for i := range entries {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendAuditEntry(b, &entries[i])
	}
	next := ""
	if more && len(entries) > 0 {
		next = e.makeAuditCursor(f, entries[len(entries)-1].ID)
	}
	b = appendTextField(append(b, ']'), `,"next_cursor":`, next)
	q.out = append(b, '}')
	q.c.Writer.Header()["Cache-Control"] = headerNoStore
	return q.json(200)
}

// readAuditFilter reads the query of the audit. As with orders, what is
// misspelled must not widen the answer.
func (e *edge) readAuditFilter(query string) (order.AuditFilter, error) {
	f := order.AuditFilter{Limit: defaultPage}
	values, err := url.ParseQuery(query)
	if err != nil {
		return f, problemParameter
	}
	cursor, paged := "", false
	for name, all := range values {
		if len(all) != 1 {
			return f, problemParameter.with(truncate(name, 64), "The parameter was sent more than once; send it once.")
		}
		switch value := all[0]; name {
		case "limit":
			if f.Limit, err = readLimit(value); err != nil {
				return f, err
			}
		case "cursor":
			cursor, paged = value, true
		case "item_id":
			if !catalog.ValidID(value) {
				return f, problemItemID.with(name, problemItemID.detail)
			}
			f.ItemID = value
		case "order_id":
			if !validOrderID(value) {
				return f, problemOrderID.with(name, problemOrderID.detail)
			}
			f.OrderID = value
		default:
			return f, problemUnknownParameter.with(truncate(name, 64), "The audit takes limit, cursor, item_id and order_id.")
		}
	}
	if paged {
		before, ok := e.readAuditCursor(f, cursor)
		if !ok {
			return f, problemCursor
		}
		f.Before = before
	}
	return f, nil
}

// A cursor of the audit is base64url of 8 bytes of an entry's id and a seal, made
// like that of orders.

func (e *edge) makeAuditCursor(f order.AuditFilter, last int64) string {
	id := binary.BigEndian.AppendUint64(nil, uint64(last))
	return cursorText.EncodeToString(append(id, e.sealAuditCursor(f, id)...))
}

// readAuditCursor returns the id in a cursor that was made for these filters.
func (e *edge) readAuditCursor(f order.AuditFilter, cursor string) (before int64, ok bool) {
	raw, err := cursorText.DecodeString(cursor)
	if err != nil || len(raw) != 8+sealLength || len(cursor) != cursorText.EncodedLen(len(raw)) {
		return 0, false
	}
	id, seal := raw[:8], raw[8:]
	if !hmac.Equal(seal, e.sealAuditCursor(f, id)) {
		return 0, false
	}
	return int64(binary.BigEndian.Uint64(id)), true
}

func (e *edge) sealAuditCursor(f order.AuditFilter, id []byte) []byte {
	mac := hmac.New(sha256.New, e.CursorKey)
	mac.Write(id)
	// Neither id can hold a NUL, so the parts cannot be shifted; the name tells
	// the cursor from one of orders.
	mac.Write([]byte("audit\x00" + f.ItemID + "\x00" + f.OrderID))
	return mac.Sum(nil)[:sealLength]
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
