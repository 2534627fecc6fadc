package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// reconnectAfter is the pause before a stream is continued if the service has stated none.
const reconnectAfter = 2 * time.Second

// maxSilence is the longest wait for the next bytes of a stream. The service sends a heartbeat every
// 15 s, so after a longer wait the connection is lost, even if a proxy keeps it open.
const maxSilence = 45 * time.Second

// maxEvent bounds a line of an event stream, in bytes.
const maxEvent = 1 << 20

// Follow returns the states of an order: the current one, then each change, until no further change is
// expected. It reconnects when a connection is lost or silent for 45 s, and misses no state. It ends with
// an error if the service refuses the stream, ctx ends, or [Retry] has used up its attempts to connect.
//
//	for order, err := range client.Follow(ctx, c, id) {
func Follow(ctx context.Context, c ClientInterface, id string) iter.Seq2[Order, error] {
	return func(yield func(Order, error) bool) {
		s := stream{pause: reconnectAfter, silence: maxSilence}
		for {
			more, err := s.read(ctx, c, id, yield)
			if err != nil {
				yield(Order{}, err)
			}
			if err != nil || !more {
				return
			}
			if err := pause(ctx, s.pause); err != nil {
				yield(Order{}, err)
				return
			}
		}
	}
}

// stream is the state of an event stream across its connections.
type stream struct {
	last    string        // the id of the last event
	pause   time.Duration // before the next connection
	silence time.Duration // the longest wait for the next bytes
}

// read reads one connection to its end. more means that the stream continues on another connection.
func (s *stream) read(ctx context.Context, c ClientInterface, id string, yield func(Order, error) bool) (more bool, err error) {
	params := &StreamOrderEventsParams{}
	if s.last != "" {
		params.LastEventID = &s.last
	}
	connection, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	resp, err := c.StreamOrderEvents(connection, id, params)
	if err != nil {
		return false, err
	}
	resp.Body = &silenceBody{resp.Body, s.silence, cancel}
	if resp.StatusCode != http.StatusOK {
		return false, Done(resp, nil) // 204: no further change is expected
	}
	defer resp.Body.Close()
	err = s.events(resp.Body, func(o *Order) bool { more = yield(*o, nil) && !settled(o); return more })
	if errors.Is(err, errStopped) {
		return false, nil
	}
	if ctx.Err() != nil {
		return false, fmt.Errorf("flashsale: follow order %s: %w", id, context.Cause(ctx))
	}
	if errors.Is(err, errEvent) || errors.Is(err, bufio.ErrTooLong) {
		return false, err
	}
	return true, nil // the connection has ended
}

// errSilent is the cause of the end of a silent connection.
var errSilent = errors.New("flashsale: no heartbeat in time")

// silenceBody is a body whose request is cancelled when a read waits too long.
type silenceBody struct {
	io.ReadCloser
	limit  time.Duration
	cancel context.CancelCauseFunc
}

// Read reads from the body.
func (b *silenceBody) Read(p []byte) (int, error) {
	defer time.AfterFunc(b.limit, func() { b.cancel(errSilent) }).Stop()
	return b.ReadCloser.Read(p)
}

var (
	errStopped = errors.New("flashsale: stopped")         // no further event is needed
	errEvent   = errors.New("flashsale: malformed event") // a new connection would get it again
)

// events reads server-sent events and passes the orders on until next returns false.
func (s *stream) events(body io.Reader, next func(*Order) bool) error {
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, maxEvent)
	var id, data string
	for lines.Scan() {
		field, value, _ := strings.Cut(lines.Text(), ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case lines.Text() == "" && data != "": // the event is complete
			var o Order
			if err := json.Unmarshal([]byte(data), &o); err != nil {
				return fmt.Errorf("%w %s: %w", errEvent, id, err)
			}
			s.last, data = id, ""
			if !next(&o) {
				return errStopped
			}
		case field == "id":
			id = value
		case field == "data":
			data += value
		case field == "retry":
			if ms, err := strconv.ParseUint(value, 10, 31); err == nil {
				s.pause = time.Duration(ms) * time.Millisecond
			}
		}
	}
	return lines.Err()
}

// settled reports whether the service expects no further change of an order that a client would wait
// for.
func settled(o *Order) bool {
	switch o.Status {
	case OrderStatusQueued:
		return false
	case OrderStatusConfirmed:
		return o.ExpiresAt == nil // no payment is required
	default:
		return true
	}
}
