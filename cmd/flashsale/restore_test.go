//go:build unix

package main_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"flashsale/internal/testing/process"
)

// While a process has the database open, even an idle or frozen one, restore refuses, and the
// process continues.
func TestRestore_RefusedWhileRunning(t *testing.T) {
	needProcesses(t)
	needSQLite(t)
	s := newRedisShop(t)
	s.letGo()
	worker, api := s.worker(), s.api(noLimit...)
	c := dial(t, api)
	item := s.newItem(c, 100, 1)
	only(t, []purchase{c.buy(item, "before", "k", untilCommitted...)}, "201")
	file := filepath.Join(t.TempDir(), "copy.db")
	wantCode(t, 0, s.run("backup", file))
	refused := func(when string) {
		t.Helper()
		r := s.run("restore", file)
		if r.Code != 1 || !strings.Contains(r.Output, "another process has the database open") || !strings.Contains(r.Output, "setting db (FLASHSALE_DB)") {
			t.Errorf("%s: exit code %d\n%s", when, r.Code, r.Output)
		}
	}
	refused("api and worker run")
	only(t, []purchase{c.buy(item, "after", "k", untilCommitted...)}, "201")
	worker.Stop()
	refused("the api runs")
	worker = s.worker()
	api.Stop()
	refused("the worker runs")
	worker.Pause()
	refused("the worker is frozen")
	worker.Continue()
	worker.Stop()
	if rows := s.rows(item); len(rows) != 2 {
		t.Errorf("%d orders, want 2", len(rows))
	}
	wantCode(t, 0, s.run("restore", file), s.dbPath, ".before-restore-", "start the service", "recover --from redis|database")
	if rows := s.rows(item); len(rows) != 1 {
		t.Errorf("%d orders after the restore, want 1", len(rows))
	}
}

// The same for the embedded engine, whose lock also prevents serve from starting during a
// restore.
func TestRestore_ExcludesServe(t *testing.T) {
	needProcesses(t)
	needSQLite(t)
	s := newShop(t)
	s.letGo()
	p := s.serve()
	file := filepath.Join(t.TempDir(), "copy.db")
	wantCode(t, 0, s.run("backup", file))
	wantCode(t, 1, s.run("restore", file), "another process has the database open", s.dbPath)
	p.Stop()
	wantCode(t, 0, s.run("restore", file))
	wantCode(t, 1, s.run("restore", filepath.Join(s.dir, "none.db")), "argument FILE", "none.db")
}

// TestRestore_ServiceSellsTheRest restores a backup, and the service sells the rest of the
// stock according to the backup. If there is a Redis, its data is lost as well.
func TestRestore_ServiceSellsTheRest(t *testing.T) {
	needProcesses(t)
	needSQLite(t)
	test := func(t *testing.T, s *shop, start func() []*process.P) {
		s.letGo()
		running := start()
		c := dial(t, running[0])
		const stock = 12
		item := s.newItem(c, stock, 1)
		buy := func(c *client, from, to int, verdict string) (got []purchase) {
			for i := from; i < to; i++ {
				got = append(got, c.settle(item, c.buy(item, fmt.Sprintf("u%d", i), "k", untilCommitted...)))
			}
			only(t, got, verdict)
			return got
		}
		kept := buy(c, 0, 5, "201")
		file := filepath.Join(t.TempDir(), "copy.db")
		wantCode(t, 0, s.run("backup", file))
		buy(c, 5, 9, "201")
		for _, p := range running {
			p.Stop()
		}
		wantCode(t, 0, s.run("restore", file))
		if s.rdb != nil {
			if err := s.rdb.FlushAll(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
		}
		c = dial(t, start()[0])
		kept = append(kept, buy(c, 0, 5, "201")...) // repeats
		kept = append(kept, buy(c, 20, 20+stock-5, "201")...)
		buy(c, 40, 41, "409 sold_out")
		if rows := s.audit(c, item, 1, kept); len(rows) != stock {
			t.Errorf("%d rows, want %d", len(rows), stock)
		}
	}
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		s := newShop(t)
		test(t, s, func() []*process.P { return []*process.P{s.serve(noLimit...)} })
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		s := newRedisShop(t)
		test(t, s, func() []*process.P { return []*process.P{s.api(noLimit...), s.worker()} })
	})
}

// After restoring an older schema, the command names the migration as the next step.
func TestRestore_OlderSchemaNamesTheMigration(t *testing.T) {
	needProcesses(t)
	needSQLite(t)
	s := newShop(t)
	s.letGo()
	wantCode(t, 0, s.run("migrate", "up"))
	file := filepath.Join(t.TempDir(), "copy.db")
	wantCode(t, 0, s.run("migrate", "down", "--yes"))
	wantCode(t, 0, s.run("backup", file))
	wantCode(t, 0, s.run("migrate", "up"))
	wantCode(t, 0, s.run("restore", file), "next 1", "flashsale migrate up: the schema is ")
	wantCode(t, 1, s.run("migrate", "status"), "pending")
	wantCode(t, 0, s.run("migrate", "up"), "applied 1")
}

