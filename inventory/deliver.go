package inventory

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// deliver answers each request by its verdict. Nothing is delivered unless the
// whole reply can be read, so that a request is answered once.
func (s *seller) deliver(batch []*Request, reply *purchaseReply) error {
	if len(reply.verdicts) != len(batch) {
		return fmt.Errorf("purchase script gave %d verdicts for %d requests", len(reply.verdicts), len(batch))
	}
	replays := 0
	for i := range len(reply.verdicts) {
		if reply.verdicts[i] == 'R' {
			replays++
		}
	}
	if replays != len(reply.replayed) {
		return fmt.Errorf("purchase script gave %d orders for %d replays", len(reply.replayed), replays)
	}
	replays = 0
	for i, r := range batch {
		var o Outcome
		switch reply.verdicts[i] {
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
