//go:build chaos && unix

package chaos

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"flashsale/internal/testing/disktest"
	"flashsale/internal/testing/postgresserver"
	"flashsale/internal/testing/postgrestest"
)

func init() {
	register(fault{
		ID: "F12a", Name: "table of orders locked", DB: "postgres", Lasts: lockHeld + 2*time.Second,
		Strike: lockOrders, Expect: expectDatabase,
	})
	register(fault{
		ID: "F12d", Name: "lock of the service's writes held", DB: "postgres", Lasts: lockHeld + 2*time.Second,
		Strike: holdWriteLock, Expect: expectDatabase,
	})
	var disk *disktest.Disk
	register(fault{
		ID: "F12b", Name: "database disk full", DB: "postgres", Lasts: 8 * time.Second,
		Postgres: func(t *testing.T) (*postgrestest.Instance, string) {
			t.Helper()
			disk = disktest.New(t, serverDisk)
			return onDisk(t, disk)
		},
		Strike: func(ctx context.Context, r *run) { fillServerDisk(ctx, r, disk) },
		Expect: func(ctx context.Context, r *run) {
			r.complained("No space left on device")
			expectDatabase(ctx, r)
		},
	})
	register(fault{
		ID: "F12c", Name: "database read-only", DB: "postgres", Lasts: 6 * time.Second, Postgres: durable(),
		Strike: denyPostgres,
		Expect: func(ctx context.Context, r *run) {
			r.logged("read-only transaction")
			expectDatabase(ctx, r)
		},
	})
	register(fault{
		ID: "F12e", Name: "Postgres ended at once and restarted", DB: "postgres", Small: true, Lasts: 12 * time.Second, Postgres: durable(),
		// A server on a busy machine needs seconds to recover.
		RecoversIn: 10 * time.Second,
		Strike:     crashPostgres, Expect: expectDatabase,
	})
	register(fault{
		ID: "F12f", Name: "Postgres sessions terminated", DB: "postgres", Lasts: 8 * time.Second, Postgres: durable(),
		Strike: terminateSessions, Expect: expectDatabase,
	})
	register(fault{
		ID: "F12g", Name: "Postgres sessions terminated in COMMIT", DB: "postgres", Small: true, Lasts: 8 * time.Second, Postgres: durable(),
		Strike: terminateCommits, Expect: expectDatabase,
	})
	register(fault{
		ID: "F12h", Name: "no connection to Postgres left", DB: "postgres", Lasts: 6 * time.Second, Postgres: durable("max_connections=60"),
		Strike: takeConnections,
		Expect: func(ctx context.Context, r *run) {
			r.logged("53300")
			expectDatabase(ctx, r)
		},
	})
	var bouncer *postgrestest.PgBouncer
	register(fault{
		ID: "F12i", Name: "PgBouncer killed", DB: "postgres", Lasts: 8 * time.Second,
		Front: func(t *testing.T, s *store) string {
			t.Helper()
			bouncer = postgrestest.StartBouncer(t, s.server, postgresserver.Transaction)
			return bouncer.URL(s.database(t)) + "&default_query_exec_mode=simple_protocol"
		},
		Strike: func(ctx context.Context, r *run) { killBouncer(ctx, r, bouncer) },
		Expect: expectDatabase,
	})
}

const (
	// serverDisk is the size of the disk of a whole Postgres server, in bytes: its files, its
	// log, and twice the largest sale.
	serverDisk = 384 << 20
	// writeLock is the key of the advisory lock that every writing transaction of the service
	// takes.
	writeLock = 0x666c617368
	// crashes is how often Postgres is ended, and terminations how often its sessions are.
	crashes      = 10
	terminations = 40
	// hanging is how many sessions are terminated while they wait in COMMIT.
	hanging = 10
)

