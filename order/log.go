package order

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
)

// SQLite appends what is committed to a write-ahead log and copies it into the database's
// file at a checkpoint. By itself it does that within a commit, which then takes 50 ms
// longer. Here a connection of its own does it beside the commits, and only the rest, what
// was committed meanwhile, is copied between two of them.
//
// The log begins at its start again after a checkpoint, at a moment when no reader uses it.
// Reads that overlap without a pause leave no such moment, and the log grows.
const (
	// logPages is how many pages of 4 KiB are not copied when a checkpoint begins. Orders of a
	// sale change the same pages again and again: the longer the log, the more orders there
	// are for each time that such a page is copied.
	logPages = 7000
	// logRest is how many pages are left to be copied between two commits.
	logRest = 300
	// logPasses bounds the checkpoints beside the commits in a row. Each copies what was
	// committed during the one before it.
	logPasses = 5
	// logPagesMax is how many pages the log has when SQLite itself makes a checkpoint
	// within a commit, because none beside the commits has succeeded.
	logPagesMax = 12_000
	// logHigh is the length, in bytes, from which on a commit waits a tenth of a second for
	// the reads that have begun, so that the log can begin at its start; later reads do not
	// need it.
	logHigh = 48 << 20
	// logStep is how much the log grows until that is tried again.
	logStep = 2 << 20
	// logPatience is for how many times as long as a try has taken in vain there is no
	// other one. A read that lasts, as a load of a large sale or a backup, would else make
	// every few hundred orders wait.
	logPatience = 20
	// logLimit is what a log that has grown longer is cut to, in bytes.
	logLimit = 64 << 20
	// logRestTries bounds the tries to copy the rest: a read that began before the last
	// commit keeps SQLite from copying all of it.
	logRestTries = 20
	// logWait is for how long, in milliseconds, emptying the log waits for reads.
	logWait = 100
)

// logGuard keeps the log short.
type logGuard struct {
	pages int64    // logPages, but for tests
	copy  *gorm.DB // the connection of checkpoints beside the commits
	// mu is held during a checkpoint that must not be made beside another one: SQLite
	// refuses the second without waiting.
	mu      sync.Mutex
	copying atomic.Bool  // a checkpoint beside the commits is under way
	rest    atomic.Int32 // how often the writer still tries to copy what it has left
	running sync.WaitGroup

	high, step int64        // logHigh and logStep, but for tests
	tried      atomic.Int64 // length at the last try; 0: it has been short since
	patience   int          // logPatience, but for tests
	after      time.Time    // no try before; belongs to the writer's goroutine
	owed       atomic.Bool  // the log shows what was erased, and could not be emptied yet
}

// boundLog is called after each commit. Failures are not reported: the log is as it was,
// and the next commit meets the same disk.
func (s *Store) boundLog(ctx context.Context) {
	if s.log.due(s.file) && s.log.mu.TryLock() {
		began := time.Now()
		emptied, err := s.cutLog(ctx)
		s.log.mu.Unlock()
		if err != nil || !emptied {
			now := time.Now()
			s.log.after = now.Add(time.Duration(s.log.patience) * now.Sub(began))
		}
	}
	s.checkpoint(ctx)
}

// due reports whether the log is to be emptied, as far as readers let it.
func (g *logGuard) due(file string) bool {
	info, err := os.Stat(file + "-wal")
	if err != nil {
		return false
	}
	size, tried := info.Size(), g.tried.Load()
	if size < g.high {
		g.tried.Store(0)
	}
	switch {
	case time.Now().Before(g.after):
		return false
	case size >= g.high && (size < tried || size >= tried+g.step):
		g.tried.Store(size)
		return true
	default:
		return g.owed.Load()
	}
}

// emptyLog empties the log, which shows pages as they were before an erasure. A read that
// lasts keeps it from that; the commits after it try again.
func (s *Store) emptyLog(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	for {
		began := time.Now()
		s.log.mu.Lock()
		emptied, err := s.cutLog(ctx)
		s.log.mu.Unlock()
		if err != nil || emptied {
			return err
		}
		// Another process's checkpoint is refused at once, and over soon.
		if time.Since(began) >= logWait*time.Millisecond || !pause.For(ctx, logWait*time.Millisecond) {
			s.log.owed.Store(true)
			return nil
		}
	}
}

// cutLog copies the log into the database's file and empties it, and reports whether it
// could. It waits only briefly for readers, since all writers wait for it. The caller
// holds the guard's mutex.
func (s *Store) cutLog(ctx context.Context) (emptied bool, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	db, err := s.write.DB()
	if err != nil {
		return false, err
	}
	c, err := db.Conn(ctx)
	if err != nil {
		return false, wrap("empty the database's log", err)
	}
	defer func() {
		// Whatever became of the rest: it is the one connection of all writers.
		_, rerr := c.ExecContext(context.WithoutCancel(ctx), fmt.Sprintf("PRAGMA busy_timeout = %d", lockWait))
		err = errors.Join(err, rerr, c.Close())
	}()
	if _, err := c.ExecContext(ctx, fmt.Sprintf("PRAGMA busy_timeout = %d", logWait)); err != nil {
		return false, wrap("empty the database's log", err)
	}
	var busy, pages, copied sql.NullInt64
	if err := c.QueryRowContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)").Scan(&busy, &pages, &copied); err != nil {
		return false, wrap("empty the database's log", err)
	}
	if busy.Int64 != 0 {
		return false, nil
	}
	s.log.owed.Store(false)
	return true, nil
}

// checkpoint begins a checkpoint beside the commits when the log is long, and copies the
// rest once that has ended. It runs between two commits.
func (s *Store) checkpoint(ctx context.Context) {
	g := &s.log
	switch {
	case g.copying.Load():
	case g.rest.Load() > 0:
		if left, err := checkpointed(ctx, s.write, "PASSIVE"); err == nil && left > 0 {
			g.rest.Add(-1)
		} else {
			g.rest.Store(0)
		}
	default:
		if left, err := checkpointed(ctx, s.write, "NOOP"); err != nil || left < g.pages {
			return
		}
		g.copying.Store(true)
		g.running.Go(func() {
			defer g.copying.Store(false)
			if s.copyLog(ctx) {
				g.rest.Store(logRestTries)
			}
		})
	}
}

// copyLog copies the log until what is committed meanwhile is short, and reports whether
// it has copied any of it.
func (s *Store) copyLog(ctx context.Context) bool {
	for range logPasses {
		s.log.mu.Lock()
		_, err := checkpointed(ctx, s.log.copy, "PASSIVE")
		s.log.mu.Unlock()
		if err != nil {
			return false
		}
		if left, err := checkpointed(ctx, s.log.copy, "NOOP"); err != nil || left <= logRest {
			return err == nil
		}
	}
	return true
}

// checkpointed makes a checkpoint and returns how many pages of the log are not copied. A
// checkpoint under way on another connection is no error.
func checkpointed(ctx context.Context, db *gorm.DB, mode string) (left int64, err error) {
	pool, err := db.DB()
	if err != nil {
		return 0, err
	}
	var busy, pages, copied sql.NullInt64
	err = pool.QueryRowContext(ctx, "PRAGMA wal_checkpoint("+mode+")").Scan(&busy, &pages, &copied)
	return pages.Int64 - copied.Int64, err
}
