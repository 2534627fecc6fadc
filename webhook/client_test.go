package webhook

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"flashsale/internal/testing/await"
)

// patience bounds waits for expected events. It is long because it only delays a failure.
const patience = time.Minute

// serveOn starts a server on an address of this machine.
func serveOn(t *testing.T, ip string, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(ip, "0"))
	if err != nil {
		t.Skipf("no address %s here: %v", ip, err)
	}
	s := httptest.NewUnstartedServer(h)
	if err := s.Listener.Close(); err != nil {
		t.Fatal(err)
	}
	s.Listener = l
	s.Config.ErrorLog = log.New(io.Discard, "", 0) //nolint:forbidigo // of handshakes that the tests abort
	t.Cleanup(s.Close)
	return s
}

func newClient(t *testing.T, cfg Config) *Client {
	t.Helper()
	c := NewClient(cfg)
	t.Cleanup(c.Close)
	return c
}

func message(url string, secrets ...string) *Message {
	if secrets == nil {
		secrets = []string{NewSecret()}
	}
	return &Message{ID: "msg_1", URL: url, Secrets: secrets, Body: []byte(`{"type":"order.paid"}`)}
}

func TestNewSecret(t *testing.T) {
	t.Parallel()
	one, other := NewSecret(), NewSecret()
	raw, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(one, "whsec_"))
	if err != nil || !strings.HasPrefix(one, "whsec_") || len(raw) != 32 || one == other {
		t.Errorf("secrets %q and %q: %d bytes, %v", one, other, len(raw), err)
	}
}

// TestClient_Send sends over TLS. The public library accepts the message with each of its
// secrets, and with no other.
func TestClient_Send(t *testing.T) {
	t.Parallel()
	var got *http.Request
	var body []byte
	s := serveOn(t, "127.0.0.1", func(w http.ResponseWriter, r *http.Request) {
		got = r
		body, _ = io.ReadAll(r.Body) //nolint:errcheck // a truncated body fails the comparison
		w.WriteHeader(http.StatusAccepted)
	})
	s.StartTLS()
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	c := newClient(t, Config{Policy: Policy{Allow: prefixes("127.0.0.1/32")}, TLS: &tls.Config{RootCAs: roots}})
	m := message(s.URL+"/w?x=1", NewSecret(), NewSecret())
	res := c.Send(t.Context(), m)
	if res.Err != nil || res.Status != 202 || !res.Delivered() {
		t.Fatalf("result %+v", res)
	}
	if got.Method != "POST" || got.RequestURI != "/w?x=1" || string(body) != string(m.Body) {
		t.Errorf("%s %s: %s", got.Method, got.RequestURI, body)
	}
	for name, want := range map[string]string{"User-Agent": "flashsale", "Content-Type": "application/json", "webhook-id": "msg_1"} {
		if v := got.Header.Get(name); v != want {
			t.Errorf("%s: %q, want %q", name, v, want)
		}
	}
	for i, secret := range append(m.Secrets, NewSecret()) {
		wh, err := standardwebhooks.NewWebhook(secret)
		if err != nil {
			t.Fatal(err)
		}
		if err := wh.Verify(body, got.Header); (err == nil) != (i < 2) {
			t.Errorf("secret %d: %v", i, err)
		}
	}
	// A receiver with an untrusted certificate does not get the message.
	if res := newClient(t, Config{Policy: c.cfg.Policy}).Send(t.Context(), m); res.Err == nil {
		t.Error("an unknown certificate was taken")
	}
	old := serveOn(t, "127.0.0.1", func(http.ResponseWriter, *http.Request) {})
	old.TLS = &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}
	old.StartTLS()
	roots.AddCert(old.Certificate())
	if res := c.Send(t.Context(), message(old.URL)); res.Err == nil {
		t.Error("TLS 1.1 was spoken")
	}
}

