package redistest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority is a certificate authority with a certificate and key for one host, in files of the
// test's folder.
type Authority struct {
	// File has the authority's certificate. A process trusts it if SSL_CERT_FILE names it.
	File string
	// Config trusts the authority.
	Config *tls.Config

	certificate, key string // the files of the host
}

// NewAuthority makes an authority, and a certificate for host, a name or an address.
func NewAuthority(t testing.TB, host string) *Authority {
	t.Helper()
	dir := t.TempDir()
	a := &Authority{
		File: filepath.Join(dir, "ca.crt"), Config: &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12},
		certificate: filepath.Join(dir, "redis.crt"), key: filepath.Join(dir, "redis.key"),
	}
	if err := a.write(host); err != nil {
		t.Fatal(err)
	}
	return a
}

// write makes the certificates and writes the files.
func (a *Authority) write(host string) error {
	rootKey, err1 := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	hostKey, err2 := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	root := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "redis"},
		NotBefore: root.NotBefore, NotAfter: root.NotAfter, KeyUsage: x509.KeyUsageDigitalSignature,
		// The nodes of a cluster are clients of each other.
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if ip := net.ParseIP(host); ip != nil {
		leaf.IPAddresses = []net.IP{ip}
	} else {
		leaf.DNSNames = []string{host}
	}
	rootDER, err1 := x509.CreateCertificate(rand.Reader, root, root, rootKey.Public(), rootKey)
	leafDER, err2 := x509.CreateCertificate(rand.Reader, leaf, root, hostKey.Public(), rootKey)
	keyDER, err3 := x509.MarshalPKCS8PrivateKey(hostKey)
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	if !a.Config.RootCAs.AppendCertsFromPEM(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: rootDER})) {
		return errors.New("redistest: the certificate cannot be read")
	}
	return errors.Join(
		writePEM(a.File, "CERTIFICATE", rootDER),
		writePEM(a.certificate, "CERTIFICATE", leafDER),
		writePEM(a.key, "PRIVATE KEY", keyDER),
	)
}

func writePEM(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

// args are the settings of a redis-server with the certificate.
func (a *Authority) args() []string {
	return []string{
		"--tls-cert-file", a.certificate, "--tls-key-file", a.key, "--tls-ca-cert-file", a.File,
		"--tls-auth-clients", "no", "--tls-replication", "yes",
	}
}

// RealTLS is Real with TLS only. If redis-server was built without TLS, the test fails.
func RealTLS(t testing.TB, a *Authority, args ...string) *Server {
	t.Helper()
	needServer(t)
	s, err := startTLS(a, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.stop)
	return s
}
