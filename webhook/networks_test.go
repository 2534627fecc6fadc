package webhook

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
)

func TestPolicy_check(t *testing.T) {
	t.Parallel()
	for _, public := range []string{
		"1.1.1.1", "8.8.8.8", "100.63.255.255", "100.128.0.0", "172.15.255.255", "172.32.0.0", "192.0.1.1", "198.17.255.255",
		"198.20.0.0", "223.255.255.255", "169.253.0.1", "2606:4700:4700::1111", "2a00:1450::1", "::ffff:8.8.8.8",
		"64:ff9b::808:808", "2002:808:808::1",
	} {
		a := netip.MustParseAddr(public)
		if err := (Policy{}).check(a, true); err != nil {
			t.Errorf("%s: %v", public, err)
		}
		if err := (Policy{}).check(a, false); !errors.Is(err, ErrAddress) {
			t.Errorf("%s without TLS: %v", public, err)
		}
	}
	for _, private := range []string{
		"0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.127.255.255", "127.0.0.1", "127.255.0.1",
		"169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.1", "192.0.0.192", "192.0.2.1", "192.168.1.1", "198.18.0.1", "198.19.255.255",
		"198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255", "192.88.99.1",
		"::", "::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "fe80::1", "fe80::1%eth0", "fec0::1",
		"fc00::1", "fd12:3456::1", "fd00:ec2::254", "ff02::1", "100::1", "2001::1", "2001:db8::1", "3fff::1", "5f00::1",
		"64:ff9b::a00:1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::808:808", "2002:a00:1::1", "2002:7f00:1::", "2002:c0a8:101::1",
	} {
		a := netip.MustParseAddr(private)
		if err := (Policy{}).check(a, true); !errors.Is(err, ErrAddress) {
			t.Errorf("%s: %v", private, err)
		}
	}
	if err := (Policy{}).check(netip.Addr{}, true); !errors.Is(err, ErrAddress) {
		t.Errorf("no address: %v", err)
	}
	allow, err := ParseNetworks([]string{"10.1.0.0/16", "127.0.0.1", "fd00::/8"})
	if err != nil {
		t.Fatal(err)
	}
	p := Policy{Allow: allow}
	for text, want := range map[string]bool{
		"10.1.2.3": true, "10.2.0.1": false, "127.0.0.1": true, "127.0.0.2": false, "::ffff:10.1.2.3": true, "::ffff:127.0.0.1": true,
		"fd00::1": true, "fc00::1": false, "::1": false, "169.254.169.254": false,
	} {
		for _, tls := range []bool{true, false} {
			if got := p.check(netip.MustParseAddr(text), tls) == nil; got != want {
				t.Errorf("%s (TLS %v) allowed: %v, want %v", text, tls, got, want)
			}
		}
	}
}

func TestParseNetworks_Err(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "nonsense", "10.0.0.0/33", "10.0.0", "localhost", "fe80::1%eth0", "::ffff:10.0.0.0/104", "*"} {
		if got, err := ParseNetworks([]string{"10.0.0.0/8", text}); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}

func TestPolicy_CheckURL(t *testing.T) {
	t.Parallel()
	loopback := Policy{Allow: prefixes("127.0.0.1/32", "10.0.0.0/8")}
	for _, good := range []struct {
		p    Policy
		text string
	}{
		{Policy{}, "https://shop.example/webhooks"},
		{Policy{}, "https://shop.example:8443/w?key=a%20b&x="},
		{Policy{}, "HTTPS://SHOP.example."},
		{Policy{}, "https://8.8.8.8/x"},
		{Policy{}, "https://[2606:4700:4700::1111]:444/x"},
		{Policy{}, "https://xn--bcher-kva.example/"},
		{loopback, "http://127.0.0.1:8080/w"},
		{loopback, "http://localhost:8080/w"},
		{loopback, "https://10.1.2.3/w"},
		{loopback, "http://shop.internal/w"}, // its address is checked when it is dialled
		{Policy{}, "https://shop.example/" + strings.Repeat("x", maxURL-len("https://shop.example/"))},
	} {
		if err := good.p.CheckURL(good.text); err != nil {
			t.Errorf("%s: %v", good.text, err)
		}
	}
	for _, bad := range []struct{ text, want string }{
		{"", "https://"},
		{"shop.example/w", "https://"},
		{"//shop.example/w", "https://"},
		{"ftp://shop.example/w", "https://"},
		{"file:///etc/passwd", "https://"},
		{"javascript:alert(1)", "no URL"},
		{"https:shop.example", "no URL"},
		{"http://shop.example/w", "https://"},
		{"https:///w", "names a host"},
		{"https://:443/w", "names a host"},
		{"https://a:b@shop.example/", "user name"},
		{"https://a@shop.example/", "user name"},
		{"https://shop.example/#top", "fragment"},
		{"https://shop.example/#", "fragment"},
		{"https://shop.example:0/", "port"},
		{"https://shop.example:65536/", "port"},
		{"https://shop.example:http/", "no URL"},
		{"https://shop.example/a b", "ASCII"},
		{"https://shop.example/\r\nX: y", "ASCII"},
		{"https://bücher.example/", "ASCII"},
		{"https://[fe80::1%25eth0]/", "zone"},
		{"https://127.0.0.1/", "public Internet"},
		{"https://localhost/", "public Internet"},
		{"https://LOCALHOST./", "public Internet"},
		{"https://api.localhost/", "public Internet"},
		{"https://[::1]/", "public Internet"},
		{"https://[::ffff:127.0.0.1]/", "public Internet"},
		{"https://169.254.169.254/latest/meta-data/", "public Internet"},
		{"https://10.0.0.1/", "public Internet"},
		{"https://shop.example/" + strings.Repeat("x", maxURL), "longer"},
	} {
		err := Policy{}.CheckURL(bad.text)
		var refused *URLError
		if !errors.As(err, &refused) || !strings.Contains(refused.Detail, bad.want) {
			t.Errorf("%q: %v, want something of %q", bad.text, err, bad.want)
		}
	}
	if err := loopback.CheckURL("http://8.8.8.8/"); err == nil {
		t.Error("a public address without TLS was taken")
	}
	if err := loopback.CheckURL("http://127.0.0.2/"); err == nil {
		t.Error("an address beside the allowed one was taken")
	}
}
