package accepted

import (
	"encoding/hex"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/fnv1a"
)

// A queue's log of accepted orders is a stream: the purchase script adds one entry per
// batch, with a record of each order that it accepted, in the same atomic step that adds
// their tasks. So every queued order is in the log, unless a version of this program
// without a log added it. Trim removes orders that have left the queue.
//
// A record is the hash of the buyer's name and the order's id. Only the task has the name,
// so the payload decides whose order it is.
const (
	recordSize  = 24
	recordField = "o"
)

// orderID is a UUID as it is stored in a record; zero for an id that is not a UUID.
type orderID [16]byte

// buyerHash is a hash of 64 bits. All processes must compute the same one.
func buyerHash(buyer string) uint64 { return fnv1a.Add(fnv1a.Start, buyer) }

// LogKey is the key of a queue's log. It is named after the queue, so that it is in the
// queue's slot.
func LogKey(queuePrefix string) string { return queuePrefix + "accepted" }

// AppendRecord appends the record of an order to an entry of the log.
func AppendRecord(b []byte, buyer, orderID string) []byte {
	return appendRecord(b, buyerHash(buyer), packOrderID(orderID))
}

func appendRecord(b []byte, buyer uint64, id orderID) []byte {
	for shift := 56; shift >= 0; shift -= 8 {
		b = append(b, byte(buyer>>shift))
	}
	return append(b, id[:]...)
}

// eachRecord calls fn for every record of an entry.
func eachRecord(m *redis.XMessage, fn func(buyer uint64, id orderID)) {
	text, ok := m.Values[recordField].(string)
	for ; ok && len(text) >= recordSize; text = text[recordSize:] {
		buyer := uint64(0)
		for i := range 8 {
			buyer = buyer<<8 | uint64(text[i])
		}
		if id := orderID([]byte(text[8:recordSize])); id != (orderID{}) {
			fn(buyer, id)
		}
	}
}

func packOrderID(text string) (id orderID) {
	if len(text) != 36 || text[8] != '-' || text[13] != '-' || text[18] != '-' || text[23] != '-' {
		return orderID{}
	}
	var digits [32]byte
	copy(digits[:], text[:8])
	copy(digits[8:], text[9:13])
	copy(digits[12:], text[14:18])
	copy(digits[16:], text[19:23])
	copy(digits[20:], text[24:])
	if _, err := hex.Decode(id[:], digits[:]); err != nil {
		return orderID{}
	}
	return id
}

func (id orderID) text() string {
	h := hex.EncodeToString(id[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}
