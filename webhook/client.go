package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"syscall"
	"time"
)

const (
	// sendTimeout bounds one attempt, from resolving the name to the end of the answer.
	sendTimeout = 15 * time.Second
	// maxAnswer is how much of an answer's body is read, in bytes, so that the connection can
	// be reused. The body is ignored.
	maxAnswer       = 64 << 10
	maxAnswerHeader = 64 << 10
	idleTimeout     = 30 * time.Second
	idlePerHost     = 8
	userAgent       = "flashsale"
)

// Config configures a Client. The zero value is valid.
type Config struct {
	Policy Policy
	// Timeout bounds one attempt. Default 15 s.
	Timeout time.Duration
	// Resolver resolves names. Default: the system's.
	Resolver *net.Resolver
	// TLS is the client's TLS configuration. Default: the system's authorities. Versions before
	// 1.2 are always refused.
	TLS *tls.Config
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

// Client sends messages. It is safe for concurrent use.
type Client struct {
	cfg           Config
	secure, plain *http.Client
}

// NewClient returns a Client. Close it after use.
func NewClient(cfg Config) *Client {
	if cfg.Timeout == 0 {
		cfg.Timeout = sendTimeout
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.TLS == nil {
		cfg.TLS = new(tls.Config)
	}
	cfg.TLS = cfg.TLS.Clone()
	cfg.TLS.MinVersion = max(cfg.TLS.MinVersion, tls.VersionTLS12)
	return &Client{cfg: cfg, secure: newHTTP(cfg, true), plain: newHTTP(cfg, false)}
}

// newHTTP returns the HTTP client for one scheme, because the scheme determines which addresses
// may be dialled.
func newHTTP(cfg Config, secure bool) *http.Client {
	dialer := &net.Dialer{
		Timeout: cfg.Timeout, Resolver: cfg.Resolver,
		// Control gets the actual address of the connection. A check of the name beforehand
		// would check an answer that the next look-up may not repeat.
		Control: func(_, address string, _ syscall.RawConn) error {
			at, err := netip.ParseAddrPort(address)
			if err != nil {
				return fmt.Errorf("%w: %q", ErrAddress, address)
			}
			if err := cfg.Policy.check(at.Addr(), secure); err != nil {
				return fmt.Errorf("%w: %s", err, at.Addr())
			}
			return nil
		},
	}
	return &http.Client{
		Transport: &http.Transport{
			Proxy:       nil, // a proxy from the environment would dial unchecked addresses
			DialContext: dialer.DialContext, TLSClientConfig: cfg.TLS, TLSHandshakeTimeout: cfg.Timeout,
			ForceAttemptHTTP2: true, DisableCompression: true, MaxResponseHeaderBytes: maxAnswerHeader,
			IdleConnTimeout: idleTimeout, MaxIdleConnsPerHost: idlePerHost,
			// All attempts share one HTTP/2 connection, and an attempt that times out does not
			// close it: requests would be sent on a dead connection for minutes. So the
			// connection is pinged, and closed within about the time of one attempt.
			HTTP2: &http.HTTP2Config{SendPingTimeout: cfg.Timeout * 2 / 3, PingTimeout: cfg.Timeout / 3},
		},
		// Only the shop's admins may change a receiver's URL, not a server's answer.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Close closes the idle connections.
func (c *Client) Close() {
	c.secure.CloseIdleConnections()
	c.plain.CloseIdleConnections()
}

// CheckURL is [Policy.CheckURL] of the client's policy.
func (c *Client) CheckURL(text string) error { return c.cfg.Policy.CheckURL(text) }

// Result is the result of one attempt.
type Result struct {
	Status int // of the answer; 0: there was none
	// RetryAfter is the answer's Retry-After; 0: none.
	RetryAfter time.Duration
	// Err is the reason why there was no answer. Its text contains no URL, secret or address,
	// but the errors that it wraps may.
	Err error
}

// Delivered reports whether the receiver has accepted the message.
func (r Result) Delivered() bool { return r.Status >= 200 && r.Status < 300 }

// Send sends a message once. The receiver may have the message even if there is no answer, or
// an answer other than 2xx.
func (c *Client) Send(ctx context.Context, m *Message) Result {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	at := c.cfg.Now()
	signed, err := signatures(m, at)
	if err != nil {
		return Result{Err: err}
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, m.URL, bytes.NewReader(m.Body))
	if err != nil {
		return Result{Err: errors.New("webhook: the url cannot be read")}
	}
	r.Header = http.Header{
		"Content-Type": {"application/json"}, "User-Agent": {userAgent},
		"Webhook-Id": {m.ID}, "Webhook-Timestamp": {strconv.FormatInt(at.Unix(), 10)}, "Webhook-Signature": {signed},
	}
	by := c.secure
	if r.URL.Scheme != "https" {
		by = c.plain
	}
	res, err := by.Do(r)
	if err != nil {
		return Result{Err: failed(err)}
	}
	out := Result{Status: res.StatusCode, RetryAfter: retryAfter(res.Header, at)}
	// After a protocol switch the body is the bare connection, to which ctx does not apply:
	// reading from a silent server would never end.
	if res.StatusCode != http.StatusSwitchingProtocols {
		// The status has arrived, so an incomplete body does not matter.
		_, _ = io.CopyN(io.Discard, res.Body, maxAnswer) //nolint:errcheck // see above
	}
	res.Body.Close()
	return out
}

// retryAfter reads the Retry-After header: seconds or a date.
func retryAfter(h http.Header, now time.Time) time.Duration {
	value := h.Get("Retry-After")
	if value == "" {
		return 0
	}
	const most = 1 << 20 // seconds; the caller applies a lower bound
	if n, err := strconv.ParseInt(value, 10, 64); err == nil {
		return time.Duration(min(max(n, 0), most)) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil {
		return min(max(at.Sub(now), 0), most*time.Second)
	}
	return 0
}
