package service

import (
	"path/filepath"
	"strings"

	"flashsale/cmd/flashsale/backend"
	"flashsale/cmd/flashsale/config"
)

// lockFiles keeps other processes from serving the same data with an engine of their own.
func lockFiles(s *config.Settings, ps *parts) error {
	for _, l := range []struct{ path, setting, value string }{
		{filepath.Join(s.DataDir, "serve.lock"), "data-dir", s.DataDir},
		{strings.TrimPrefix(s.DB, "sqlite:") + backend.ServeLock, "db", s.DB},
	} {
		unlock, err := backend.LockFile(l.path, l.setting, l.value)
		if err != nil {
			return err
		}
		ps.closing(l.setting, unlock)
	}
	return nil
}
