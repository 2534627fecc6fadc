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

	"flashsale/internal/plural"
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
		return nil, fmt.Errorf("development key %s has %s, not 64: remove it and start again", path, plural.Count(len(key), "byte"))
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
	if err := MakeDataDir(dataDir); err != nil {
		return nil, err
	}
	var b [32]byte
	if _, err := rand.Read(b[:]); err != nil {
		return nil, fmt.Errorf("make development key: %w", err)
	}
	key = []byte(hex.EncodeToString(b[:]))
	if err := os.WriteFile(filepath.Join(dataDir, DevKeyFile), key, 0o600); err != nil {
		return nil, FailedSetting("data-dir", dataDir, err.Error(), WritableFolder)
	}
	return key, nil
}

// WritableFolder is the fix for a folder that refuses writes.
const WritableFolder = "name a folder this process may write to"

// MakeDataDir creates the data directory unless it exists, but not the folders above it: a
// mistyped path would create them silently.
func MakeDataDir(dataDir string) error {
	err := os.Mkdir(dataDir, 0o750)
	switch {
	case err == nil || errors.Is(err, fs.ErrExist):
		return nil
	case errors.Is(err, fs.ErrNotExist):
		cause, fix := MissingFolder(filepath.Dir(filepath.Clean(dataDir)))
		return FailedSetting("data-dir", dataDir, cause, fix)
	default:
		return FailedSetting("data-dir", dataDir, err.Error(), WritableFolder)
	}
}

// MissingFolder returns the cause and the fix of an error about a folder that does not exist.
func MissingFolder(folder string) (cause, fix string) {
	return "the folder " + folder + " does not exist", "create it (mkdir -p " + folder + "), or correct the path"
}

// mockPayments is the setting of the mock payment service.
const mockPayments = "mock-payments-addr"

// off is the value of an address that disables what would listen there.
const off = "off"

// MockPayments returns the address of the mock payment service; empty for none. Outside
// development mode there is none, and an address that was set is refused.
func (s *Settings) MockPayments(development bool) (string, error) {
	switch {
	case s.MockPaymentsAddr == off:
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
