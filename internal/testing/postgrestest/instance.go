package postgrestest

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"testing"
	"time"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/postgresserver"
)

// superuser is the user of all connections, and a database.
const superuser = postgresserver.Superuser

// Instance is a Postgres server. Its methods are safe for concurrent use.
type Instance struct {
	*postgresserver.Server

	template template
}

// Restart starts the server again on its port, and returns once it answers. A running server is
// stopped first: it ends all sessions and writes everything to its files.
func (i *Instance) Restart(t testing.TB) {
	t.Helper()
	if err := i.Server.Restart(await.Context(t)); err != nil {
		t.Fatalf("postgrestest: restart: %v", err)
	}
}

// Kill kills the server's processes with SIGKILL. On Linux it reaches all of them at once;
// elsewhere only the first, and the others end when they notice. Restart starts the server
// again with everything that was committed.
func (i *Instance) Kill(t testing.TB) {
	t.Helper()
	if err := i.Server.Kill(); err != nil {
		t.Fatalf("postgrestest: kill: %v", err)
	}
}

// StopImmediate ends the server as `pg_ctl stop -m immediate` does: it ends all sessions without
// waiting for them, and recovers at the next start.
func (i *Instance) StopImmediate(t testing.TB) {
	t.Helper()
	if err := i.Server.StopImmediate(); err != nil {
		t.Fatalf("postgrestest: stop: %v", err)
	}
}

// Promote makes a standby a primary, and returns once it accepts writes.
func (i *Instance) Promote(t testing.TB) {
	t.Helper()
	if err := i.Server.Promote(await.Context(t)); err != nil {
		t.Fatalf("postgrestest: promote: %v", err)
	}
}

// TerminateBackends ends the sessions of clients that match where, a condition on the columns of
// pg_stat_activity such as "datname = 'x' AND state = 'active'", and returns their number.
func (i *Instance) TerminateBackends(t testing.TB, where string) int {
	t.Helper()
	n := 0
	ctx := await.Context(t)
	err := i.Do(ctx, superuser, func(db *sql.DB) error {
		return db.QueryRowContext(ctx, `SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity
			WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND (`+where+`)`).Scan(&n)
	})
	if err != nil {
		t.Fatalf("postgrestest: terminate backends: %v", err)
	}
	return n
}

// RequireStandby makes every commit on the server wait for a synchronous standby of one of these
// names, until names is empty.
func (i *Instance) RequireStandby(t testing.TB, names string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), await.Limit) // also for clean-up
	defer cancel()
	err := i.Do(ctx, superuser, func(db *sql.DB) error {
		for _, text := range []string{"ALTER SYSTEM SET synchronous_standby_names = '" + names + "'", "SELECT pg_reload_conf()"} {
			if _, err := db.ExecContext(ctx, text); err != nil {
				return err
			}
		}
		await.True(t, "the server has read its settings", func() bool {
			var now string
			return db.QueryRowContext(ctx, "SHOW synchronous_standby_names").Scan(&now) == nil && now == names
		})
		// The checkpointer makes commits wait, once it has read the setting. The server tells the
		// sessions first, and all of them before it reads the settings again.
		var read, again time.Time
		if err := db.QueryRowContext(ctx, "SELECT pg_conf_load_time() FROM pg_reload_conf()").Scan(&read); err != nil {
			return err
		}
		await.True(t, "the server has read its settings again", func() bool {
			return db.QueryRowContext(ctx, "SELECT pg_conf_load_time()").Scan(&again) == nil && again.After(read)
		})
		_, err := db.ExecContext(ctx, "CHECKPOINT")
		return err
	})
	if err != nil {
		t.Fatalf("postgrestest: require a standby: %v", err)
	}
}

// InSyncRep is a condition on pg_stat_activity: the session has committed, and waits for a
// synchronous standby.
const InSyncRep = "wait_event = 'SyncRep'"

// WaitingCommits returns the number of sessions that wait for a synchronous standby.
func (i *Instance) WaitingCommits(t testing.TB) (n int) {
	t.Helper()
	ctx := await.Context(t)
	err := i.Do(ctx, superuser, func(db *sql.DB) error {
		return db.QueryRowContext(ctx, "SELECT COUNT(*) FROM pg_stat_activity WHERE "+InSyncRep).Scan(&n)
	})
	if err != nil {
		t.Fatalf("postgrestest: count waiting commits: %v", err)
	}
	return n
}

// AwaitWaitingCommit waits until exactly one session has committed and waits for a synchronous standby.
func (i *Instance) AwaitWaitingCommit(t testing.TB) {
	t.Helper()
	await.True(t, "a commit waits for the standby", func() bool { return i.WaitingCommits(t) == 1 })
}

// Log returns what the server has logged so far.
func (i *Instance) Log(t testing.TB) string {
	t.Helper()
	text, err := i.Server.Log()
	if err != nil {
		t.Fatalf("postgrestest: %v", err)
	}
	return text
}

// Program returns the path of one of the programs of Postgres, such as pg_dump.
func Program(t testing.TB, name string) string {
	t.Helper()
	path, err := postgresserver.Program(name)
	if err != nil {
		t.Fatalf("postgrestest: %v", err)
	}
	return path
}

func (i *Instance) closeLogged() {
	if err := i.Close(); err != nil {
		fmt.Fprintln(os.Stderr, "postgrestest: stop:", err)
	}
}
