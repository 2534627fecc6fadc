//go:build unix

package check

import (
	"debug/elf"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/linter"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
)

const dockerfile = "../docker/Dockerfile"

// stages parses the Dockerfile; every warning of its linter is an error.
func stages(t *testing.T) []instructions.Stage {
	t.Helper()
	parsed, err := parser.Parse(strings.NewReader(read(t, dockerfile)))
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range parsed.Warnings {
		t.Errorf("%s: %s", dockerfile, w.Short)
	}
	lint := linter.New(&linter.Config{Warn: func(rule, _, _, msg string, at []parser.Range) {
		t.Errorf("%s: %v: %s: %s", dockerfile, at, rule, msg)
	}})
	all, _, err := instructions.Parse(parsed.AST, lint)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 2 {
		t.Fatalf("%s has %d stages", dockerfile, len(all))
	}
	return all
}

// buildCommand is the command that builds the program.
func buildCommand(t *testing.T) string {
	t.Helper()
	for _, c := range stages(t)[0].Commands {
		if run, ok := c.(*instructions.RunCommand); ok && strings.Contains(run.String(), "go build") {
			return run.CmdLine[0]
		}
	}
	t.Fatal("the Dockerfile does not build the program")
	return ""
}

// imageEnv is the environment that the image sets.
func imageEnv(t *testing.T) map[string]string {
	t.Helper()
	env := make(map[string]string)
	all := stages(t)
	for _, c := range all[len(all)-1].Commands {
		if e, ok := c.(*instructions.EnvCommand); ok {
			for _, kv := range e.Env {
				env[kv.Key] = kv.Value
			}
		}
	}
	return env
}

// The image has no shell, runs as a numeric user, and exposes what the program listens on.
func TestDockerfile_Image(t *testing.T) {
	t.Parallel()
	all := stages(t)
	final := all[len(all)-1]
	if final.BaseName != "scratch" {
		t.Errorf("the image is built from %s", final.BaseName)
	}
	known := settings(t, nil, imageEnv(t))
	want := []string{portOf(known["addr"].value), portOf(known["ops-addr"].value)}
	var user, entry, data bool
	for _, c := range final.Commands {
		switch c := c.(type) {
		case *instructions.UserCommand:
			user = regexp.MustCompile(`^[1-9]\d*:[1-9]\d*$`).MatchString(c.User)
		case *instructions.EntrypointCommand:
			entry = !c.PrependShell && slices.Equal(c.CmdLine, []string{"/usr/local/bin/flashsale"})
		case *instructions.VolumeCommand:
			data = slices.Equal(c.Volumes, []string{known["data-dir"].value})
		case *instructions.ExposeCommand:
			if !slices.Equal(c.Ports, want) {
				t.Errorf("it exposes %v, and the program listens on %v", c.Ports, want)
			}
		case *instructions.RunCommand:
			t.Errorf("it runs %v, without a shell", c.CmdLine)
		}
	}
	if !user || !entry || !data {
		t.Errorf("numeric user: %v, entry point: %v, volume is the data directory: %v", user, entry, data)
	}
	language := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(read(t, root+"/go.mod"))[1]
	if !strings.HasPrefix(all[0].BaseName, "golang:"+language+".") {
		t.Errorf("it is built with %s, and go.mod has Go %s", all[0].BaseName, language)
	}
}

// The program needs no file of the image's base: neither an interpreter nor a library.
func TestDockerfile_Static(t *testing.T) {
	t.Parallel()
	f, err := elf.Open(binary(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			t.Error("the program is linked dynamically")
		}
	}
}

// What .dockerignore leaves out exists nowhere among the sources of the program.
func TestDockerfile_Ignored(t *testing.T) {
	t.Parallel()
	sources := goFiles(t)
	for line := range strings.Lines(read(t, root+"/.dockerignore")) {
		pattern := strings.Trim(strings.TrimSpace(line), "/")
		if pattern == "" || strings.HasPrefix(pattern, "#") {
			continue
		}
		for _, path := range sources {
			match, err := filepath.Match(strings.TrimPrefix(pattern, "**/"), filepath.Base(path))
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(pattern, "**/") && match || path == pattern || strings.HasPrefix(path, pattern+"/") {
				t.Errorf(".dockerignore: %s leaves out %s", pattern, path)
			}
		}
	}
}

// goFiles are the files of the program's packages, those that are embedded included.
func goFiles(t *testing.T) []string {
	t.Helper()
	out := output(t, root, "go", "list", "-deps", "-f",
		`{{if and .Module .Module.Main}}{{$d := .Dir}}{{range .GoFiles}}{{$d}}/{{.}}{{"\n"}}{{end}}{{range .EmbedFiles}}{{$d}}/{{.}}{{"\n"}}{{end}}{{end}}`, "./cmd/flashsale")
	top, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for line := range strings.Lines(out) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		path, err := filepath.Rel(top, line)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(line); err != nil {
			t.Fatal(err)
		}
		all = append(all, path)
	}
	if len(all) < 100 {
		t.Fatalf("go list shows %d files", len(all))
	}
	return all
}