// lockOrders holds the exclusive lock of the table of orders with the suite's own connection.
func lockOrders(ctx context.Context, r *run) {
	lockPostgres(ctx, r, "table of orders locked", "LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
}

// holdWriteLock holds the lock that every writing transaction of the service takes.
func holdWriteLock(ctx context.Context, r *run) {
	lockPostgres(ctx, r, "lock of all writes held", fmt.Sprintf("SELECT pg_advisory_xact_lock(%d)", writeLock))
}

func lockPostgres(ctx context.Context, r *run, how, statement string) {
	r.t.Helper()
	conn := r.shop.store.stranger(ctx, r.t)
	r.chooseOrder(ctx) // before it is locked
	r.exec(ctx, conn, "BEGIN")
	r.exec(ctx, conn, statement)
	s := r.obstructed(ctx, how, lockHeld, nil)
	r.exec(ctx, conn, "ROLLBACK")
	r.writable(ctx, s)
}

// onDisk starts a server whose files are all on a disk.
func onDisk(t *testing.T, disk *disktest.Disk) (server *postgrestest.Instance, url string) {
	t.Helper()
	// The server runs as another user.
	for _, path := range []string{filepath.Dir(disk.Path()), disk.Path()} {
		if err := os.Chmod(path, 0o711); err != nil { //nolint:gosec // see above
			t.Fatal(err)
		}
	}
	server = postgrestest.Start(t, postgrestest.Options{Sync: true, Folder: disk.Path(), Settings: []string{"max_wal_size=64MB", "min_wal_size=32MB"}})
	url = server.NewDatabase(t)
	return server, url
}

// fillServerDisk fills the disk of Postgres and then frees it. A server that cannot write its log
// ends, and a supervisor starts it again.
func fillServerDisk(ctx context.Context, r *run, disk *disktest.Disk) {
	server := r.shop.store.server
	r.chooseOrder(ctx) // while the server still runs
	disk.Fill()
	s := r.obstructed(ctx, "database disk full", brokenFor, nil)
	disk.Free()
	if conn, err := r.shop.store.db.Conn(ctx); err != nil {
		r.notef("Postgres had ended")
		server.Restart(r.t)
	} else if err := conn.Close(); err != nil {
		r.t.Error(err)
	}
	r.writable(ctx, s)
}

// complained makes the run void unless the server has logged these words.
func (r *run) complained(words string) {
	st := r.shop.store
	if !strings.Contains(st.server.Log(r.t)[st.logged:], words) {
		r.voidf("Postgres has not logged %q", words)
	}
}

// denyPostgres makes all transactions of new and open sessions read-only, as those of a standby
// are.
func denyPostgres(ctx context.Context, r *run) {
	conn := r.shop.store.maintenance(ctx, r.t)
	r.set(ctx, conn, "SET default_transaction_read_only = on")
	s := r.broken(ctx, "database read-only", brokenFor)
	r.set(ctx, conn, "RESET default_transaction_read_only")
	r.writable(ctx, s)
}

// crashPostgres ends the server ten times, by an immediate shutdown and by killing all its
// processes in turn.
func crashPostgres(ctx context.Context, r *run) {
	server := r.shop.store.server
	s := r.measure("Postgres ended and restarted")
	for n := range crashes {
		r.answers(ctx, r.plan.Moments[n])
		if (r.plan.Numbers[0]+n)%2 == 0 {
			server.StopImmediate(r.t)
			r.struck("Postgres ended by an immediate shutdown")
		} else {
			server.Kill(r.t)
			r.struck("Postgres killed")
		}
		r.answers(ctx, r.plan.Moments[n]/4)
		server.Restart(r.t)
		r.over()
		r.recovered(ctx)
	}
	r.writable(ctx, s)
}

// terminateSessions ends sessions of the service: all of them at random moments, and in between
// those that execute a COMMIT.
func terminateSessions(ctx context.Context, r *run) {
	st := r.shop.store
	conn := st.maintenance(ctx, r.t)
	s := r.measure("sessions terminated")
	in, all := 0, 0
	for n := range terminations {
		if n%4 == 0 {
			r.answers(ctx, r.plan.Moments[n]/4)
			all += r.terminate(ctx, conn, fmt.Sprintf("datname = '%s'", st.database(r.t)))
			r.struck("all sessions terminated")
			continue
		}
		r.eventually(ctx, "a session is terminated during a COMMIT", func() bool {
			ended := r.terminate(ctx, conn, st.committing(r.t))
			in += ended
			return ended > 0
		})
		r.struck("session terminated during a COMMIT")
	}
	r.notef("%d sessions terminated, and %d during a COMMIT", all, in)
	r.writable(ctx, s)
}

// terminate ends the sessions of clients that match a condition on pg_stat_activity, and returns
// their number.
func (r *run) terminate(ctx context.Context, conn *sql.Conn, where string) int {
	r.t.Helper()
	return r.number(ctx, conn, `SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity
		WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND `+where)
}

// Conditions on pg_stat_activity: the session has committed, but waits for a standby before it
// answers; and its transaction contains a batch of orders, because it shares the lock of all
// writes, whose key Postgres shows in two halves.
var (
	inCommit = "wait_event = 'SyncRep'"
	inOrders = inCommit + fmt.Sprintf(` AND pid IN (SELECT pid FROM pg_locks
		WHERE locktype = 'advisory' AND mode = 'ShareLock' AND classid = %d AND objid = %d)`, int64(writeLock)>>32, writeLock&(1<<32-1))
)

// slowCommits makes every COMMIT wait, after it is durable, for a standby that does not exist,
// until the returned function is called.
func (r *run) slowCommits(ctx context.Context, conn *sql.Conn) (end func()) {
	r.t.Helper()
	r.set(ctx, conn, "SET synchronous_standby_names = 'nowhere'")
	return func() { r.set(ctx, conn, "RESET synchronous_standby_names") }
}

// hangCommit makes commits wait for a standby until a session hangs in the COMMIT of a batch of orders.
// A worker that knows of a commit without an answer begins no other, so it may take several attempts.
func (r *run) hangCommit(ctx context.Context, conn *sql.Conn) (end func()) {
	r.t.Helper()
	for range 12 {
		end := r.slowCommits(ctx, conn)
		err := r.await(ctx, 5*time.Second, func() bool {
			return r.number(ctx, conn, "SELECT count(*) FROM pg_stat_activity WHERE "+inOrders) > 0
		})
		if err == nil {
			return end
		}
		rows := r.rows(ctx)
		end()
		r.eventually(ctx, "orders are committed again", func() bool { return r.rows(ctx) > rows })
	}
	r.t.Fatal("no COMMIT of orders waits for the standby")
	return nil
}

// terminateCommits ends sessions whose transaction is committed, before they answer. The service
// must find out that it is.
func terminateCommits(ctx context.Context, r *run) {
	conn := r.shop.store.maintenance(ctx, r.t)
	s := r.measure("sessions terminated in COMMIT")
	release := r.slowCommits(ctx, conn)
	_, before := r.shop.counts(ctx)
	batches, others := 0, 0
	for batches < hanging {
		err := r.await(ctx, brokenFor, func() bool {
			n := r.terminate(ctx, conn, inOrders)
			batches += n
			// Other changes keep the orders from their turn.
			others += r.terminate(ctx, conn, inCommit)
			return n > 0
		})
		if err != nil {
			break // the purchases of the strike are used up
		}
		r.struck("session terminated in the COMMIT of orders")
	}
	release()
	r.writable(ctx, s)
	_, after := r.shop.counts(ctx)
	r.notef("%d sessions with orders terminated, and %d others; %d orders delivered again", batches, others, after-before)
	if n := after - before; n > 0 {
		r.failf("%d orders were delivered again although their transactions were committed", n)
	}
}

// takeConnections takes every connection of the server, ends those of the service, and takes
// these too.
func takeConnections(ctx context.Context, r *run) {
	st := r.shop.store
	conn := st.maintenance(ctx, r.t)
	takers, err := sql.Open("pgx", st.server.URL("postgres"))
	if err != nil {
		r.t.Fatal(err)
	}
	taken := 0
	take := func() {
		for {
			if _, err := takers.Conn(ctx); err != nil {
				return // the server refuses
			}
			taken++
		}
	}
	take()
	s := r.measure("no connection left")
	r.struck("no connection left")
	for until := time.Now().Add(brokenFor); time.Now().Before(until) && ctx.Err() == nil; {
		r.terminate(ctx, conn, fmt.Sprintf("datname = '%s'", st.database(r.t)))
		take()
		r.lasts(ctx, lookEvery)
	}
	r.notef("%d connections taken", taken)
	if err := takers.Close(); err != nil {
		r.t.Errorf("close: %v", err)
	}
	r.eventually(ctx, "the server accepts connections", func() bool { return st.db.PingContext(ctx) == nil })
	r.writable(ctx, s)
}

// killBouncer kills PgBouncer and restarts it, several times.
func killBouncer(ctx context.Context, r *run, bouncer *postgrestest.PgBouncer) {
	s := r.measure("PgBouncer killed")
	for n := range crashes {
		r.answers(ctx, r.plan.Moments[n])
		bouncer.Kill(r.t)
		r.struck("PgBouncer killed")
		r.answers(ctx, r.plan.Moments[n]/4)
		bouncer.Restart(r.t)
		r.over()
		r.recovered(ctx)
	}
	r.writable(ctx, s)
}
