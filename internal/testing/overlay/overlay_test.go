package overlay

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestWrite_BuildsTheChange(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":      "module example\n",
		"cmd/main.go": "package main\n\nfunc main() { println(\"as it is\") }\n",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	path, err := Write(root, t.TempDir(), []Change{{"cmd/main.go", "as it is", "changed"}})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "run", "-overlay", path, "./cmd")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != "changed" {
		t.Errorf("got %q, %v", out, err)
	}
	for _, c := range []Change{{"cmd/main.go", "absent", ""}, {"cmd/main.go", "main", ""}, {"none.go", "a", ""}} {
		if _, err := Write(root, t.TempDir(), []Change{c}); !errors.Is(err, ErrOutdated) {
			t.Errorf("%+v: got %v", c, err)
		}
	}
}
