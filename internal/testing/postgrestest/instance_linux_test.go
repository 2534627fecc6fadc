package postgrestest

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"flashsale/internal/testing/await"
)

// gone reports whether the processes have ended.
func gone(pids []int) bool {
	for _, pid := range pids {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			return false
		}
	}
	return true
}

// Everything that was committed is there after every kind of end.
func TestInstance_KeepsData(t *testing.T) {
	t.Parallel()
	i := Start(t, Options{})
	mustExec(t, open(t, i.URL(superuser)), "CREATE TABLE things (id BIGINT)")
	for n, end := range []struct {
		name string
		end  func(testing.TB)
	}{
		{"restart", i.Restart},
		{"kill", i.Kill},
		{"immediate stop", i.StopImmediate},
	} {
		db := open(t, i.URL(superuser))
		mustExec(t, db, "INSERT INTO things VALUES ($1)", n)
		before := i.Pid()
		pids, err := i.Pids()
		if err != nil || len(pids) < 4 {
			t.Fatalf("processes %v of the server, %v", pids, err)
		}
		end.end(t)
		if end.name != "restart" {
			if err := db.PingContext(t.Context()); err == nil || i.Pid() != 0 {
				t.Errorf("after the %s the server answers, pid %d", end.name, i.Pid())
			}
			await.True(t, "the end of the server's processes", func() bool { return gone(pids) })
			i.Restart(t)
		}
		if i.Pid() == before {
			t.Errorf("after the %s the same process runs", end.name)
		}
		again := open(t, i.URL(superuser))
		if rows := number(t, again, "SELECT count(*) FROM things"); rows != n+1 {
			t.Errorf("after the %s there are %d rows, want %d", end.name, rows, n+1)
		}
	}
}

func TestStart_CleansUp(t *testing.T) {
	t.Parallel()
	var dir string
	var pids []int
	t.Run("inner", func(t *testing.T) {
		i := Start(t, Options{})
		var err error
		if pids, err = i.Pids(); err != nil {
			t.Fatal(err)
		}
		err = open(t, i.URL(superuser)).QueryRowContext(await.Context(t), "SELECT current_setting('data_directory')").Scan(&dir)
		if err != nil {
			t.Fatal(err)
		}
	})
	await.True(t, "the end of the server's processes", func() bool { return gone(pids) })
	if _, err := os.Stat(filepath.Dir(dir)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its folder: %v, want that there is none", err)
	}
}
