package order

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// notice is the result of one order, for the API process that waits for it.
type notice struct {
	id string
	outcome
}

var errNoticeMalformed = errors.New("order: malformed notice")

// channelOf returns the publish/subscribe channel of an API process. A channel is not a
// key, so it needs no hash tag.
func channelOf(origin string) string { return "fs:done:" + origin }

// appendNotice writes one line: id, status, reason, and the times, separated by spaces;
// none of them contains a space.
func appendNotice(b []byte, n *notice) []byte {
	b = append(b, n.id...)
	b = append(b, ' ')
	b = append(b, n.status...)
	b = append(b, ' ')
	b = append(b, n.reason...)
	for _, ms := range [...]int64{n.confirmedAt, n.expiresAt, n.closedAt} {
		b = append(b, ' ')
		b = strconv.AppendInt(b, ms, 10)
	}
	return append(b, '\n')
}

// parseNotices calls fn for each line of a message.
func parseNotices(message string, fn func(notice)) error {
	for line := range strings.Lines(message) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), " ")
		if len(f) != 6 {
			return fmt.Errorf("%w: %d fields", errNoticeMalformed, len(f))
		}
		n := notice{id: f[0], outcome: outcome{status: Status(f[1]), reason: f[2]}}
		for i, at := range [...]*int64{&n.confirmedAt, &n.expiresAt, &n.closedAt} {
			ms, err := strconv.ParseInt(f[3+i], 10, 64)
			if err != nil {
				return fmt.Errorf("%w: %w", errNoticeMalformed, err)
			}
			*at = ms
		}
		fn(n)
	}
	return nil
}

// apply writes the result of a notice into an order.
func (n *notice) apply(o Order) Order {
	o.Status, o.Reason = n.status, n.reason
	o.ConfirmedAt, o.ExpiresAt, o.ClosedAt = fromMillis(n.confirmedAt), fromMillis(n.expiresAt), fromMillis(n.closedAt)
	return o
}
