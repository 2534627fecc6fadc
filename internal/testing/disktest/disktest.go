//go:build unix

// Package disktest gives tests failing disks: small ones that can be filled and freed, and
// files that refuse writes for a while, even to processes that already have them open.
package disktest

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// Disk is an in-memory file system of a fixed size.
type Disk struct {
	t    testing.TB
	path string
}

// mountScript mounts a disk and unmounts it when its input ends, which also happens when the
// test binary dies and runs no clean-up. The unmount is lazy, because a process may not have
// ended yet.
const mountScript = `
mount -t tmpfs -o "size=$1,mode=0700" flashsale-test "$2" || exit 1
echo mounted
cat >/dev/null
umount -l "$2"
`

// New mounts a disk of the given size until the test ends. The kernel rounds the size up to
// pages. If mounting is not permitted, the test is skipped, or fails with CI=true.
func New(t testing.TB, bytes int64) *Disk {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command("sh", "-c", mountScript, "sh", strconv.FormatInt(bytes, 10), dir)
	// An interrupt from the terminal must only reach the test binary; the script waits for its
	// end.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var said strings.Builder
	cmd.Stderr = &said
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	word, err := bufio.NewReader(out).ReadString('\n')
	if word != "mounted\n" {
		unavailable(t, "a disk of the test's own cannot be mounted", errors.Join(err, cmd.Wait()), said.String())
	}
	t.Cleanup(func() {
		if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
			t.Errorf("disktest: unmount %s: %v %s", dir, err, said.String())
		}
	})
	return &Disk{t: t, path: dir}
}

// unavailable ends a test that cannot run on this machine.
func unavailable(t testing.TB, what string, err error, said string) {
	t.Helper()
	text := fmt.Sprintf("disktest: %s, which needs Linux and root: %v %s", what, err, strings.TrimSpace(said))
	if os.Getenv("CI") == "true" {
		t.Fatal(text)
	}
	t.Skip("skipped: ", text)
}

// Path is the folder on which the disk is mounted.
func (d *Disk) Path() string { return d.path }

// Remount makes the disk read-only or writable. It cannot be made read-only while a
// file on it is open for writing.
func (d *Disk) Remount(readOnly bool) {
	d.t.Helper()
	how := "remount,rw"
	if readOnly {
		how = "remount,ro"
	}
	out, err := exec.Command("mount", "-o", how, d.path).CombinedOutput()
	if err != nil {
		d.t.Fatalf("disktest: %s %s: %v: %s", how, d.path, err, strings.TrimSpace(string(out)))
	}
}

// ballast is the file that fills the disk.
func (d *Disk) ballast() string { return filepath.Join(d.path, "ballast") }

// Fill uses all free space, so that no file can grow any more. Overwriting in place still
// succeeds.
func (d *Disk) Fill() {
	d.t.Helper()
	if err := d.fill(); err != nil {
		d.t.Errorf("disktest: fill %s: %v", d.path, err)
	}
}

func (d *Disk) fill() (err error) {
	f, err := os.OpenFile(d.ballast(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	// Large blocks first: smaller ones may still fit where a large one was refused.
	for size := 1 << 20; size > 0; {
		_, werr := f.Write(make([]byte, size))
		switch {
		case errors.Is(werr, syscall.ENOSPC):
			size /= 2
		case werr != nil:
			return werr
		}
	}
	return nil
}

// Free releases the space that Fill used.
func (d *Disk) Free() {
	d.t.Helper()
	// Truncate before removing: a child process that another goroutine starts has a copy of
	// every open file until it executes its program, which keeps the blocks of a removed file.
	if err := os.Truncate(d.ballast(), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
		d.t.Errorf("disktest: free %s: %v", d.path, err)
	}
	if err := os.Remove(d.ballast()); err != nil && !errors.Is(err, os.ErrNotExist) {
		d.t.Errorf("disktest: free %s: %v", d.path, err)
	}
}

// Left is the number of bytes that can still be written.
func (d *Disk) Left() int64 {
	d.t.Helper()
	var s syscall.Statfs_t
	if err := syscall.Statfs(d.path, &s); err != nil {
		d.t.Errorf("disktest: look at %s: %v", d.path, err)
		return 0
	}
	return int64(s.Bavail) * int64(s.Bsize) //nolint:unconvert // the types differ between systems
}

// Deny refuses writes to existing files, even for root and through open descriptors, until
// allow is called or the test ends. Only the first call of allow has an effect. The files stay
// readable. None of them may be mapped for writing: a process that writes to such a mapping
// dies.
//
// If the file system does not support this, the test is skipped, or fails with CI=true.
func Deny(t testing.TB, files ...string) (allow func()) {
	t.Helper()
	denied := true
	allow = func() {
		t.Helper()
		if !denied {
			return
		}
		denied = false
		if err := chattr("-i", files); err != nil {
			t.Errorf("disktest: allow writes again: %v", err)
		}
	}
	// Some file systems check only when a file is opened, so the probe uses a file that is
	// already open.
	probe, err := os.OpenFile(files[0], os.O_WRONLY, 0)
	if err != nil {
		t.Fatalf("disktest: deny writes: %v", err)
	}
	defer probe.Close() //nolint:errcheck // nothing is written to it
	t.Cleanup(allow)
	if err = chattr("+i", files); err == nil {
		err = denies(probe)
	}
	if err != nil {
		unavailable(t, "writes cannot be denied", err, "")
	}
	return allow
}

// denies returns an error unless an open file refuses changes. It sets the length that the file
// already has, which changes nothing if it is allowed.
func denies(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	err = syscall.Ftruncate(int(f.Fd()), info.Size())
	if errors.Is(err, syscall.EPERM) {
		return nil
	}
	return fmt.Errorf("%s still takes writes (%v)", f.Name(), err)
}

func chattr(flag string, files []string) error {
	out, err := exec.Command("chattr", append([]string{flag, "--"}, files...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("chattr %s %v: %w: %s", flag, files, err, strings.TrimSpace(string(out)))
	}
	return nil
}
