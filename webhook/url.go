package webhook

import (
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// maxURL is the maximum length of a receiver's URL, in bytes.
const maxURL = 1000

// URLError is the reason why a URL cannot be a receiver's, as a sentence for its author.
type URLError struct{ Detail string }

func (e *URLError) Error() string { return "webhook: " + e.Detail }

// CheckURL checks a receiver's URL without resolving its host. The host's address is checked at
// each connection, since it may change. Errors: *URLError.
func (p Policy) CheckURL(text string) error {
	if len(text) > maxURL {
		return &URLError{"url is longer than 1,000 bytes."}
	}
	for i := range len(text) {
		if text[i] <= ' ' || text[i] > '~' {
			return &URLError{"url has visible ASCII characters only; percent-encode others, and write a name as xn--…"}
		}
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Opaque != "":
		return &URLError{"url is no URL; write for example https://shop.example/webhooks."}
	case u.Scheme != "https" && u.Scheme != "http":
		return &URLError{"url begins with https://."}
	case u.User != nil:
		return &URLError{"url must not contain a user name or password; the signature authenticates the sender."}
	case strings.Contains(text, "#"):
		return &URLError{"url has no fragment."}
	case u.Hostname() == "":
		return &URLError{"url names a host."}
	case strings.Contains(u.Host, "%"):
		return &URLError{"url names a host without a zone or percent-encoding."}
	}
	// A colon without a port means the default port.
	if port := u.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return &URLError{"url's port is from 1 to 65535."}
		}
	}
	return p.checkHost(strings.TrimSuffix(strings.ToLower(u.Hostname()), "."), u.Scheme == "https")
}

func (p Policy) checkHost(host string, tls bool) error {
	if !tls && len(p.Allow) == 0 {
		return &URLError{"url begins with https://; http:// is for the networks in the service's setting webhook-allow."}
	}
	a, err := netip.ParseAddr(host)
	if err != nil {
		if host != "localhost" && !strings.HasSuffix(host, ".localhost") {
			return nil
		}
		a = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		if !p.allowed(a) {
			a = netip.IPv6Loopback()
		}
	}
	if p.check(a, tls) == nil {
		return nil
	}
	if !tls && public(a) {
		return &URLError{"url begins with https://; http:// is for the networks in the service's setting webhook-allow."}
	}
	return &URLError{"url's host is not on the public Internet; the service's setting webhook-allow can allow its network."}
}