// The policy applies to the address dialled, not to the name.
func TestClient_Send_ChecksTheDialledAddress(t *testing.T) {
	t.Parallel()
	var hits atomic.Int64
	s := serveOn(t, "127.0.0.1", func(http.ResponseWriter, *http.Request) { hits.Add(1) })
	s.Start()
	port := s.URL[strings.LastIndexByte(s.URL, ':'):]
	names := newDNS(t, "127.0.0.1")
	for _, c := range []struct {
		name, url string
		allow     []netip.Prefix
	}{
		{"loopback", s.URL, nil},
		{"name of this machine", "http://localhost" + port, prefixes("10.0.0.0/8")},
		{"name that means loopback", "https://shop.example" + port, nil},
		{"the same without TLS", "http://shop.example" + port, prefixes("10.0.0.0/8")},
		{"mapped", "http://[::ffff:127.0.0.1]" + port, prefixes("10.0.0.0/8")},
	} {
		client := newClient(t, Config{Policy: Policy{Allow: c.allow}, Resolver: names.resolver()})
		if res := client.Send(t.Context(), message(c.url)); !errors.Is(res.Err, ErrAddress) || res.Status != 0 || res.Delivered() {
			t.Errorf("%s: %+v", c.name, res)
		}
	}
	if hits.Load() != 0 {
		t.Fatalf("%d requests came through", hits.Load())
	}
	client := newClient(t, Config{Policy: Policy{Allow: prefixes("127.0.0.1/32")}, Resolver: names.resolver()})
	if res := client.Send(t.Context(), message("http://shop.example"+port)); !res.Delivered() {
		t.Fatalf("an allowed address: %+v", res)
	}
	// The name now resolves to another machine. The open connection still leads to the checked
	// address; the next one is checked again.
	names.say("127.0.0.2")
	client.Close()
	if res := client.Send(t.Context(), message("http://shop.example"+port)); !errors.Is(res.Err, ErrAddress) {
		t.Errorf("after the name has changed: %+v", res)
	}
}

// A receiver cannot redirect a message.
func TestClient_Send_FollowsNoRedirect(t *testing.T) {
	t.Parallel()
	var hits atomic.Int64
	target := serveOn(t, "127.0.0.1", func(http.ResponseWriter, *http.Request) { hits.Add(1) })
	target.Start()
	for _, status := range []int{301, 302, 303, 307, 308} {
		s := serveOn(t, "127.0.0.2", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, target.URL, status)
		})
		s.Start()
		// Both addresses are allowed, so they are not the reason why the redirect is not
		// followed.
		c := newClient(t, Config{Policy: Policy{Allow: prefixes("127.0.0.0/8")}})
		if res := c.Send(t.Context(), message(s.URL)); res.Err != nil || res.Status != status || res.Delivered() {
			t.Errorf("%d: %+v", status, res)
		}
	}
	if hits.Load() != 0 {
		t.Errorf("%d redirects were followed", hits.Load())
	}
}

// A misbehaving receiver can do a sender no lasting harm.
func TestClient_Send_Err(t *testing.T) {
	t.Parallel()
	local := Policy{Allow: prefixes("127.0.0.1/32")}
	over := make(chan struct{})
	var ends sync.Once
	end := func() { ends.Do(func() { close(over) }) }
	defer end()
	s := serveOn(t, "127.0.0.1", func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/silent":
			<-over
		case "/endless":
			w.WriteHeader(http.StatusOK)
			for {
				if _, err := w.Write(make([]byte, 1024)); err != nil {
					return
				}
			}
		case "/reset":
			panic(http.ErrAbortHandler)
		case "/header":
			w.Header().Set("X-Long", strings.Repeat("x", 1<<20))
		case "/stuck":
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
			<-over
		}
	})
	s.Start()
	defer end() // before the server waits for its handlers
	for path, delivered := range map[string]bool{"/silent": false, "/reset": false, "/header": false, "/endless": true, "/stuck": true} {
		limit := time.Second
		if path == "/endless" {
			limit = 3 * patience // so that the timeout does not end it
		}
		m := message(s.URL + path + "?token=hush")
		res := sendWithin(t, Config{Policy: local, Timeout: limit}, m)
		if delivered && !res.Delivered() { // a busy machine may be slower than the limit
			res = sendWithin(t, Config{Policy: local, Timeout: 20 * limit}, m)
		}
		if res.Delivered() != delivered || (res.Err == nil) != delivered {
			t.Errorf("%s: %+v", path, res)
		}
		if res.Err != nil && (strings.Contains(res.Err.Error(), "hush") || strings.Contains(res.Err.Error(), m.Secrets[0])) {
			t.Errorf("%s: the error contains internal data: %v", path, res.Err)
		}
	}
	m := message(s.URL, "whsec_!hush!")
	if res := newClient(t, Config{Policy: local}).Send(t.Context(), m); res.Err == nil || strings.Contains(res.Err.Error(), "hush") {
		t.Errorf("a broken secret: %v", res.Err)
	}
}

