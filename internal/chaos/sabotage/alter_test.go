//go:build chaos && unix

package sabotage

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"flashsale/internal/process"
)

// alteration is a replacement in one file of the repository. The text must stand
// in it exactly once.
type alteration struct{ file, from, to string }

// unaltered builds the service as it is.
func unaltered(t *testing.T) string {
	t.Helper()
	return process.Build(t)
}

// altered builds the service with alterations. The files of the repository stay
// as they are: the compiler is given others in their place.
func altered(t *testing.T, list []alteration) string {
	t.Helper()
	root, err := filepath.Abs(filepath.Join("..", "..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	overlay := struct{ Replace map[string]string }{make(map[string]string)}
	for _, a := range list {
		path := filepath.Join(root, filepath.FromSlash(a.file))
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatalf("%v: the sabotage must be updated", err)
		}
		if n := strings.Count(string(text), a.from); n != 1 {
			t.Fatalf("%s has %d places, and not one, that read\n%s\nThe code has changed, and the sabotage must be updated.", a.file, n, a.from)
		}
		to := filepath.Join(dir, strings.ReplaceAll(a.file, "/", "_"))
		if err := os.WriteFile(to, []byte(strings.Replace(string(text), a.from, a.to, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		overlay.Replace[path] = to
	}
	text, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return process.Build(t, "-overlay", path)
}
