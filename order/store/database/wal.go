package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"gorm.io/gorm"

	"flashsale/internal/pause"
	"flashsale/order/store/sqlite"
	"flashsale/order/timeouts"
)

// SQLite appends commits to a write-ahead log and copies it into the database's file at a
// checkpoint. By default it does that within a commit, which then takes 50 ms longer. Here
// a separate connection does most of it concurrently with the commits, and only the pages
// committed meanwhile are copied between two commits.
//
// After a checkpoint SQLite reuses the log from its start, but only at a moment when no
// reader uses it. Reads that overlap without a gap leave no such moment, and the log grows.
const (
	// walBytes is the length in bytes at which a checkpoint begins. Orders of a sale change
	// the same pages repeatedly: the longer the log, the more orders share one copy of such
	// a page.
	walBytes = 28 << 20
	// walRest is how many bytes may be left to copy between two commits.
	walRest = 1200 << 10
	// walPasses bounds the consecutive concurrent checkpoints. Each copies the pages
	// committed during the one before it.
	walPasses = 5
	// walHigh is the length in bytes from which a commit waits up to a tenth of a second
	// for running reads, so that the log can restart; reads that begin later do not prevent
	// that.
	walHigh = 48 << 20
	// walStep is how much the log grows before the next attempt.
	walStep = 2 << 20
	// walPatience is the pause after a failed attempt, as a multiple of its duration.
	// Otherwise a long read, such as the load of a large sale or a backup, would delay
	// every few hundred orders.
	walPatience = 20
	// walRestTries bounds the attempts to copy the rest: a read that began before the last
	// commit keeps SQLite from copying all of it.
	walRestTries = 20
	// walWait is how long, in milliseconds, emptying the log waits for reads.
	walWait = 100
)

// walGuard keeps the log short.
type walGuard struct {
	startPages int64    // walBytes in pages of the database, except in tests
	restPages  int64    // walRest in pages
	copyDB     *gorm.DB // the connection of concurrent checkpoints
	// mu is held during a checkpoint that must not run concurrently with another one:
	// SQLite refuses the second without waiting.
	mu        sync.Mutex
	copying   atomic.Bool  // a concurrent checkpoint is running
	restTries atomic.Int32 // how many attempts the writer has left to copy the rest
	running   sync.WaitGroup

	high, step int64        // walHigh and walStep, except in tests
	triedSize  atomic.Int64 // length at the last attempt; 0: the log has been short since
	patience   int          // walPatience, except in tests
	notBefore  time.Time    // no attempt before; belongs to the writer's goroutine
	hasErased  atomic.Bool  // the log contains erased data, and could not be emptied yet
}

// measure converts the limits of the log to pages of the database.
func (g *walGuard) measure(ctx context.Context, db *gorm.DB) error {
	var size int64
	if err := db.WithContext(ctx).Raw("PRAGMA page_size").Scan(&size).Error; err != nil {
		return fmt.Errorf("read the page size: %w", err)
	}
	g.startPages, g.restPages = walBytes/size, walRest/size
	return nil
}

// boundWAL is called after each commit. It does not report errors: the log is unchanged
// then, and the next commit uses the same disk.
func boundWAL(ctx context.Context, db *DB) {
	if db.Postgres() {
		return // its server keeps its log
	}
	if db.wal.due(db.file) && db.wal.mu.TryLock() {
		began := time.Now()
		emptied, err := truncateWAL(ctx, db)
		db.wal.mu.Unlock()
		if err != nil || !emptied {
			now := time.Now()
			db.wal.notBefore = now.Add(time.Duration(db.wal.patience) * now.Sub(began))
		}
	}
	checkpoint(ctx, db)
}

// due reports whether the log should be emptied, as far as readers allow.
func (g *walGuard) due(file string) bool {
	info, err := os.Stat(file + "-wal")
	if err != nil {
		return false
	}
	size, tried := info.Size(), g.triedSize.Load()
	if size < g.high {
		g.triedSize.Store(0)
	}
	switch {
	case time.Now().Before(g.notBefore):
		return false
	case size >= g.high && (size < tried || size >= tried+g.step):
		g.triedSize.Store(size)
		return true
	default:
		return g.hasErased.Load()
	}
}

