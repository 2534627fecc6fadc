// Package overlay lets tests and benchmarks build the service with source changes that are not
// in any file of the repository.
package overlay

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// ErrOutdated means that the text to replace does not occur exactly once in its file: the code
// has changed, and the Change must be updated.
var ErrOutdated = errors.New("overlay: the code has changed, and the change of it must be updated")

// Change is a replacement in one file. Its path is relative to the repository and uses slashes.
// From must occur in the file exactly once. A file has at most one change.
type Change struct{ File, From, To string }

// Write writes the changed files to dir and returns the path of the file for `go build
// -overlay`. It does not modify the files of the repository at root.
func Write(root, dir string, changes []Change) (string, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return "", fmt.Errorf("overlay: %w", err)
	}
	list := struct{ Replace map[string]string }{make(map[string]string)}
	for _, c := range changes {
		path := filepath.Join(root, filepath.FromSlash(c.File))
		text, err := os.ReadFile(path)
		if err != nil {
			return "", fmt.Errorf("%w: %w", ErrOutdated, err)
		}
		if n := strings.Count(string(text), c.From); n != 1 {
			return "", fmt.Errorf("%w: %s has %d places, and not one, that read\n%s", ErrOutdated, c.File, n, c.From)
		}
		to := filepath.Join(dir, strings.ReplaceAll(c.File, "/", "_"))
		if err := os.WriteFile(to, []byte(strings.Replace(string(text), c.From, c.To, 1)), 0o600); err != nil {
			return "", fmt.Errorf("overlay: %w", err)
		}
		list.Replace[path] = to
	}
	text, err := json.Marshal(list)
	if err != nil {
		return "", fmt.Errorf("overlay: %w", err)
	}
	path := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return "", fmt.Errorf("overlay: %w", err)
	}
	return path, nil
}
