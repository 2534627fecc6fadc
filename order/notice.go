package order

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Notice is the result of one order, for the API process that waits for it.
type Notice struct {
	ID string
	Outcome
	// CommittedAt is when the order was committed, in Unix microseconds by the shop's clock; 0:
	// unknown.
	CommittedAt int64
}

// ErrNoticeMalformed means that a message has lines that are no notices.
var ErrNoticeMalformed = errors.New("order: malformed notice")

// ChannelOf returns the publish/subscribe channel of an API process. A channel is not a
// key, so it needs no hash tag.
func ChannelOf(origin string) string { return "fs:done:" + origin }

// ChangedChannel announces orders that changed: each message is a list of ids separated by
// spaces. The shop has one channel, because a subscriber follows a few orders of many
// items. It is not a key.
const ChangedChannel = "fs:changed"

// AppendNotice writes one line: id, status, reason, and the times, separated by spaces;
// none of them contains a space.
func AppendNotice(b []byte, n *Notice) []byte {
	b = append(b, n.ID...)
	b = append(b, ' ')
	b = append(b, n.Status...)
	b = append(b, ' ')
	b = append(b, n.Reason...)
	for _, ms := range [...]int64{n.ConfirmedAt, n.ExpiresAt, n.ClosedAt} {
		b = append(b, ' ')
		b = strconv.AppendInt(b, ms, 10)
	}
	return append(b, '\n')
}

// AppendCommittedAt writes a line with the time of the commit of the notices that follow it, in
// Unix microseconds. Earlier versions cannot read it: it is only for processes whose orders have
// a request id.
func AppendCommittedAt(b []byte, micros int64) []byte {
	return append(strconv.AppendInt(append(b, '@'), micros, 10), '\n')
}

// ParseNotices calls fn for each notice of a message.
func ParseNotices(message string, fn func(Notice)) error {
	committedAt := int64(0)
	for line := range strings.Lines(message) {
		if micros, ok := strings.CutPrefix(line, "@"); ok {
			at, err := strconv.ParseInt(strings.TrimSuffix(micros, "\n"), 10, 64)
			if err != nil {
				return fmt.Errorf("%w: %w", ErrNoticeMalformed, err)
			}
			committedAt = at
			continue
		}
		f := strings.Split(strings.TrimSuffix(line, "\n"), " ")
		if len(f) != 6 {
			return fmt.Errorf("%w: %d fields", ErrNoticeMalformed, len(f))
		}
		n := Notice{ID: f[0], Outcome: Outcome{Status: Status(f[1]), Reason: f[2]}, CommittedAt: committedAt}
		for i, at := range [...]*int64{&n.ConfirmedAt, &n.ExpiresAt, &n.ClosedAt} {
			ms, err := strconv.ParseInt(f[3+i], 10, 64)
			if err != nil {
				return fmt.Errorf("%w: %w", ErrNoticeMalformed, err)
			}
			*at = ms
		}
		fn(n)
	}
	return nil
}

// Apply writes the result of a notice into an order.
func (n *Notice) Apply(o Order) Order {
	o.Status, o.Reason = n.Status, n.Reason
	o.ConfirmedAt, o.ExpiresAt, o.ClosedAt = FromMillis(n.ConfirmedAt), FromMillis(n.ExpiresAt), FromMillis(n.ClosedAt)
	return o
}
