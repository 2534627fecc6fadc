//go:build chaos && unix

package sabotage

import (
	"path/filepath"
	"testing"

	"flashsale/internal/testing/overlay"
	"flashsale/internal/testing/process"
)

// alteration is a replacement in one file of the repository.
type alteration struct{ file, from, to string }

// unaltered builds the service without changes.
func unaltered(t *testing.T) string {
	t.Helper()
	return process.Build(t)
}

// altered builds the service with alterations.
func altered(t *testing.T, list []alteration) string {
	t.Helper()
	changes := make([]overlay.Change, len(list))
	for i, a := range list {
		changes[i] = overlay.Change{File: a.file, From: a.from, To: a.to}
	}
	path, err := overlay.Write(filepath.Join("..", "..", ".."), t.TempDir(), changes)
	if err != nil {
		t.Fatal(err)
	}
	return process.Build(t, "-overlay", path)
}
