package webhook

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// ErrAddress means that a host's address is in a network to which messages may not be sent.
var ErrAddress = errors.New("webhook: address not allowed")

// closed are the networks that are not part of the public Internet. With a receiver there, a
// caller of the API could send requests to services that only this machine can reach.
var closed = prefixes(
	"0.0.0.0/8",       // this network
	"10.0.0.0/8",      // private
	"100.64.0.0/10",   // shared by a carrier's customers
	"127.0.0.0/8",     // loopback
	"169.254.0.0/16",  // link-local, with the metadata of cloud machines
	"172.16.0.0/12",   // private
	"192.0.0.0/24",    // protocol assignments
	"192.0.2.0/24",    // documentation
	"192.31.196.0/24", // AS112
	"192.52.193.0/24", // AMT
	"192.88.99.0/24",  // 6to4 relays
	"192.168.0.0/16",  // private
	"192.175.48.0/24", // AS112
	"198.18.0.0/15",   // benchmarks
	"198.51.100.0/24", // documentation
	"203.0.113.0/24",  // documentation
	"224.0.0.0/4",     // multicast
	"240.0.0.0/4",     // reserved, and broadcast
)

// In IPv6 the rule is inverted: one network is public, except for parts of it. So loopback,
// link-local, unique local and multicast addresses need no entry.
var (
	global6 = netip.MustParsePrefix("2000::/3")
	closed6 = prefixes(
		"2001::/23",     // protocol assignments, among them Teredo
		"2001:db8::/32", // documentation
		"3fff::/20",     // documentation
	)
	// Addresses that embed an IPv4 address.
	nat64     = netip.MustParsePrefix("64:ff9b::/96")
	sixToFour = netip.MustParsePrefix("2002::/16")
)

func prefixes(texts ...string) []netip.Prefix {
	out := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		out[i] = netip.MustParsePrefix(text)
	}
	return out
}

// ParseNetworks reads addresses and networks, such as 127.0.0.1 and 10.0.0.0/8.
func ParseNetworks(texts []string) ([]netip.Prefix, error) {
	out := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
			a = a.Unmap()
			out[i] = netip.PrefixFrom(a, a.BitLen())
			continue
		}
		p, err := netip.ParsePrefix(text)
		if err != nil || p.Addr().Is4In6() {
			return nil, fmt.Errorf("webhook: %q is neither an address nor a network", text)
		}
		out[i] = p.Masked()
	}
	return out, nil
}

// Policy is the set of addresses to which messages may be sent: all public ones over TLS, and
// those of the networks that the operator allows.
type Policy struct {
	// Allow are networks that are allowed although they are not public, even without TLS if the
	// URL says so. Default none.
	Allow []netip.Prefix
}

// allowed reports whether the operator allows a network that contains the address.
func (p Policy) allowed(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	return slices.ContainsFunc(p.Allow, func(n netip.Prefix) bool { return n.Contains(a) })
}

// check returns ErrAddress unless a connection to the address is allowed.
func (p Policy) check(a netip.Addr, tls bool) error {
	if p.allowed(a) || tls && public(a) {
		return nil
	}
	return ErrAddress
}

// public reports whether an address is part of the public Internet. An IPv6 address that embeds
// an IPv4 address is public if that one is.
func public(a netip.Addr) bool {
	a = a.Unmap()
	in := func(n netip.Prefix) bool { return n.Contains(a) }
	if !a.IsValid() || a.Zone() != "" {
		return false
	}
	if a.Is4() {
		return !slices.ContainsFunc(closed, in)
	}
	b := a.As16()
	switch {
	case nat64.Contains(a):
		return public(netip.AddrFrom4([4]byte(b[12:16])))
	case sixToFour.Contains(a):
		return public(netip.AddrFrom4([4]byte(b[2:6])))
	}
	return global6.Contains(a) && !slices.ContainsFunc(closed6, in)
}
