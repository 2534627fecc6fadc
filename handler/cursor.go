package handler

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"

	"flashsale/catalog"
	"flashsale/order"
)

// A cursor is base64url of 16 bytes of order id and 16 bytes of seal. The seal
// covers the filters as well: a cursor of one list does not fit another.

const sealLength = 16

var cursorText = base64.RawURLEncoding.Strict()

// makeCursor returns the cursor that goes on after the order with this id, or
// an empty one for an id that is no UUID.
func (e *edge) makeCursor(f order.Filter, last string) string {
	id, ok := packID(last)
	if !ok {
		return ""
	}
	return cursorText.EncodeToString(append(id, e.sealCursor(f, id)...))
}

// readCursor returns the order id in a cursor that was made for these filters.
func (e *edge) readCursor(f order.Filter, cursor string) (before string, ok bool) {
	raw, err := cursorText.DecodeString(cursor)
	if err != nil || len(raw) != 16+sealLength || len(cursor) != cursorText.EncodedLen(len(raw)) {
		return "", false
	}
	id, seal := raw[:16], raw[16:]
	if !hmac.Equal(seal, e.sealCursor(f, id)) {
		return "", false
	}
	return unpackID(id), true
}

func (e *edge) sealCursor(f order.Filter, id []byte) []byte {
	mac := hmac.New(sha256.New, e.CursorKey)
	mac.Write(id)
	// None of the three can hold a NUL, so the parts cannot be shifted.
	mac.Write([]byte(f.UserID + "\x00" + f.ItemID + "\x00" + string(f.Status)))
	return mac.Sum(nil)[:sealLength]
}

// An item's cursor is base64url of a seal and the item's id. The name in the seal
// tells it from those of other lists.

// maxItemCursor is the length of the cursor after an item with the longest id.
var maxItemCursor = cursorText.EncodedLen(sealLength + catalog.MaxIDLength)

// makeItemCursor returns the cursor that goes on after the item with this id.
func (e *edge) makeItemCursor(last string) string {
	return cursorText.EncodeToString(append(e.sealItemCursor(last), last...))
}

// readItemCursor returns the item's id in a cursor.
func (e *edge) readItemCursor(cursor string) (after string, ok bool) {
	if len(cursor) > maxItemCursor {
		return "", false
	}
	raw, err := cursorText.DecodeString(cursor)
	if err != nil || len(raw) <= sealLength || len(cursor) != cursorText.EncodedLen(len(raw)) {
		return "", false
	}
	after = string(raw[sealLength:])
	return after, hmac.Equal(raw[:sealLength], e.sealItemCursor(after))
}

func (e *edge) sealItemCursor(id string) []byte {
	mac := hmac.New(sha256.New, e.CursorKey)
	mac.Write([]byte("items\x00" + id))
	return mac.Sum(nil)[:sealLength:sealLength]
}

// packID turns a UUID's text into its 16 bytes.
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
