package service

import (
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

const (
	// failuresEvery is the interval between log lines about work that keeps failing.
	failuresEvery = 10 * time.Second
	// failuresQuiet is how long work must not have failed to be reported so. It is longer than the interval
	// between two attempts of any background work.
	failuresQuiet = 2 * time.Minute
	// failureKinds is how many kinds of errors of one outage have a line of their own.
	failureKinds = 5
)

// failures logs the errors of some background work. An outage repeats them several times a second, so only
// the first of each kind is logged when it happens. After that, one line per interval has the latest error and
// how often the work has failed meanwhile, and one line reports that it has not failed for some time. A success
// is not reported: the work may not have been attempted.
type failures struct {
	log       zerolog.Logger
	component string
	message   func(error) string

	mu     sync.Mutex
	kinds  map[string]bool // of the errors that were logged when they happened; nil: nothing fails
	total  int             // failures since the first
	recent int             // those of the present interval
	latest error           // of the present interval, if it was not logged yet
	last   time.Time       // of the latest failure
}

// report logs an error, or counts it.
func (f *failures) report(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.kinds == nil {
		f.kinds = make(map[string]bool)
		time.AfterFunc(failuresEvery, f.sum)
	}
	f.total++
	f.recent++
	f.last = time.Now()
	if kind := kindOf(err); f.kinds[kind] || len(f.kinds) == failureKinds {
		f.latest = err
	} else {
		f.kinds[kind] = true
		f.warn(err, 0)
	}
}

// sum ends an interval.
func (f *failures) sum() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if quiet := time.Since(f.last); quiet >= failuresQuiet {
		if f.total > len(f.kinds) { // otherwise each line has reported one failure
			f.log.Info().Str("component", f.component).Int("failures", f.total).Msg(f.component + ": no failure for " + failuresQuiet.String())
		}
		f.kinds, f.total = nil, 0
		return
	}
	if f.latest != nil {
		f.warn(f.latest, f.recent)
	}
	f.recent, f.latest = 0, nil
	time.AfterFunc(failuresEvery, f.sum)
}

// warn logs an error, with a number of failures unless it is 0.
func (f *failures) warn(err error, n int) {
	l := withOrders(f.log.Warn(), err).Str("component", f.component).Err(err)
	if n > 0 {
		l = l.Int("failures", n)
	}
	l.Msg(f.message(err))
}

// kindOf returns the text of an error's cause without digits: the errors of one outage differ in the items and orders
// that they name, in ports and times.
func kindOf(err error) string {
	for cause := err; cause != nil; cause = errors.Unwrap(cause) {
		err = cause
	}
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, err.Error())
}
