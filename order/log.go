package order

import (
	"context"
	"database/sql"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"gorm.io/gorm"
)

// SQLite appends what is committed to a write-ahead log and copies it into the database's
// file at a checkpoint. By itself it does that within a commit, which then takes 50 ms
// longer. Here a connection of its own does it beside the commits, and only the rest, what
// was committed meanwhile, is copied between two of them.
//
// The log begins at its start again after a checkpoint, at a moment when no reader uses it.
// Reads that overlap without a pause leave no such moment, and the log grows.
const (
	// logPages is how many pages of 4 KiB the log has when a checkpoint begins. Orders of a
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
)

// logGuard keeps the log short.
type logGuard struct {
	pages int64    // logPages, but for tests
	copy  *gorm.DB // the connection of checkpoints beside the commits
	// copying is set while there is one, and rest when it has left the rest to be copied
	// between two commits.
	copying, rest atomic.Bool
	running       sync.WaitGroup

	high, step int64        // logHigh and logStep, but for tests
	tried      atomic.Int64 // length at the last try; 0: it has been short since
	patience   int          // logPatience, but for tests
	after      time.Time    // no try before; belongs to the writer's goroutine
}

// boundLog is called after each commit. Failures are not reported: the log is as it was,
// and the next commit meets the same disk.
func (s *Store) boundLog(ctx context.Context) {
	s.checkpoint(ctx)
	info, err := os.Stat(s.file + "-wal")
	if err != nil {
		return
	}
	g, size, tried := &s.log, info.Size(), s.log.tried.Load()
	switch {
	case size < g.high:
		g.tried.Store(0)
	case time.Now().Before(g.after):
	case size < tried || size >= tried+g.step:
		g.tried.Store(size)
		began := time.Now()
		_ = s.cutLog(ctx) //nolint:errcheck // see above
		if info, err := os.Stat(s.file + "-wal"); err != nil || info.Size() >= g.high {
			now := time.Now()
			g.after = now.Add(time.Duration(g.patience) * now.Sub(began))
		}
	}
}

// checkpoint begins a checkpoint beside the commits when the log is long, and copies the
// rest once that has ended. It runs between two commits.
func (s *Store) checkpoint(ctx context.Context) {
	g := &s.log
	switch {
	case g.copying.Load():
	case g.rest.Swap(false):
		_, _ = checkpointed(ctx, s.write, "PASSIVE") //nolint:errcheck // see boundLog
	default:
		if left, err := checkpointed(ctx, s.write, "NOOP"); err != nil || left < g.pages {
			return
		}
		g.copying.Store(true)
		g.running.Go(func() {
			defer g.copying.Store(false)
			g.rest.Store(s.copyLog(ctx))
		})
	}
}

// copyLog copies the log until what is committed meanwhile is short, and reports whether
// it has copied any of it.
func (s *Store) copyLog(ctx context.Context) bool {
	for range logPasses {
		if _, err := checkpointed(ctx, s.log.copy, "PASSIVE"); err != nil {
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
