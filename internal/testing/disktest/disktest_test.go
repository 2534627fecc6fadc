//go:build unix

package disktest

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestDisk(t *testing.T) {
	t.Parallel()
	const size = 4 << 20
	var path string
	t.Run("mounted", func(t *testing.T) {
		d := New(t, size)
		path = d.Path()
		if left := d.Left(); left <= 0 || left > size {
			t.Errorf("%d bytes are left of %d", left, size)
		}
		file := filepath.Join(path, "file")
		f, err := os.Create(file)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(strings.Repeat("x", 5000)); err != nil {
			t.Fatal(err)
		}
		d.Fill()
		if left := d.Left(); left != 0 {
			t.Errorf("%d bytes are left of a full disk", left)
		}
		// Only the rest of the last page can be filled.
		if _, err := f.WriteString(strings.Repeat("x", 10_000)); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("writing to a full disk: %v", err)
		}
		d.Fill() // again, with nothing left to fill
		d.Free()
		if _, err := f.WriteString(strings.Repeat("x", 10_000)); err != nil {
			t.Errorf("writing to a freed disk: %v", err)
		}
		d.Free()
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Skip("the mounts cannot be read here: ", err)
	}
	if path != "" && strings.Contains(string(mounts), path) {
		t.Errorf("%s is still mounted", path)
	}
}

func TestDeny(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("before"); err != nil {
		t.Fatal(err)
	}
	allow := Deny(t, file)
	if _, err := f.WriteString("denied"); !errors.Is(err, syscall.EPERM) {
		t.Errorf("writing to a file that was open before: %v", err)
	}
	if _, err := os.OpenFile(file, os.O_RDWR, 0); !errors.Is(err, syscall.EPERM) {
		t.Errorf("opening the file for writing: %v", err)
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != "before" {
		t.Errorf("reading it: %q, %v", got, err)
	}
	allow()
	allow()
	if _, err := f.WriteString(" after"); err != nil {
		t.Errorf("writing once it is allowed: %v", err)
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != "before after" {
		t.Errorf("at the end: %q, %v", got, err)
	}
}
