//go:build unix

// Package disktest gives tests disks that fail: small ones that can be filled
// and freed, and files that refuse to be written for a while, to processes that
// have them open too.
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

// Disk is a file system of its own in memory, of a fixed size.
type Disk struct {
	t    testing.TB
	path string
}

// mountScript mounts a disk, and unmounts it when its input ends: also when the
// test binary dies, which runs no clean-up then. Lazily, because a process may
// not have ended yet.
const mountScript = `
mount -t tmpfs -o "size=$1,mode=0700" flashsale-test "$2" || exit 1
echo mounted
cat >/dev/null
umount -l "$2"
`

// New mounts a disk of so many bytes, for as long as the test lasts. The kernel
// rounds the size up to pages. Where it may not be mounted the test is skipped,
// and with CI=true it fails instead.
func New(t testing.TB, bytes int64) *Disk {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command("sh", "-c", mountScript, "sh", strconv.FormatInt(bytes, 10), dir)
	// A terminal's interrupt is for the test binary, whose end this one awaits.
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

// unavailable ends a test that this machine cannot run.
func unavailable(t testing.TB, what string, err error, said string) {
	t.Helper()
	text := fmt.Sprintf("disktest: %s, which needs Linux and root: %v %s", what, err, strings.TrimSpace(said))
	if os.Getenv("CI") == "true" {
		t.Fatal(text)
	}
	t.Skip("skipped: ", text)
}

// Path is the folder the disk is mounted on.
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

// ballast is the file that fills a disk.
func (d *Disk) ballast() string { return filepath.Join(d.path, "ballast") }

// Fill takes all room there is, so that nothing can grow any more. What is
// overwritten in place still can be.
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
	// Large blocks first: a refused one may have left room for smaller ones.
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

// Free gives back the room that Fill took.
func (d *Disk) Free() {
	d.t.Helper()
	// Truncated first: a child process that another goroutine is starting has a copy of
	// every open file until it executes its program, and keeps a removed file's blocks.
	if err := os.Truncate(d.ballast(), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
		d.t.Errorf("disktest: free %s: %v", d.path, err)
	}
	if err := os.Remove(d.ballast()); err != nil && !errors.Is(err, os.ErrNotExist) {
		d.t.Errorf("disktest: free %s: %v", d.path, err)
	}
}

// Left is how many bytes can still be written.
func (d *Disk) Left() int64 {
	d.t.Helper()
	var s syscall.Statfs_t
	if err := syscall.Statfs(d.path, &s); err != nil {
		d.t.Errorf("disktest: look at %s: %v", d.path, err)
		return 0
	}
	return int64(s.Bavail) * int64(s.Bsize) //nolint:unconvert // the types differ between systems
}

// Deny refuses writes to existing files, whoever has them open and be it root,
// until allow is called or the test ends; a second call of it does nothing.
// Their contents can be read. A file that is mapped for writing must not be
// among them: who touches it then dies.
//
// Where the file system cannot do that the test is skipped, and with CI=true it
// fails instead.
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
	// Some file systems ask when a file is opened only, so one that was open
	// before is tried.
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

// denies returns an error unless an open file refuses to be changed: it is asked
// for the length that it has, which changes nothing where that is allowed.
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
