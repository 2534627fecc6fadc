package webhook

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"syscall"
)

// sendError is the reason why a message got no answer. The shop's admins read its text, so it
// is one of a fixed set: network errors contain the resolver, the local address of a
// connection, internal addresses, and the URL, whose path may be a secret.
type sendError struct {
	reason string
	cause  error
}

func (e *sendError) Error() string { return "webhook: " + e.reason }

func (e *sendError) Unwrap() error { return e.cause }

// failed converts the error of an attempt.
func failed(err error) error { return &sendError{reason: reason(err), cause: err} }

// plainReasons are errors with a fixed reason; the first match counts.
var plainReasons = []struct {
	err    error
	reason string
}{
	{ErrAddress, "address not allowed: neither on the public Internet nor in webhook-allow"},
	{context.Canceled, "the attempt was cancelled"},
	{http.ErrSchemeMismatch, "the server does not speak TLS"},
	{syscall.ECONNREFUSED, "connection refused"},
	{syscall.ECONNRESET, "connection reset"},
	{syscall.EPIPE, "connection reset"},
	{syscall.EHOSTUNREACH, "host unreachable"},
	{syscall.ENETUNREACH, "network unreachable"},
	{io.EOF, "connection closed without an answer"},
	{io.ErrUnexpectedEOF, "connection closed without an answer"},
}

func reason(err error) string {
	var lookup *net.DNSError
	if errors.As(err, &lookup) {
		return lookupReason(lookup)
	}
	for _, plain := range plainReasons {
		if errors.Is(err, plain.err) {
			return plain.reason
		}
	}
	var slow net.Error
	if errors.As(err, &slow) && slow.Timeout() {
		return "timed out"
	}
	var certificate *tls.CertificateVerificationError
	if errors.As(err, &certificate) {
		return certificateReason(certificate)
	}
	var record tls.RecordHeaderError
	if errors.As(err, &record) {
		return "the server does not speak TLS"
	}
	var op *net.OpError
	if errors.As(err, &op) && (op.Op == "remote error" || op.Op == "local error") {
		return "TLS handshake failed: " + op.Err.Error() // one of the TLS alerts
	}
	return "connection failed, or the answer is not valid HTTP"
}

func lookupReason(err *net.DNSError) string {
	switch {
	case err.IsNotFound:
		return "host name not found"
	case err.IsTimeout:
		return "host name lookup timed out"
	default:
		return "host name lookup failed"
	}
}

func certificateReason(err error) string {
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &name):
		return "the server's certificate is for another host name"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "the server's certificate has expired or is not valid yet"
	default:
		return "the server's certificate is not trusted"
	}
}
