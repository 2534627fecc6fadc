//go:build unix

package main_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"flashsale/internal/testing/disktest"
	"flashsale/internal/testing/process"
	"flashsale/internal/testing/redistest"
)

// unprivileged is the id of a user and a group that own no files.
const unprivileged = 65534

// otherUser makes a test that switches users fail in CI without root, and skip elsewhere.
func otherUser(t *testing.T) {
	t.Helper()
	switch {
	case os.Geteuid() == 0:
	case os.Getenv("CI") == "true":
		t.Fatal("this test runs processes as another user, which needs root")
	default:
		t.Skip("skipped: running processes as another user needs root")
	}
}

// refusesToStart starts a process that must exit before it is ready, with an error that names
// the setting, the value, the cause and the fix.
func refusesToStart(t *testing.T, spec process.Spec, says ...string) {
	t.Helper()
	p, err := process.TryStart(t, spec)
	if !errors.Is(err, process.ErrExited) {
		t.Fatalf("%s: %v, want %v", spec.Command, err, process.ErrExited)
	}
	if code, err := p.Wait(t.Context()); err != nil || code != 1 {
		t.Errorf("%s: exit code %d, %v, want 1", spec.Command, code, err)
	}
	for _, want := range says {
		if !strings.Contains(p.Log(), want) {
			t.Errorf("%s does not say %q:\n%s", spec.Command, want, p.Log())
		}
	}
}

// TestDatabase_OtherUserIsExplained migrates a database as root, and runs the service as a user
// without write permission.
func TestDatabase_OtherUserIsExplained(t *testing.T) {
	needProcesses(t)
	needSQLite(t)
	otherUser(t)
	s := newRedisShop(t)
	// Only the test binary's user can enter the folder above it.
	if err := errors.Join(os.Chmod(filepath.Dir(s.dir), 0o755), os.Chown(s.dir, unprivileged, unprivileged)); err != nil { //nolint:gosec // it holds nothing
		t.Fatal(err)
	}
	as := func(command string, args ...string) process.Spec {
		spec := s.spec(command, args)
		spec.UID = unprivileged
		return spec
	}
	cause := []string{"setting db (FLASHSALE_DB)", s.dbPath, "permission denied", "give the user of this process (uid 65534) write access to the file"}
	for _, mode := range []os.FileMode{0o444, 0o600} {
		if err := os.Chmod(s.dbPath, mode); err != nil {
			t.Fatal(err)
		}
		for _, command := range []string{"serve", "api", "worker"} {
			refusesToStart(t, as(command), cause...)
		}
		doctor := process.Run(t, as("", append([]string{"doctor"}, s.settings()...)...))
		if doctor.Code != 1 || !strings.Contains(doctor.Output, "permission denied") {
			t.Errorf("mode %v: doctor: exit code %d\n%s", mode, doctor.Code, doctor.Output)
		}
	}
	if err := os.Chown(s.dbPath, unprivileged, unprivileged); err != nil {
		t.Fatal(err)
	}
	process.Start(t, as("worker"))
	c := dial(t, process.Start(t, as("api")))
	item := s.newItem(c, 1, 1)
	bought := c.buy(item, "u", "k", untilCommitted...)
	only(t, []purchase{bought}, "201")
	for _, suffix := range []string{"", "-wal", "-shm"} {
		info, err := os.Stat(s.dbPath + suffix)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v, want mode 0600", s.dbPath+suffix, info.Mode(), err)
		}
	}
}

// TestDatabase_ReadOnlyMountIsExplained starts the service on a read-only disk, and again once
// the disk is writable.
func TestDatabase_ReadOnlyMountIsExplained(t *testing.T) {
	needProcesses(t)
	needSQLite(t)
	disk := disktest.New(t, 32<<20)
	s := newShopOn(t, redistest.Real(t, "--appendfsync", "everysec"))
	s.dbPath = filepath.Join(disk.Path(), "shop.db")
	if r := s.run("migrate", "up"); r.Code != 0 {
		t.Fatalf("migrate up: exit code %d\n%s", r.Code, r.Output)
	}
	disk.Remount(true)
	for _, command := range []string{"api", "worker"} {
		refusesToStart(t, s.spec(command, nil), "setting db (FLASHSALE_DB)", s.dbPath, "read-only file system", "give the user of this process")
	}
	disk.Remount(false)
	s.worker()
	c := dial(t, s.api())
	item := s.newItem(c, 1, 1)
	only(t, []purchase{c.buy(item, "u", "k", untilCommitted...)}, "201")
}

// A process that starts on a full disk names the disk, not the setting, as what to correct.
func TestDatabase_FullDiskIsExplained(t *testing.T) {
	needProcesses(t)
	needSQLite(t)
	disk := disktest.New(t, 32<<20)
	s := newShopOn(t, redistest.Real(t, "--appendfsync", "everysec"))
	s.dbPath = filepath.Join(disk.Path(), "shop.db")
	wantCode(t, 0, s.run("migrate", "up"))
	disk.Fill()
	for _, command := range []string{"api", "worker"} {
		refusesToStart(t, s.spec(command, nil), "setting db (FLASHSALE_DB)", "no space left on device", "; free disk space")
	}
	wantCode(t, 1, squeezed(s.run("doctor")), "fix database", "no space left on device", "-> free disk space")
	disk.Free()
	s.worker()
	c := dial(t, s.api())
	item := s.newItem(c, 1, 1)
	only(t, []purchase{c.buy(item, "u", "k", untilCommitted...)}, "201")
}

// TestDatabase_RecoversFromReadOnly makes the database's files refuse writes while the service
// runs: purchases get 503 and readiness names the database. Both recover without a restart, and
// no order accepted in the meantime is lost.
func TestDatabase_RecoversFromReadOnly(t *testing.T) {
	needProcesses(t)
	needSQLite(t)
	engines(t, noLimit, func(t *testing.T, s *shop, c *client) {
		item := s.newItem(c, 1000, 1)
		all := []purchase{c.buy(item, "before", "k", untilCommitted...)}
		only(t, all, "201")
		allow := disktest.Deny(t, s.dbPath, s.dbPath+"-wal")
		eventually(t, "purchases are refused", soon, func() (bool, any) {
			p := c.buy(item, fmt.Sprintf("u%d", len(all)), "k", "Prefer", "respond-async")
			all = append(all, p)
			only(t, []purchase{p}, "202", "503 unavailable")
			return p.Status == 503 && waits(p.answer), p.Body
		})
		s.unready(c, "database")
		allow()
		eventually(t, "the service is ready", soon, func() (bool, any) {
			r := c.get("/readyz", "u")
			return r.Status == 200, r.Body
		})
		for i, p := range all {
			all[i] = c.settle(item, p)
		}
		only(t, all, "201", "202")
		if rows := s.audit(c, item, 1, all); len(rows) != len(all) {
			t.Errorf("%d rows, want %d", len(rows), len(all))
		}
	})
}

// unready waits until readiness fails because of the part.
func (s *shop) unready(c *client, part string) {
	s.t.Helper()
	eventually(s.t, "readiness names the "+part, soon, func() (bool, any) {
		r := c.get("/readyz", "u")
		return r.Status == 503 && strings.Contains(r.Body, `"failing":["`+part+`"]`), r.Body
	})
}
