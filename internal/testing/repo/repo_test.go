package repo

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestRoot changes the working directory, which all tests of a binary share.
func TestRoot(t *testing.T) {
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, "cmd", "flashsale")); err != nil {
		t.Error(err)
	}
	t.Chdir(filepath.Join(root, "bench", "service"))
	if got, err := Root(); err != nil || got != root {
		t.Errorf("from the module in bench: %s, %v; want %s", got, err, root)
	}
	t.Chdir(t.TempDir())
	if got, err := Root(); !errors.Is(err, ErrNotFound) {
		t.Errorf("outside the tree: %s, %v; want ErrNotFound", got, err)
	}
}
