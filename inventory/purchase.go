package inventory

import (
	_ "embed" // for the scripts
	"fmt"
	"strconv"
	"strings"
	"time"

	"flashsale/internal/plural"
	"flashsale/internal/tracing"
)

// Request is one purchase. It must not be changed until Done was called.
type Request struct {
	ItemID         string
	Buyer          string
	IdempotencyKey string
	Quantity       int64 // 1 or more
	// OrderID is set by the Inventory before it sends the request: a UUIDv7 in lower case.
	// If it has to send the request again, the id shows whether it was accepted before.
	OrderID string
	// Named, if set, is called with the order's id, before the purchase can be accepted
	// under it, from the goroutine that sells the item: it must be quick and must not
	// block. A later call replaces the id. It is not called for a request that is never
	// sent.
	Named   func(orderID string)
	Payload string // what the order's task has to say, in one line
	// ItemVersion is the version of the item from which the payload was made; the sale
	// accepts the purchase only if it has the same version, or one that differs from it only by
	// changes with [Change].SamePrice. 0: any.
	ItemVersion int64
	// Done is called once with the outcome, from the goroutine that sells the
	// item: it must be quick and must not block.
	Done func(Outcome)
	// RequestID is the id of the buyer's request, for the log.
	RequestID string
	// Trace is the request's span if the purchase is sampled, otherwise nil.
	Trace *tracing.Parent
	// SubmittedAt is when the purchase was submitted; its patience counts from there. Zero:
	// when Submit is called.
	SubmittedAt time.Time

	since time.Time // when it was submitted
}

// Outcome is the result of a request.
type Outcome struct {
	// Err is nil for an accepted purchase and for a replay; otherwise one of
	// this package's errors.
	Err error
	// ReplayOf is the id of the order that an earlier request with the same key created;
	// empty when this request created its own.
	ReplayOf string
}

// purchaseReply is the purchase script's reply.
type purchaseReply struct {
	status   string
	waiting  int64
	verdicts string
	left     int64
	version  string
	nowMS    int64
	opensMS  int64
	closesMS int64  // 0: no end
	sequence int64  // of the sale
	limit    int64  // units that one buyer may hold
	accepted int64  // how many accepted keys the sale has; -1 unless nothing is left
	more     string // accepted keys that the caller did not have
	replayed []any  // order ids, in the order of the verdicts R
}

func parsePurchaseReply(v any) (purchaseReply, error) {
	var r purchaseReply
	list, ok := v.([]any)
	if !ok || len(list) < 2 {
		return r, fmt.Errorf("inventory: purchase script answered %T", v)
	}
	var ok1, ok2 bool
	r.status, ok1 = list[0].(string)
	r.waiting, ok2 = list[1].(int64)
	if !ok1 || !ok2 {
		return r, fmt.Errorf("inventory: purchase script answered %T, %T", list[0], list[1])
	}
	if r.status != "ok" {
		return r, nil
	}
	if len(list) < 12 {
		return r, fmt.Errorf("inventory: purchase script answered %d values", len(list))
	}
	var oks [10]bool
	r.verdicts, oks[0] = list[2].(string)
	r.left, oks[1] = list[3].(int64)
	r.version, oks[2] = list[4].(string)
	r.nowMS, oks[3] = list[5].(int64)
	r.opensMS, oks[4] = list[6].(int64)
	r.closesMS, oks[5] = list[7].(int64)
	r.sequence, oks[6] = list[8].(int64)
	r.limit, oks[7] = list[9].(int64)
	r.accepted, oks[8] = list[10].(int64)
	r.more, oks[9] = list[11].(string)
	if oks != [10]bool{true, true, true, true, true, true, true, true, true, true} {
		return r, fmt.Errorf("inventory: purchase script answered %T", list[2:12])
	}
	r.replayed = list[12:]
	return r, nil
}

// deliver answers each request by its verdict. It first checks the whole reply, so that
// each request is answered once.
func (s *seller) deliver(batch []*Request, reply *purchaseReply) error {
	if len(reply.verdicts) != len(batch) {
		return fmt.Errorf("purchase script gave %s for %s", plural.Count(len(reply.verdicts), "verdict"), plural.Count(len(batch), "request"))
	}
	replays := strings.Count(reply.verdicts, "R")
	if replays != len(reply.replayed) {
		return fmt.Errorf("purchase script gave %s for %s", plural.Count(len(reply.replayed), "order"), plural.Count(replays, "replay"))
	}
	if n := strings.Count(reply.verdicts, "A"); n > 0 {
		s.v.cfg.OnAccepted(s.item, n)
	}
	replays = 0
	var again []*Request
	for i, r := range batch {
		var o Outcome
		switch reply.verdicts[i] {
		case 'U':
			again = append(again, r)
			continue
		case 'A':
		case 'R':
			id, ok := reply.replayed[replays].(string)
			replays++
			if !ok {
				o.Err = ErrUnavailable
				break
			}
			o.ReplayOf = id
		case 'O':
			o.Err = &NotOpenError{
				OpensAt: time.UnixMilli(reply.opensMS).UTC(),
				In:      time.Duration(reply.opensMS-reply.nowMS) * time.Millisecond,
			}
		case 'Q':
			o.Err = &QuantityError{Limit: reply.limit}
		case 'V':
			o.Err = &ItemVersionError{Version: itemVersionOf(reply.version)}
		default:
			o.Err = refusal(reply.verdicts[i])
		}
		r.Done(o)
	}
	s.addFirst(again)
	return nil
}

// itemVersionOf is the item's version in a sale's; 0 when it cannot be read.
func itemVersionOf(version string) int64 {
	text, _, _ := strings.Cut(version, ".")
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func refusal(verdict byte) error {
	switch verdict {
	case 'K':
		return ErrKeyReused
	case 'L':
		return ErrUserLimit
	case 'S':
		return ErrSoldOut
	case 'C':
		return ErrClosed
	case 'P':
		return ErrPaused
	case 'F':
		return ErrOverloaded
	default:
		return fmt.Errorf("inventory: unknown verdict %q", verdict)
	}
}