// sendWithin sends a message with a client of its own. It fails the test if the client does not return.
func sendWithin(t *testing.T, cfg Config, m *Message) Result {
	t.Helper()
	c, ended := newClient(t, cfg), make(chan Result, 1)
	go func() { ended <- c.Send(t.Context(), m) }()
	select {
	case res := <-ended:
		return res
	case <-time.After(patience):
		t.Fatalf("%s: no end", m.URL)
		return Result{}
	}
}

// failingResolver fails to reach its server. The error contains the address and the name.
func failingResolver(server net.Addr, err error) *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(_ context.Context, network, _ string) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: network, Addr: server, Err: err}
	}}
}

// serveFaults starts a server that ends each connection without a valid answer. The path selects
// the fault.
func serveFaults(t *testing.T) *httptest.Server {
	t.Helper()
	s := serveOn(t, "127.0.0.1", func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		switch r.URL.Path {
		case "/reset/hush":
			if err := conn.(*net.TCPConn).SetLinger(0); err != nil {
				t.Error(err)
			}
		case "/nonsense/hush":
			if _, err := io.WriteString(conn, "SSH-2.0-server at 10.9.8.7:22\r\n\r\n"); err != nil {
				t.Error(err)
			}
		case "/silent/hush":
			if _, err := conn.Read(make([]byte, 1)); err != nil && !errors.Is(err, io.EOF) {
				t.Error(err)
			}
		}
	})
	s.Start()
	return s
}

