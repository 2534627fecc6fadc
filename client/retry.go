package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"
)

// The defaults of Retry.
const (
	retryAttempts = 10
	retryMinWait  = 100 * time.Millisecond
	retryMaxWait  = 5 * time.Second
	retryTimeout  = 15 * time.Second // the service answers a purchase after at most 10 s
)

// errNoAnswer is the cause of the end of an attempt.
var errNoAnswer = errors.New("flashsale: no answer in time")

// Retry sends requests and repeats those that are safe to repeat. A repeat is the same request with
// the same Idempotency-Key, so a purchase is made at most once.
//
//   - After a lost connection, a timeout and 503, the outcome is unknown. It repeats requests that have
//     an Idempotency-Key, and reads.
//   - After 429, nothing was done. It repeats any request.
//
// It waits as long as Retry-After asks, and otherwise for a random time that grows with each attempt.
// It stops when the request's context ends, and returns the last answer at once if the context would
// end during the wait. It is safe for concurrent use.
type Retry struct {
	// Client sends the requests. Default http.DefaultClient.
	Client HttpRequestDoer
	// Timeout is the longest wait for an answer to begin, for requests that are safe to repeat after it.
	// Others, such as a reconciliation, may take minutes. Default 15 s.
	Timeout time.Duration
	// Attempts is the largest number of attempts. Default 10.
	Attempts int
	// MinWait and MaxWait bound the waits for which the service states no Retry-After: the first is
	// at most MinWait, and each later one at most twice the previous bound. Default 100 ms and 5 s.
	MinWait, MaxWait time.Duration
}

// Do sends a request. Errors: those of Client, and that of the context.
func (r *Retry) Do(req *http.Request) (*http.Response, error) {
	attempts := cmp.Or(r.Attempts, retryAttempts)
	for attempt := 1; ; attempt++ {
		resp, err := r.send(req)
		if attempt >= attempts || !repeatable(req, resp, err) {
			return resp, err
		}
		wait := r.wait(attempt)
		if asked, ok := retryAfter(resp); ok {
			wait = asked
		}
		if end, ok := req.Context().Deadline(); ok && time.Until(end) < wait {
			return resp, err
		}
		next, bodyErr := again(req)
		if bodyErr != nil {
			return resp, err
		}
		if resp != nil {
			discard(resp)
		}
		if err := pause(req.Context(), wait); err != nil {
			return nil, err
		}
		req = next
	}
}

// send makes one attempt.
func (r *Retry) send(req *http.Request) (*http.Response, error) {
	var client HttpRequestDoer = http.DefaultClient
	if r.Client != nil {
		client = r.Client
	}
	if !safe(req) {
		return client.Do(req)
	}
	// The timer only covers the wait for the headers: an event stream is read for minutes.
	ctx, cancel := context.WithCancelCause(req.Context())
	timer := time.AfterFunc(cmp.Or(r.Timeout, retryTimeout), func() { cancel(errNoAnswer) })
	resp, err := client.Do(req.WithContext(ctx))
	timer.Stop()
	if err != nil {
		cancel(nil)
		return nil, err
	}
	resp.Body = &body{resp.Body, cancel}
	return resp, nil
}

// body releases the context of its request when it is closed.
type body struct {
	io.ReadCloser
	cancel context.CancelCauseFunc
}

// Close closes the body.
func (b *body) Close() error {
	defer b.cancel(nil)
	return b.ReadCloser.Close()
}

// safe reports whether a request may be sent again when its outcome is unknown.
func safe(req *http.Request) bool {
	return req.Method == http.MethodGet || req.Method == http.MethodHead || req.Header.Get("Idempotency-Key") != ""
}

// repeatable reports whether a request may be sent again after this outcome.
func repeatable(req *http.Request, resp *http.Response, err error) bool {
	if err == nil && resp.StatusCode == http.StatusTooManyRequests {
		return true
	}
	if err == nil && resp.StatusCode != http.StatusServiceUnavailable {
		return false
	}
	return req.Context().Err() == nil && safe(req)
}

// again returns a copy of the request whose body can be read once more.
func again(req *http.Request) (*http.Request, error) {
	next := req.Clone(req.Context())
	if req.Body == nil || req.Body == http.NoBody {
		return next, nil
	}
	if req.GetBody == nil {
		return nil, errors.New("flashsale: the body cannot be read again")
	}
	var err error
	next.Body, err = req.GetBody()
	return next, err
}

// discard reads the rest of an answer, so that its connection can be used again.
func discard(resp *http.Response) {
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, 64<<10) //nolint:errcheck // otherwise the next attempt uses another connection
}

// wait returns a random time to wait after an attempt.
func (r *Retry) wait(attempt int) time.Duration {
	bound, most := cmp.Or(r.MinWait, retryMinWait), cmp.Or(r.MaxWait, retryMaxWait)
	for range attempt - 1 {
		bound = min(2*bound, most)
	}
	return rand.N(bound) + 1
}

// retryAfter returns the time that an answer asks to wait: seconds, or a date, which proxies send.
func retryAfter(resp *http.Response) (time.Duration, bool) {
	if resp == nil {
		return 0, false
	}
	value := resp.Header.Get("Retry-After")
	if seconds, err := strconv.ParseUint(value, 10, 16); err == nil {
		return time.Duration(seconds) * time.Second, true
	}
	if date, err := http.ParseTime(value); err == nil {
		return max(0, time.Until(date)), true
	}
	return 0, false
}

// pause waits, or returns the cause of the context's end.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("flashsale: wait before a repeat: %w", context.Cause(ctx))
	}
}
