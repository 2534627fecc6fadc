//go:build unix

package backend

import (
	"path/filepath"
	"strings"
	"testing"

	"flashsale/cmd/flashsale/config"
	"flashsale/internal/testing/disktest"
)

// TestSchemaError_DiskFull: the error of a migration that does not fit on the disk names the setting and the fix.
func TestSchemaError_DiskFull(t *testing.T) {
	t.Parallel()
	s := &config.Settings{DB: "sqlite:" + filepath.Join(disktest.New(t, 100<<10).Path(), "shop.db")}
	db, err := OpenDatabase(t.Context(), s, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	m, err := Migrator(db)
	if err != nil {
		t.Fatal(err)
	}
	_, err = m.Up(t.Context())
	if err = SchemaError(s, err); err == nil || !strings.Contains(err.Error(), s.DB) || !strings.HasSuffix(err.Error(), "; free disk space") {
		t.Errorf("got %v", err)
	}
}
