package postgresserver

import (
	"database/sql"
	"errors"
	"io/fs"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// need skips the test, or fails it with CI=true, because of err.
func need(t *testing.T, err error) {
	t.Helper()
	switch {
	case err == nil:
	case os.Getenv("CI") == "true":
		t.Fatalf("no server can be started, and with CI=true none may be skipped: %v; `make deps-test` installs it", err)
	default:
		t.Skipf("skipped: %v; `make deps-test` installs it", err)
	}
}

func started(t *testing.T, cfg Config) *Server {
	t.Helper()
	need(t, Missing())
	s, err := Start(await.Context(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of the server's log:\n%s", s.LogEnd())
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// text reads one value.
func text(t *testing.T, at, query string) (value string, err error) {
	t.Helper()
	db, err := sql.Open("pgx", at)
	if err != nil {
		t.Fatal(err)
	}
	err = db.QueryRowContext(await.Context(t), query).Scan(&value)
	if cerr := db.Close(); cerr != nil {
		t.Error(cerr)
	}
	return value, err
}

// A setting of the caller overrides that of the package, and a later one an earlier one.
func TestStart_Settings(t *testing.T) {
	t.Parallel()
	s := started(t, Config{Sync: true, Settings: []string{"max_connections=18", "max_connections=17"}})
	for setting, want := range map[string]string{
		"max_connections": "17", "fsync": "on", "synchronous_commit": "on", "full_page_writes": "on",
		"listen_addresses": "127.0.0.1", "unix_socket_directories": "",
	} {
		if got, err := text(t, s.URL(Superuser), "SELECT current_setting('"+setting+"')"); err != nil || got != want {
			t.Errorf("%s is %q, %v; want %q", setting, got, err, want)
		}
	}
}

func TestStart_ErrSetting(t *testing.T) {
	t.Parallel()
	need(t, Missing())
	parent, err := newFolder("", "postgres-parent-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(parent); err != nil {
			t.Error(err)
		}
	})
	if _, err := Start(await.Context(t), Config{Folder: parent, Settings: []string{"no_such_setting=1"}}); !errors.Is(err, errEnded) || !strings.Contains(err.Error(), "no_such_setting") {
		t.Errorf("Start: %v, want that the server has ended, with its log", err)
	}
	if left, err := os.ReadDir(parent); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestServer_Lifecycle(t *testing.T) {
	t.Parallel()
	s := started(t, Config{})
	ctx := await.Context(t)
	err := s.Do(ctx, Superuser, func(db *sql.DB) error {
		_, err := db.ExecContext(ctx, "CREATE TABLE things AS SELECT 7 AS id")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	before := s.Pid()
	if pids, err := s.Pids(); err != nil || !slices.Contains(pids, before) {
		t.Errorf("processes %v, %v; want %d among them", pids, err, before)
	}
	for name, end := range map[string]func() error{"Kill": s.Kill, "StopImmediate": s.StopImmediate} {
		if err := errors.Join(end(), end()); err != nil {
			t.Fatalf("%s, twice: %v", name, err)
		}
		if pids, err := s.Pids(); err != nil || len(pids) > 0 || s.Pid() != 0 {
			t.Errorf("after %s: pid %d, processes %v, %v", name, s.Pid(), pids, err)
		}
		if err := s.Restart(ctx); err != nil {
			t.Fatal(err)
		}
		if got, err := text(t, s.URL(Superuser), "SELECT id FROM things"); err != nil || got != "7" {
			t.Errorf("after %s and Restart the row is %q, %v", name, got, err)
		}
	}
	if err := s.Restart(ctx); err != nil || s.Pid() == before {
		t.Errorf("Restart of a running server: %v, pid %d", err, s.Pid())
	}
	if log, err := s.Log(); err != nil || !strings.Contains(log, "ready to accept connections") {
		t.Errorf("log %q, %v", log, err)
	}
}

func TestServer_Close(t *testing.T) {
	t.Parallel()
	need(t, Missing())
	s, err := Start(await.Context(t), Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil || s.Pid() != 0 {
		t.Errorf("Close: %v, pid %d", err, s.Pid())
	}
	if _, err := os.Stat(s.folder.path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its folder: %v, want that there is none", err)
	}
	var none *Server
	if err := none.Close(); err != nil {
		t.Errorf("Close of no server: %v", err)
	}
}

func TestBouncer_KillRestart(t *testing.T) {
	t.Parallel()
	need(t, MissingBouncer())
	s := started(t, Config{})
	b, err := StartBouncer(await.Context(t), s, Transaction)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	at := b.URL(Superuser) + "&default_query_exec_mode=simple_protocol"
	for _, end := range []func() error{func() error { return nil }, b.Kill} {
		if err := end(); err != nil {
			t.Fatal(err)
		}
		if b.ended == nil {
			if _, err := text(t, at, "SELECT 'killed'"); err == nil {
				t.Error("it answers after Kill")
			}
			if err := b.Restart(await.Context(t)); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := text(t, at, "SELECT 'yes'"); err != nil || got != "yes" {
			t.Errorf("answer %q, %v", got, err)
		}
	}
}

// A program that is killed runs no clean-up.
func TestServer_EndsWithTheProgram(t *testing.T) {
	t.Parallel()
	if redistest.IsChild() {
		s, err := Start(await.Context(t), Config{})
		if err != nil {
			t.Fatal(err)
		}
		redistest.Say("%s %s", s.URL(Superuser), s.folder.path)
		<-await.Context(t).Done()
		return
	}
	need(t, Missing())
	c := redistest.Reexec(t, "TestServer_EndsWithTheProgram")
	line, ok := <-c.Lines()
	if !ok {
		t.Fatal(c.Wait())
	}
	at, path, _ := strings.Cut(line, " ")
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Kill(); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the end of the server", func() bool {
		conn, err := net.Dial("tcp", u.Host)
		if err != nil {
			return true
		}
		return conn.Close() != nil
	})
	await.True(t, "the removal of its folder", func() bool {
		_, err := os.Stat(path)
		return errors.Is(err, fs.ErrNotExist)
	})
}

// A standby follows its primary until it is promoted, and then accepts writes.
func TestServer_Promote(t *testing.T) {
	t.Parallel()
	primary := started(t, Config{})
	standby := started(t, Config{Primary: primary})
	ctx := await.Context(t)
	execute := func(s *Server, statement string) error {
		return s.Do(ctx, Superuser, func(db *sql.DB) error {
			_, err := db.ExecContext(ctx, statement)
			return err
		})
	}
	if err := execute(primary, "CREATE TABLE a AS SELECT 1 AS b"); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the standby has the table", func() bool {
		b, err := text(t, standby.URL(Superuser), "SELECT b::text FROM a")
		return err == nil && b == "1"
	})
	if err := execute(standby, "INSERT INTO a VALUES (2)"); err == nil {
		t.Error("the standby accepted a write")
	}
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := standby.Promote(ctx); err != nil {
		t.Fatal(err)
	}
	if err := execute(standby, "INSERT INTO a VALUES (2)"); err != nil {
		t.Errorf("the promoted standby: %v", err)
	}
}
