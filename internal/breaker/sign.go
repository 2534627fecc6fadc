package breaker

import (
	"context"
	"errors"
	"io"
	"net"

	"github.com/redis/go-redis/v9"
)

// The signs of the server's state in the result of a call. Nil means that the server is up.
var (
	// errNoSign: the result does not depend on the server.
	errNoSign = errors.New("breaker: no sign of the server's state")
	// errSilence: the server did not answer in time.
	errSilence = errors.New("breaker: the server is silent")
	// errBroken: the connection was refused or cut.
	errBroken = errors.New("breaker: the connection failed")
)

// signOf returns the sign in an error of the client.
//
// Every answer of the server shows that it is up, including LOADING, READONLY, MASTERDOWN and
// CLUSTERDOWN: these errors are definite and immediate, so that an open breaker would save
// nothing and would hide the recovery. A pool without a free connection is a condition of this
// process; the calls that hold the connections are judged separately. A cancelled caller is no
// sign. A deadline that expired, the caller's or the client's, is silence; judge decides
// whether it was long enough.
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

// blocking are the commands that wait for an event. A timeout of one is no sign of the server's
// state.
var blocking = map[string]bool{
	"blpop": true, "brpop": true, "brpoplpush": true, "blmove": true, "blmpop": true,
	"bzpopmin": true, "bzpopmax": true, "bzmpop": true, "xread": true, "xreadgroup": true, "wait": true, "waitaof": true,
}