// EmptyWAL empties the log, because it contains pages from before an erasure. A long read
// prevents that; then later commits retry it.
//
// It does nothing on Postgres, whose log has its own retention.
func (db *DB) EmptyWAL(ctx context.Context) error {
	if db.Postgres() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeouts.Write)
	defer cancel()
	for {
		began := time.Now()
		db.wal.mu.Lock()
		emptied, err := truncateWAL(ctx, db)
		db.wal.mu.Unlock()
		if err != nil || emptied {
			return err
		}
		// A checkpoint of another process makes this one fail at once; it is over soon.
		if time.Since(began) >= walWait*time.Millisecond || !pause.For(ctx, walWait*time.Millisecond) {
			db.wal.hasErased.Store(true)
			return nil
		}
	}
}

// truncateWAL copies the log into the database's file and empties it, and reports whether it
// succeeded. It waits only briefly for readers, because all writers wait for it. The caller
// holds the guard's mutex.
func truncateWAL(ctx context.Context, db *DB) (emptied bool, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeouts.Write)
	defer cancel()
	pool, err := db.write.DB()
	if err != nil {
		return false, err
	}
	c, err := pool.Conn(ctx)
	if err != nil {
		return false, Wrap("empty the database's log", err)
	}
	defer func() {
		// In every case: all writers share this connection.
		_, rerr := c.ExecContext(context.WithoutCancel(ctx), fmt.Sprintf("PRAGMA busy_timeout = %d", sqlite.LockWait))
		err = errors.Join(err, rerr, c.Close())
	}()
	if _, err := c.ExecContext(ctx, fmt.Sprintf("PRAGMA busy_timeout = %d", walWait)); err != nil {
		return false, Wrap("empty the database's log", err)
	}
	var busy, pages, copied sql.NullInt64
	if err := c.QueryRowContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)").Scan(&busy, &pages, &copied); err != nil {
		return false, Wrap("empty the database's log", err)
	}
	if busy.Int64 != 0 {
		return false, nil
	}
	db.wal.hasErased.Store(false)
	return true, nil
}

// checkpoint starts a concurrent checkpoint when the log is long, and copies the rest once
// that has ended. It runs between two commits.
func checkpoint(ctx context.Context, db *DB) {
	g := &db.wal
	switch {
	case g.copying.Load():
	case g.restTries.Load() > 0:
		if left, err := checkpointed(ctx, db.write, "PASSIVE"); err == nil && left > 0 {
			g.restTries.Add(-1)
		} else {
			g.restTries.Store(0)
		}
	default:
		if left, err := checkpointed(ctx, db.write, "NOOP"); err != nil || left < g.startPages {
			return
		}
		g.copying.Store(true)
		g.running.Go(func() {
			defer g.copying.Store(false)
			if copyWAL(ctx, db) {
				g.restTries.Store(walRestTries)
			}
		})
	}
}

// copyWAL copies the log until only a short rest is left, and reports whether it has copied
// anything.
func copyWAL(ctx context.Context, db *DB) bool {
	for range walPasses {
		db.wal.mu.Lock()
		began := time.Now()
		_, err := checkpointed(ctx, db.wal.copyDB, "PASSIVE")
		db.cfg.Checkpointed(time.Since(began), err)
		db.wal.mu.Unlock()
		if err != nil {
			return false
		}
		if left, err := checkpointed(ctx, db.wal.copyDB, "NOOP"); err != nil || left <= db.wal.restPages {
			return err == nil
		}
	}
	return true
}

// checkpointed makes a checkpoint and returns how many pages of the log are not copied. It
// is not an error if another connection is making a checkpoint.
func checkpointed(ctx context.Context, db *gorm.DB, mode string) (left int64, err error) {
	pool, err := db.DB()
	if err != nil {
		return 0, err
	}
	var busy, pages, copied sql.NullInt64
	err = pool.QueryRowContext(ctx, "PRAGMA wal_checkpoint("+mode+")").Scan(&busy, &pages, &copied)
	return pages.Int64 - copied.Int64, err
}
