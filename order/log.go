package order

import (
	"context"
	"os"
	"sync/atomic"
	"time"
)

// The write-ahead log is moved into the database's file every logPages, without waiting
// for anyone. It begins at its start again only at a moment when no reader uses it. Reads
// that overlap without a pause leave no such moment, and the log grows.
const (
	// logHigh is the length, in bytes, from which on a commit makes such a moment: it waits
	// a tenth of a second for the reads that have begun; later ones do not need the log.
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
	high, step int64        // logHigh and logStep, but for tests
	tried      atomic.Int64 // length at the last try; 0: it has been short since
	patience   int          // logPatience, but for tests
	after      time.Time    // no try before; belongs to the writer's goroutine
}

// boundLog is called after a commit of orders. A failure is not reported: the log is as
// it was, and the next commit meets the same disk.
func (s *Store) boundLog(ctx context.Context) {
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
