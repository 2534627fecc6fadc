package breaker

import (
	"context"
	"errors"
	"io"
	"net"

	"github.com/redis/go-redis/v9"
)

// What the end of a call tells of the server, other than nil: that it lives.
var (
	// errNoSign: nothing.
	errNoSign = errors.New("breaker: no sign of the server's state")
	// errSilence: it did not answer in the time that it was given.
	errSilence = errors.New("breaker: the server is silent")
	// errBroken: the connection was refused or cut.
	errBroken = errors.New("breaker: the connection failed")
)

// signOf reads an error of the client.
//
// Whatever the server itself answered shows that it lives, also LOADING, READONLY,
// MASTERDOWN and CLUSTERDOWN: it refuses for certain and in no time, so that refusing in
// its place would save nothing, and would hide when it is ready. A pool without a
// free connection tells of this process; the calls that hold its connections are
// judged themselves. A caller that went away tells nothing. A deadline that passed,
// the caller's or the client's, is silence; see judge for how long it has to last.
func signOf(err error) error {
	if err == nil {
		return nil
	}
	var answered redis.Error
	var network net.Error
	switch {
	case errors.As(err, &answered):
		return nil
	case errors.Is(err, context.Canceled), errors.Is(err, redis.ErrClosed), errors.Is(err, ErrOpen),
		errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted):
		return errNoSign
	case errors.Is(err, context.DeadlineExceeded):
		return errSilence
	case errors.As(err, &network):
		if network.Timeout() {
			return errSilence
		}
		return errBroken
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errBroken
	default:
		return errNoSign
	}
}

// blocking are the commands that the server answers when something happens. That
// it does not answer them in time is no sign of its state.
var blocking = map[string]bool{
	"blpop": true, "brpop": true, "brpoplpush": true, "blmove": true, "blmpop": true,
	"bzpopmin": true, "bzpopmax": true, "bzmpop": true, "xread": true, "xreadgroup": true, "wait": true, "waitaof": true,
}
