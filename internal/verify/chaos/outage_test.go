//go:build chaos && unix

package chaos

import (
	"time"

	"flashsale/internal/verify/history"
)

// outages measures for how long purchases were answered with errors: of one buyer, and of one
// item, which is one partition. An outage begins with the first purchase that has no definite
// answer, and ends with the next definite answer.
type outages struct {
	began   map[outageOf]int64
	longest map[bool]int64 // of buyers: true; of items: false
	refused int
}

// outageOf names a buyer's client with a purchase, or only an item.
type outageOf struct {
	client          int
	user, item, key string
}

func newOutages() *outages {
	return &outages{began: make(map[outageOf]int64), longest: make(map[bool]int64)}
}

// saw takes the calls in the order in which they end.
func (o *outages) saw(h *history.Call) {
	if !definite(h) {
		o.refused++
	}
	for _, of := range []outageOf{{item: h.Item}, {h.Client, h.User, h.Item, h.Key}} {
		began, on := o.began[of]
		switch {
		case !on && !definite(h):
			o.began[of] = h.Start
		case on && definite(h):
			o.longest[of.user != ""] = max(o.longest[of.user != ""], h.End-began)
			delete(o.began, of)
		}
	}
}

// buyer is the longest outage of a buyer, and item that of an item.
func (o *outages) buyer() time.Duration { return time.Duration(o.longest[true]) }
func (o *outages) item() time.Duration  { return time.Duration(o.longest[false]) }
