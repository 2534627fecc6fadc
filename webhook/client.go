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
	// sendTimeout bounds one try, from the resolving of the name to the end of the answer.
	sendTimeout = 15 * time.Second
	// maxAnswer is how much of an answer's body is read, in bytes, so that the
	// connection can be used again; nothing in it is looked at.
	maxAnswer       = 64 << 10
	maxAnswerHeader = 64 << 10
	idleTimeout     = 30 * time.Second
	idlePerHost     = 8
	userAgent       = "flashsale"
)

// Config configures a Client. The zero value works.
type Config struct {
	Policy Policy
	// Timeout bounds one try. Default 15 s.
	Timeout time.Duration
	// Resolver turns names into addresses. Default: the system's.
	Resolver *net.Resolver
	// TLS is the client's side of TLS. Default: the system's authorities. Versions
	// before 1.2 are refused in any case.
	TLS *tls.Config
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

// Client sends messages. It is safe for concurrent use.
type Client struct {
	cfg           Config
	secure, plain *http.Client
}

// NewClient returns a Client. Close it when it is done with.
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

// newHTTP makes the HTTP client of one scheme: which addresses may be dialled
// depends on it.
func newHTTP(cfg Config, secure bool) *http.Client {
	dialer := &net.Dialer{
		Timeout: cfg.Timeout, Resolver: cfg.Resolver,
		// It hears the very address that is about to be connected to. A check of
		// the name before would be of an answer that the next look-up need not give.
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
			Proxy:       nil, // one from the environment would dial for us, unchecked
			DialContext: dialer.DialContext, TLSClientConfig: cfg.TLS, TLSHandshakeTimeout: cfg.Timeout,
			ForceAttemptHTTP2: true, DisableCompression: true, MaxResponseHeaderBytes: maxAnswerHeader,
			IdleConnTimeout: idleTimeout, MaxIdleConnsPerHost: idlePerHost,
			// All tries share one connection of HTTP/2, and one that times out does not
			// close it: what the network has forgotten would be sent on for minutes. So
			// it is asked whether it lives, and closed in about the time of one try.
			HTTP2: &http.HTTP2Config{SendPingTimeout: cfg.Timeout * 2 / 3, PingTimeout: cfg.Timeout / 3},
		},
		// A receiver that has moved is to be told to us, and not by whoever answers.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Close closes the idle connections.
func (c *Client) Close() {
	c.secure.CloseIdleConnections()
	c.plain.CloseIdleConnections()
}

// CheckURL is that of the client's policy.
func (c *Client) CheckURL(text string) error { return c.cfg.Policy.CheckURL(text) }

// Result is what became of one try.
type Result struct {
	Status int // of the answer; 0: there was none
	// RetryAfter is what the answer asks for; 0: nothing.
	RetryAfter time.Duration
	// Err says why there was no answer. Its text holds neither the URL, nor a secret,
	// nor an address; what it wraps may.
	Err error
}

// Delivered reports whether the receiver has taken the message.
func (r Result) Delivered() bool { return r.Status >= 200 && r.Status < 300 }

// Send sends a message once. No answer, and an answer other than 2xx, may still
// mean that the receiver has it.
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
	// What follows a change of protocols is the bare connection, to which ctx means
	// nothing: a server that stays silent there would be read from for ever.
	if res.StatusCode != http.StatusSwitchingProtocols {
		// The answer's status has come; that its body breaks off changes nothing.
		_, _ = io.CopyN(io.Discard, res.Body, maxAnswer) //nolint:errcheck // see above
	}
	res.Body.Close()
	return out
}

// retryAfter reads the header of that name: seconds, or a date.
func retryAfter(h http.Header, now time.Time) time.Duration {
	value := h.Get("Retry-After")
	if value == "" {
		return 0
	}
	const most = 1 << 20 // seconds; the caller has a lower bound of its own
	if n, err := strconv.ParseInt(value, 10, 64); err == nil {
		return time.Duration(min(max(n, 0), most)) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil {
		return min(max(at.Sub(now), 0), most*time.Second)
	}
	return 0
}