// Admins read the text of an error, so it contains no address, no resolver and no path. Each
// failure is a real one.
func TestClient_Send_ErrorsHideAddressesAndPaths(t *testing.T) {
	t.Parallel()
	s := serveFaults(t)
	secure := serveOn(t, "127.0.0.1", func(http.ResponseWriter, *http.Request) {})
	secure.StartTLS()
	old := serveOn(t, "127.0.0.1", func(http.ResponseWriter, *http.Request) {})
	old.TLS = &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}
	old.StartTLS()
	roots := x509.NewCertPool()
	roots.AddCert(secure.Certificate())

	failing := func(err error) *net.Resolver { return failingResolver(s.Listener.Addr(), err) }
	names := newDNS(t, "127.0.0.1")
	port := func(s *httptest.Server) string { return s.URL[strings.LastIndexByte(s.URL, ':'):] }
	local := Policy{Allow: prefixes("127.0.0.1/32")}
	for name, q := range map[string]struct {
		url, want string
		cfg       Config
	}{
		"unknown name":   {"https://shop.example/hush", "webhook: host name not found", Config{Resolver: newDNS(t, "").resolver()}},
		"mute resolver":  {"https://shop.example/hush", "webhook: host name lookup timed out", Config{Resolver: failing(os.ErrDeadlineExceeded)}},
		"no resolver":    {"https://shop.example/hush", "webhook: host name lookup failed", Config{Resolver: failing(errors.New("no route to 10.0.0.2:53"))}},
		"inner address":  {"https://shop.example/hush", "webhook: address not allowed: neither on the public Internet nor in webhook-allow", Config{Resolver: names.resolver()}},
		"refused":        {"http://127.0.0.1:1/hush", "webhook: connection refused", Config{Policy: local}},
		"reset":          {s.URL + "/reset/hush", "webhook: connection reset", Config{Policy: local}},
		"closed":         {s.URL + "/hush", "webhook: connection closed without an answer", Config{Policy: local}},
		"no HTTP":        {s.URL + "/nonsense/hush", "webhook: connection failed, or the answer is not valid HTTP", Config{Policy: local}},
		"silent":         {s.URL + "/silent/hush", "webhook: timed out", Config{Policy: local}},
		"no TLS":         {"https" + strings.TrimPrefix(s.URL, "http") + "/hush", "webhook: the server does not speak TLS", Config{Policy: local}},
		"unknown issuer": {secure.URL + "/hush", "webhook: the server's certificate is not trusted", Config{Policy: local}},
		"another name": {"https://shop.invalid" + port(secure) + "/hush", "webhook: the server's certificate is for another host name",
			Config{Policy: local, Resolver: names.resolver(), TLS: &tls.Config{RootCAs: roots}}},
		"expired": {secure.URL + "/hush", "webhook: the server's certificate has expired or is not valid yet",
			Config{Policy: local, TLS: &tls.Config{RootCAs: roots, Time: func() time.Time { return time.Unix(1<<40, 0) }}}},
		"TLS 1.1": {old.URL + "/hush", "webhook: TLS handshake failed: tls: protocol version not supported", Config{Policy: local}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q.cfg.Timeout = time.Second
			for range 3 { // a busy machine may be slower than the limit
				res := newClient(t, q.cfg).Send(t.Context(), message(q.url))
				if res.Err == nil || res.Status != 0 {
					t.Fatalf("result %+v", res)
				}
				if got := res.Err.Error(); got == q.want {
					return
				} else if !strings.Contains(got, "timed out") {
					t.Fatalf("got %q, want %q", got, q.want)
				}
				q.cfg.Timeout *= 8
			}
			t.Errorf("timed out, want %q", q.want)
		})
	}
}

// A server that switches protocols and then stays silent does not block the sender, and the
// connection is closed.
func TestClient_Send_SilentProtocolSwitchEnds(t *testing.T) {
	t.Parallel()
	closed := make(chan error, 1)
	s := serveOn(t, "127.0.0.1", func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			closed <- err
			return
		}
		defer conn.Close()
		_, err = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: silence\r\n\r\n")
		if err == nil {
			err = conn.SetReadDeadline(time.Now().Add(patience))
		}
		if err == nil {
			_, err = conn.Read(make([]byte, 1))
		}
		closed <- err
	})
	s.Start()
	c := newClient(t, Config{Policy: Policy{Allow: prefixes("127.0.0.1/32")}, Timeout: 3 * patience})
	ended := make(chan Result, 1)
	go func() { ended <- c.Send(t.Context(), message(s.URL)) }()
	select {
	case res := <-ended:
		if res.Status != http.StatusSwitchingProtocols || res.Delivered() || res.Err != nil {
			t.Errorf("result %+v", res)
		}
	case <-time.After(patience):
		t.Fatal("no end")
	}
	if err := <-closed; !errors.Is(err, io.EOF) {
		t.Errorf("the connection ended with %v", err)
	}
}

// line forwards bytes to a server until it fails: then the existing connections stay open, but
// carry no more data.
type line struct {
	net.Listener
	made atomic.Int64 // connections

	mu  sync.Mutex
	cut chan struct{}
}

func newLine(t *testing.T, to string) *line {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &line{Listener: l, cut: make(chan struct{})}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			closeLater(t, from)
			server, err := net.Dial("tcp", to)
			if err != nil {
				return
			}
			closeLater(t, server)
			n.made.Add(1)
			cut := n.now()
			go pass(server, from, cut)
			go pass(from, server, cut)
		}
	}()
	t.Cleanup(func() { <-ended })
	closeLater(t, l)
	return n
}