// TestRestore_KilledLeavesOneDatabase kills a restore at each step: the old or the new database
// exists completely, and the restore can be repeated.
func TestRestore_KilledLeavesOneDatabase(t *testing.T) {
	needProcesses(t)
	needSQLite(t)
	for place, renamed := range map[string]bool{"restore.copying": false, "restore.detached": false, "restore.linked": false, "restore.renamed": true} {
		t.Run(place, func(t *testing.T) {
			t.Parallel()
			s := newShop(t)
			s.letGo()
			wantCode(t, 0, s.run("migrate", "up"))
			fill(t, s.dbPath, "full", 5000)
			file := filepath.Join(t.TempDir(), "copy.db")
			wantCode(t, 0, s.run("backup", file))
			fill(t, s.dbPath, "more", 1)
			if r := process.Run(t, s.faultySpec(place, "restore", []string{file})); r.Code != -1 {
				t.Fatalf("the fault never struck: exit code %d\n%s", r.Code, r.Output)
			}
			want := 5001
			if renamed {
				want = 5000
			}
			if n := len(consistent(t, s.dbPath)); n != want {
				t.Errorf("%d orders, want %d", n, want)
			}
			p := s.serve()
			if a := dial(t, p).get("/readyz", "u"); a.Status != 200 {
				t.Errorf("/readyz: %s", a.verdict())
			}
			p.Stop()
			wantCode(t, 0, s.run("restore", file))
			if n := len(consistent(t, s.dbPath)); n != 5000 {
				t.Errorf("after a second restore: %d orders, want 5000", n)
			}
			kept, err := filepath.Glob(s.dbPath + ".before-restore-*")
			if wanted := map[bool]int{false: 1, true: 2}[renamed]; err != nil || len(kept) != wanted {
				t.Errorf("kept databases %v, error %v, want %d", kept, err, wanted)
			}
			for _, k := range kept {
				consistent(t, k)
			}
			if left, err := filepath.Glob(s.dbPath + ".restore-tmp-*"); err != nil || len(left) != 0 {
				t.Errorf("left over: %v, error %v", left, err)
			}
		})
	}
}

// A restore that fails leaves nothing behind: neither a lock file nor the data directory.
func TestRestore_FailedLeavesNothing(t *testing.T) {
	needProcesses(t)
	needSQLite(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "notes.txt"), []byte("no database\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, place := range [][]string{{"--db", "sqlite:shop.db"}, {"--data-dir", "data"}} {
		r := process.Run(t, process.Spec{Dir: dir, Args: append([]string{"restore", "notes.txt"}, place...)})
		wantCode(t, 1, r, "argument FILE", "notes.txt", "use another backup")
		left, err := os.ReadDir(dir)
		if err != nil || len(left) != 1 {
			t.Errorf("%v: left %v, error %v", place, left, err)
		}
	}
}

// A database restored by root belongs to the service's user, who can start the service.
func TestRestore_KeepsTheOwner(t *testing.T) {
	needProcesses(t)
	needSQLite(t)
	otherUser(t)
	s := newShop(t)
	s.letGo()
	wantCode(t, 0, s.run("migrate", "up"))
	file := filepath.Join(t.TempDir(), "copy.db")
	wantCode(t, 0, s.run("backup", file))
	if err := errors.Join(os.Chmod(filepath.Dir(s.dir), 0o755), os.Chown(s.dir, unprivileged, unprivileged), os.Chown(s.dbPath, unprivileged, unprivileged)); err != nil { //nolint:gosec // it holds nothing
		t.Fatal(err)
	}
	wantCode(t, 0, s.run("restore", file))
	missing := filepath.Join(s.dir, "other.db")
	wantCode(t, 0, process.Run(t, process.Spec{Args: []string{"restore", file, "--db", "sqlite:" + missing}}))
	for _, path := range []string{s.dbPath, missing, s.dbPath + ".serve.lock"} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if owner, ok := info.Sys().(*syscall.Stat_t); !ok || owner.Uid != unprivileged || owner.Gid != unprivileged || info.Mode() != 0o600 {
			t.Errorf("%s: %v, owner %+v", path, info.Mode(), owner)
		}
	}
	spec := s.spec("serve", []string{"--demo=false"})
	spec.UID = unprivileged
	process.Start(t, spec)
}
