package config

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
)

// DevKeyFile is the file with the key of development mode, in the data directory.
const DevKeyFile = "jwt.key"

// readDevKey reads the key of development mode. Errors: fs.ErrNotExist.
func readDevKey(dataDir string) ([]byte, error) {
	path := filepath.Join(dataDir, DevKeyFile)
	key, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, err
	case err != nil:
		return nil, FailedSetting("data-dir", dataDir, err.Error(), "name a folder this process may read and write")
	case len(key) < 32:
		return nil, fmt.Errorf("development key %s has %d bytes, not 64: remove it and start again", path, len(key))
	}
	return key, nil
}

// DevKey reads the key of development mode, and creates it the first time. Tokens signed with
// it stay valid after a restart.
func DevKey(dataDir string) ([]byte, error) {
	key, err := readDevKey(dataDir)
	if !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	if err := os.MkdirAll(dataDir, 0o750); err != nil {
		return nil, FailedSetting("data-dir", dataDir, err.Error(), "name a folder this process may write to")
	}
	var b [32]byte
	if _, err := rand.Read(b[:]); err != nil {
		return nil, fmt.Errorf("make development key: %w", err)
	}
	key = []byte(hex.EncodeToString(b[:]))
	if err := os.WriteFile(filepath.Join(dataDir, DevKeyFile), key, 0o600); err != nil {
		return nil, FailedSetting("data-dir", dataDir, err.Error(), "name a folder this process may write to")
	}
	return key, nil
}

// mockPayments is the setting of the mock payment service, and mockPaymentsOff the value that
// disables it.
const (
	mockPayments    = "mock-payments-addr"
	mockPaymentsOff = "off"
)

// MockPayments returns the address of the mock payment service; empty for none. Outside
// development mode there is none, and an address that was set is refused.
func (s *Settings) MockPayments(development bool) (string, error) {
	switch {
	case s.MockPaymentsAddr == mockPaymentsOff:
		return "", nil
	case development:
		return s.MockPaymentsAddr, nil
	case s.origins[mockPayments] != "default":
		return "", BadSetting(mockPayments, s.MockPaymentsAddr, "the mock payment service exists only in development mode: flashsale serve on a loopback address, without a key",
			"remove the setting")
	}
	return "", nil
}

// loopback reports whether only this machine can reach addr.
func loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