func closeLater(t *testing.T, c io.Closer) {
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

func (n *line) now() chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cut
}

// fail stops the existing connections; later ones work.
func (n *line) fail() {
	n.mu.Lock()
	defer n.mu.Unlock()
	close(n.cut)
	n.cut = make(chan struct{})
}

func pass(to io.Writer, from io.Reader, cut <-chan struct{}) {
	buf := make([]byte, 4096)
	for {
		k, err := from.Read(buf)
		if err != nil {
			return
		}
		select {
		case <-cut:
			continue // discarded until the end of the connection
		default:
		}
		if _, err := to.Write(buf[:k]); err != nil {
			return
		}
	}
}

// A silent HTTP/2 connection is closed, although there is always something to send on it.
func TestClient_Send_DeadConnectionIsClosed(t *testing.T) {
	t.Parallel()
	s := serveOn(t, "127.0.0.1", func(_ http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 {
			t.Errorf("spoken: %s", r.Proto)
		}
	})
	s.EnableHTTP2 = true
	s.StartTLS()
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	between := newLine(t, s.Listener.Addr().String())
	c := newClient(t, Config{
		Policy: Policy{Allow: prefixes("127.0.0.1/32")}, TLS: &tls.Config{RootCAs: roots}, Timeout: 3 * time.Second,
	})
	m := message("https://" + between.Addr().String())
	// On a busy machine a time-out may end a connection.
	await.True(t, "two messages over one connection", func() bool {
		first := c.Send(t.Context(), m)
		n := between.made.Load()
		return first.Delivered() && c.Send(t.Context(), m).Delivered() && between.made.Load() == n
	})
	between.fail()
	for end := time.Now().Add(patience); ; {
		res := c.Send(t.Context(), m)
		if res.Delivered() {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("still over the dead connection: %+v", res)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"": 0, "0": 0, "-5": 0, "7": 7 * time.Second, "nonsense": 0, "99999999999": (1 << 20) * time.Second, "1.5": 0,
		"Wed, 02 Jan 2030 03:05:05 GMT": time.Minute, "Wed, 02 Jan 2030 03:04:00 GMT": 0, "Wed, 02 Jan 2930 03:04:00 GMT": (1 << 20) * time.Second,
	} {
		if got := retryAfter(http.Header{"Retry-After": {value}}, now); got != want {
			t.Errorf("%q: %v, want %v", value, got, want)
		}
	}
}

// dns is a name server that returns the same address for every name, or none.
type dns struct {
	conn net.PacketConn
	at   atomic.Value
}

func newDNS(t *testing.T, address string) *dns {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := &dns{conn: conn}
	if address != "" {
		d.say(address)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		d.serve()
	}()
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		<-ended
	})
	return d
}

func (d *dns) say(address string) { d.at.Store(netip.MustParseAddr(address)) }

func (d *dns) resolver() *net.Resolver {
	var dial net.Dialer
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return dial.DialContext(ctx, "udp", d.conn.LocalAddr().String())
	}}
}

// serve answers questions for an A record with the address, and other questions with no
// records.
func (d *dns) serve() {
	buf := make([]byte, 1500)
	for {
		n, from, err := d.conn.ReadFrom(buf)
		if err != nil {
			return
		}
		q := buf[:n]
		end := 12
		for end < n && q[end] != 0 { // the name's labels
			end += 1 + int(q[end])
		}
		end += 5 // the terminator, the type and the class
		if end > n {
			continue
		}
		answer := append([]byte{q[0], q[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, q[12:end]...)
		if at, known := d.at.Load().(netip.Addr); known && q[end-3] == 1 {
			a := at.As4()
			answer[7] = 1
			answer = append(answer, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4)
			answer = append(answer, a[:]...)
		}
		if _, err := d.conn.WriteTo(answer, from); err != nil {
			return
		}
	}
}
