package sqlite

import (
	"context"
	"time"

	"flashsale/internal/pause"
)

// SQLite gives its write lock to whichever connection tries while it is free, and a connection
// that finds it taken sleeps longer each time. So a process that begins a transaction as soon as it
// has committed one keeps the lock from the others for seconds. Therefore a connection takes its
// turn before it waits for the lock, and gives it back when it has the lock: a process that wants
// the lock again meanwhile has to wait for the turn, and so comes after it.
const (
	// turnSuffix ends the name of the file, beside the database, whose lock is the turn.
	turnSuffix = "-turn"
	// turnEvery is the time between two attempts to get the turn or the lock.
	turnEvery = 200 * time.Microsecond
	// turnPatience bounds the wait for the turn. The process that has it may be suspended; the
	// others then compete for the lock without it.
	turnPatience = 100 * time.Millisecond
	// turnRest is how long a connection does so.
	turnRest = 2 * time.Second
)

// turn is the place of one connection among all that wait for the write lock of a database. A nil
// turn is never taken.
type turn struct {
	file turnFile
	rest time.Time // until then it is not waited for
}

// take waits for the turn, and reports whether the connection has it.
func (t *turn) take(ctx context.Context) bool {
	if t == nil {
		return false
	}
	began := time.Now()
	for !t.file.tryLock() {
		now := time.Now()
		if now.Before(t.rest) {
			return false
		}
		if now.Sub(began) >= turnPatience {
			t.rest = now.Add(turnRest)
			return false
		}
		if !pause.For(ctx, turnEvery) {
			return false
		}
	}
	return true
}

// giveBack ends the turn.
func (t *turn) giveBack() { t.file.unlock() }

// close gives up the place.
func (t *turn) close() error {
	if t == nil {
		return nil
	}
	return t.file.Close()
}
