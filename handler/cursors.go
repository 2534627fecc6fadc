package handler

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"strconv"

	"flashsale/catalog"
	"flashsale/handler/request"
	"flashsale/order"
	"flashsale/order/webhooks"
)

// sealer creates and reads the cursors of lists: base64url of a position in the list and of a
// seal. The seal covers the list and its filters as well, so a cursor is only valid for its own
// list.
type sealer struct{ key []byte }

const sealLength = 16

var cursorText = base64.RawURLEncoding.Strict()

func (s sealer) seal(position []byte, list string) []byte {
	mac := hmac.New(sha256.New, s.key)
	mac.Write(position)
	mac.Write([]byte(list))
	return mac.Sum(nil)[:sealLength:sealLength]
}

func (s sealer) cursor(position []byte, list string) string {
	return cursorText.EncodeToString(append(position, s.seal(position, list)...))
}

// position returns the position in a cursor of the list; length is that of its positions.
func (s sealer) position(cursor string, length int, list string) ([]byte, bool) {
	raw, err := cursorText.DecodeString(cursor)
	if err != nil || len(raw) != length+sealLength || len(cursor) != cursorText.EncodedLen(len(raw)) {
		return nil, false
	}
	position := raw[:length]
	return position, hmac.Equal(raw[length:], s.seal(position, list))
}

// after returns the cursor that continues after the entry with this number; "" if no entries
// follow.
func (s sealer) after(number int64, more bool, list string) string {
	if !more {
		return ""
	}
	return s.cursor(binary.BigEndian.AppendUint64(nil, uint64(number)), list)
}

// before returns the number in the request's cursor of this list; 0 without a cursor.
func (s sealer) before(q request.Query, list string) (int64, error) {
	if !q.Has("cursor") {
		return 0, nil
	}
	position, ok := s.position(q.Get("cursor"), 8, list)
	if !ok {
		return 0, request.ErrCursor
	}
	return int64(binary.BigEndian.Uint64(position)), nil
}

// The names of lists in their seals. No part can contain a NUL, so the boundaries between the
// parts are unambiguous.

func auditList(f order.AuditFilter) string { return "audit\x00" + f.ItemID + "\x00" + f.OrderID }

func paymentList(f order.PaymentFilter) string {
	return "payments\x00" + string(f.Outcome) + "\x00" + strconv.FormatBool(f.NeedsRefund) + "\x00" + f.Reference
}

func deliveryList(f webhooks.DeliveryFilter) string {
	return "deliveries\x00" + f.EndpointID + "\x00" + string(f.State)
}

func orderList(f order.Filter) string {
	return f.UserID + "\x00" + f.ItemID + "\x00" + string(f.Status)
}

// makeCursor returns the cursor that continues after the order with this id, or "" for an id
// that is not a UUID. Its position is the id's 16 bytes.
func (s sealer) makeCursor(f order.Filter, last string) string {
	id, ok := packID(last)
	if !ok {
		return ""
	}
	return s.cursor(id, orderList(f))
}

// readCursor returns the order id in a cursor for these filters.
func (s sealer) readCursor(f order.Filter, cursor string) (before string, ok bool) {
	id, ok := s.position(cursor, 16, orderList(f))
	if !ok {
		return "", false
	}
	return unpackID(id), true
}

// beforeOrder returns the order id in the request's cursor for these filters; "" without a cursor.
func (s sealer) beforeOrder(q request.Query, f order.Filter) (string, error) {
	if !q.Has("cursor") {
		return "", nil
	}
	id, ok := s.readCursor(f, q.Get("cursor"))
	if !ok {
		return "", request.ErrCursor
	}
	return id, nil
}

// maxItemCursor is the length of the cursor after an item with the longest id.
var maxItemCursor = cursorText.EncodedLen(sealLength + catalog.MaxIDLength)

// makeItemCursor returns the cursor that continues after the item with this id. The seal comes
// first, since ids differ in length.
func (s sealer) makeItemCursor(last string) string {
	return cursorText.EncodeToString(append(s.seal([]byte("items\x00"+last), ""), last...))
}

// readItemCursor returns the item's id in a cursor.
func (s sealer) readItemCursor(cursor string) (after string, ok bool) {
	if len(cursor) > maxItemCursor {
		return "", false
	}
	raw, err := cursorText.DecodeString(cursor)
	if err != nil || len(raw) <= sealLength || len(cursor) != cursorText.EncodedLen(len(raw)) {
		return "", false
	}
	after = string(raw[sealLength:])
	return after, hmac.Equal(raw[:sealLength], s.seal([]byte("items\x00"+after), ""))
}

// afterItem returns the item's id in the request's cursor; "" without a cursor.
func (s sealer) afterItem(q request.Query) (string, error) {
	if !q.Has("cursor") {
		return "", nil
	}
	id, ok := s.readItemCursor(q.Get("cursor"))
	if !ok {
		return "", request.ErrCursor
	}
	return id, nil
}

// packID converts a UUID's text to its 16 bytes.
func packID(id string) ([]byte, bool) {
	if !validOrderID(id) {
		return nil, false
	}
	raw, err := hex.DecodeString(id[:8] + id[9:13] + id[14:18] + id[19:23] + id[24:])
	return raw, err == nil
}

func unpackID(raw []byte) string {
	h := hex.EncodeToString(raw)
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}
