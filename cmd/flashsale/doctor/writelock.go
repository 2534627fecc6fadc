package doctor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mattn/go-sqlite3"

	"flashsale/internal/pause"
	"flashsale/order/store"
	"flashsale/order/store/postgres"
)

// lockPatience is how long the doctor waits for the lock that writes to the database take. The
// service's own writes wait as long before they fail.
const lockPatience = 5 * time.Second

// writeLocked reports whether the write lock of a SQLite file was taken for lockPatience. It takes
// the lock for a moment, and writes nothing.
func (d *doctor) writeLocked(ctx context.Context, db *store.Store) (bool, error) {
	pool, err := db.Writer().DB()
	if err != nil {
		return false, err
	}
	limited, cancel := context.WithTimeout(ctx, d.patience)
	defer cancel()
	tx, err := pool.BeginTx(limited, nil)
	var se sqlite3.Error
	switch {
	case err == nil:
		err = tx.Rollback()
		if limited.Err() != nil {
			return false, nil // it was rolled back when the time was over
		}
		return false, err
	case ctx.Err() != nil:
		return false, ctx.Err()
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &se) && se.Code == sqlite3.ErrBusy:
		return true, nil
	}
	return false, err
}

// lockHeld reports that another process holds the write lock of a SQLite file; holder is "" if it is
// unknown.
func (d *doctor) lockHeld(path, holder string) {
	remedy := "end its transaction, or the process"
	if holder == "" {
		holder = "another process"
		remedy = "end its transaction, for example that of a sqlite3 shell or of a backup program, or the process"
	}
	d.fix("database", fmt.Sprintf("its write lock was not free for %v, so no order can be committed: %s holds it", d.patience, holder),
		remedy+"; fuser -v "+path+" lists the processes that have the file open")
}

// session is a connection to a Postgres server.
type session struct {
	Pid                            int64
	Application, Role, Host, State string
	Waited                         float64 // how long another one has been waiting for it, in milliseconds
}

// String describes the session. The server hides all but the number from roles without permission.
func (s *session) String() string {
	text := fmt.Sprintf("session %d", s.Pid)
	more := ""
	for _, part := range [][2]string{{"", s.Application}, {"role ", s.Role}, {"from ", s.Host}, {"", s.State}} {
		if part[1] != "" {
			more += ", " + part[0] + part[1]
		}
	}
	if more != "" {
		text += " (" + more[2:] + ")"
	}
	return text
}

const (
	// tryWriteLock takes the lock of write transactions, as batches do, until the statement ends. It does not wait, so
	// nothing waits behind it.
	tryWriteLock = `SELECT pg_try_advisory_xact_lock_shared(?)`

	describeSession = `l.pid, COALESCE(a.application_name, '') AS application, COALESCE(a.usename, '') AS role,
	COALESCE(host(a.client_addr), '') AS host, COALESCE(a.state, '') AS state`

	// writeLockHolder is the session that holds this lock exclusively.
	writeLockHolder = `SELECT ` + describeSession + ` FROM pg_locks AS l LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.granted AND l.mode = 'ExclusiveLock' AND l.objsubid = 1
	AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
	AND (l.classid::bigint << 32) + l.objid::bigint = ? LIMIT 1`

	// blockingSession is the session that does not wait itself, and for which others in this database have
	// waited the longest, with this time in milliseconds.
	blockingSession = `SELECT ` + describeSession + `, EXTRACT(EPOCH FROM clock_timestamp() - w.waitstart) * 1000 AS waited
FROM pg_locks AS w JOIN pg_stat_activity AS v ON v.pid = w.pid AND v.datname = current_database()
JOIN LATERAL unnest(pg_blocking_pids(w.pid)) AS l (pid) ON TRUE LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
WHERE NOT w.granted AND w.waitstart IS NOT NULL
	AND NOT EXISTS (SELECT 1 FROM pg_locks AS x WHERE x.pid = l.pid AND NOT x.granted)
ORDER BY w.waitstart LIMIT 1`

	// lockEvery is the time between two attempts or observations.
	lockEvery = 50 * time.Millisecond
)

// postgresLocks reports a session that keeps writes waiting. It takes no lock for longer than a
// statement, and waits for none.
func (d *doctor) postgresLocks(ctx context.Context, db *store.Store) error {
	read := db.Reader().WithContext(ctx)
	for until := time.Now().Add(d.patience); ; {
		var free bool
		if err := read.Raw(tryWriteLock, postgres.WriteLock).Scan(&free).Error; err != nil {
			return err
		}
		if free {
			break
		}
		if !time.Now().Before(until) {
			return d.postgresHolder(ctx, db)
		}
		pause.For(ctx, lockEvery)
	}
	// A row, or the same lock shared. In a busy sale there are short waits.
	const long = 5 // this part of the patience
	for until := time.Now().Add(d.patience); time.Now().Before(until); pause.For(ctx, lockEvery) {
		var b session
		found := read.Raw(blockingSession).Scan(&b)
		if found.Error != nil || found.RowsAffected == 0 {
			return found.Error
		}
		if waited := time.Duration(b.Waited * float64(time.Millisecond)); waited >= d.patience/long {
			d.warn("database", fmt.Sprintf("a write has been waiting for %v for %s", waited.Round(time.Millisecond), &b), endSession(b.Pid))
			return nil
		}
	}
	return nil
}

// postgresHolder reports the session that holds the write lock.
func (d *doctor) postgresHolder(ctx context.Context, db *store.Store) error {
	var s session
	found := db.Reader().WithContext(ctx).Raw(writeLockHolder, postgres.WriteLock).Scan(&s)
	if found.Error != nil {
		return found.Error
	}
	holder, remedy := "another session", "read pg_locks and pg_stat_activity, and end the session that holds an advisory lock"
	if found.RowsAffected > 0 {
		holder, remedy = s.String(), endSession(s.Pid)
	}
	d.fix("database", fmt.Sprintf("the lock of its writes (an advisory lock) was not free for %v, so no order can be committed: %s holds it", d.patience, holder), remedy)
	return nil
}

// endSession is the fix for a session that keeps a lock.
func endSession(pid int64) string {
	return fmt.Sprintf("end its transaction, or the session: SELECT pg_terminate_backend(%d)", pid)
}
