// Package repo finds the repository's source and builds the service from it,
// for programs and tests that start the service as a process.
package repo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Service is the import path of the service's program.
const Service = "flashsale/cmd/flashsale"

// ErrNotFound means that no folder above the working directory contains the module.
var ErrNotFound = errors.New("the flashsale module was not found above the working directory")

// Root returns the folder of the flashsale module. It walks up from the working
// directory, which `go run` and `go test` set inside the tree, and also from
// within the module in bench/.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("working directory: %w", err)
	}
	for {
		mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && bytes.HasPrefix(mod, []byte("module flashsale\n")) {
			return dir, nil
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", fmt.Errorf("find the flashsale module: %w", err)
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", ErrNotFound
		}
		dir = up
	}
}

// Build builds the service with the dependency versions of its own go.mod and writes the
// program to the file out, an absolute path. flags are passed to `go build`.
func Build(ctx context.Context, out string, flags ...string) error {
	root, err := Root()
	if err != nil {
		return err
	}
	args := append(append([]string{"build", "-o", out}, flags...), Service)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root
	if text, err := cmd.CombinedOutput(); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("build the service: %w", context.Cause(ctx))
		}
		return fmt.Errorf("build the service: %w\n%s", err, text)
	}
	return nil
}
