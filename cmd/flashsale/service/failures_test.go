package service

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
)

// logged are the lines of the log of background work that fails, in virtual time.
type logged struct {
	t    *testing.T
	out  syncBuffer
	read int // of out, by want
}

func newLogged(t *testing.T) (*logged, func(error)) {
	t.Helper()
	l := &logged{t: t}
	return l, (&env{log: zerolog.New(&l.out)}).reporter("admission")
}

// want checks the lines since the last call: their level, message, error and number of failures.
func (l *logged) want(want ...string) {
	l.t.Helper()
	synctest.Wait()
	var got []string
	text := l.out.String()
	for d := json.NewDecoder(strings.NewReader(text[l.read:])); d.More(); {
		var line struct {
			Level, Component, Message, Error string
			Failures                         int
		}
		if err := d.Decode(&line); err != nil || line.Component != "admission" {
			l.t.Fatalf("a line of %q: %v", line.Component, err)
		}
		got = append(got, fmt.Sprintf("%s %s: %s %d", line.Level, line.Message, line.Error, line.Failures))
	}
	l.read = len(text)
	if fmt.Sprint(got) != fmt.Sprint(want) {
		l.t.Errorf("logged %q, want %q", got, want)
	}
}

// elapse lets virtual time pass.
func elapse(d time.Duration) { <-time.After(d) }

// errReset is the cause of refused.
var errReset = errors.New("connection reset")

// refused is the error of a connection from a port.
func refused(port int) error {
	return fmt.Errorf("sell item-%c: read 127.0.0.1:%d: %w", 'a'+rune(port%26), port, errReset)
}

// quiet is until the end of an outage is reported: the end of the first interval after failuresQuiet.
const quiet = failuresQuiet + failuresEvery

// TestFailures_Outage: the first failure is logged when it happens, then the failures of each interval in one line,
// and the end once.
func TestFailures_Outage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, report := newLogged(t)
		for outage := range 2 {
			report(refused(0))
			log.want("warn admission failed, retrying: sell item-a: read 127.0.0.1:0: connection reset 0")
			for i := range 84 { // 25.2 s
				elapse(300 * time.Millisecond)
				if report(refused(26 * i)); i == 0 {
					log.want()
				}
			}
			log.want(
				"warn admission failed, retrying: sell item-a: read 127.0.0.1:832: connection reset 34",
				"warn admission failed, retrying: sell item-a: read 127.0.0.1:1690: connection reset 33",
			)
			elapse(failuresEvery)
			log.want("warn admission failed, retrying: sell item-a: read 127.0.0.1:2158: connection reset 18")
			elapse(quiet)
			log.want("info admission: no failure for 2m0s:  85")
			elapse(time.Duration(outage) * time.Hour)
			log.want()
		}
	})
}

// TestFailures_Rare: work that is attempted less often than an interval, and fails each time, is not reported to have
// recovered.
func TestFailures_Rare(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, report := newLogged(t)
		report(refused(0))
		log.want("warn admission failed, retrying: sell item-a: read 127.0.0.1:0: connection reset 0")
		for range 20 {
			elapse(15 * time.Second)
			report(refused(0))
			elapse(failuresEvery)
			log.want("warn admission failed, retrying: sell item-a: read 127.0.0.1:0: connection reset 1")
		}
		elapse(quiet)
		log.want("info admission: no failure for 2m0s:  21")
	})
}

// TestFailures_Kinds: another error is logged when it happens, up to a bound; after that it appears in the sum.
func TestFailures_Kinds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, report := newLogged(t)
		for i := range failureKinds {
			for range 2 {
				report(errors.New(string(rune('a' + i))))
			}
			log.want(fmt.Sprintf("warn admission failed, retrying: %c 0", 'a'+i))
		}
		report(errors.New("another"))
		log.want()
		elapse(failuresEvery)
		log.want(fmt.Sprintf("warn admission failed, retrying: another %d", 2*failureKinds+1))
		elapse(quiet)
		log.want(fmt.Sprintf("info admission: no failure for 2m0s:  %d", 2*failureKinds+1))
	})
}

// TestFailures_Single: a failure that does not repeat has one line, and the next one is logged when it happens.
func TestFailures_Single(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, report := newLogged(t)
		for port := range 3 {
			report(refused(26 * port))
			log.want(fmt.Sprintf("warn admission failed, retrying: sell item-a: read 127.0.0.1:%d: connection reset 0", 26*port))
			elapse(quiet)
			log.want()
		}
	})
}
