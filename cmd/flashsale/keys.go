package main

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

// devKeyFile holds the key of development mode, in the data directory.
const devKeyFile = "jwt.key"

// devKey reads development mode's key, making it the first time. Tokens signed
// with it stay good over restarts.
func devKey(dataDir string) ([]byte, error) {
	path := filepath.Join(dataDir, devKeyFile)
	key, err := os.ReadFile(path)
	if err == nil && len(key) >= 32 {
		return key, nil
	}
	if err == nil {
		return nil, fmt.Errorf("development key %s has %d bytes, not 64: remove it and start again", path, len(key))
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, failedSetting("data-dir", dataDir, err.Error(), "name a folder this process may read and write")
	}
	if err := os.MkdirAll(dataDir, 0o750); err != nil {
		return nil, failedSetting("data-dir", dataDir, err.Error(), "name a folder this process may write to")
	}
	var b [32]byte
	if _, err := rand.Read(b[:]); err != nil {
		return nil, fmt.Errorf("make development key: %w", err)
	}
	key = []byte(hex.EncodeToString(b[:]))
	if err := os.WriteFile(path, key, 0o600); err != nil {
		return nil, failedSetting("data-dir", dataDir, err.Error(), "name a folder this process may write to")
	}
	return key, nil
}

// loopback reports whether addr is reachable from this machine alone.
func loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
