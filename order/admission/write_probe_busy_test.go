package admission

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"flashsale/order/ordertest"
	"flashsale/order/store/storetest"
)

// scriptedTarget is a database whose next answers the test sets.
type scriptedTarget struct {
	commits bool  // another connection has committed
	err     error // of writes; errOccupied: the database is busy
	writes  int
}

var errOccupied = errors.New("occupied")

func (s *scriptedTarget) committed(context.Context) (bool, error) { return s.commits, nil }

func (s *scriptedTarget) write(context.Context, string) error {
	s.writes++
	return s.err
}

func (*scriptedTarget) busy(err error) bool { return errors.Is(err, errOccupied) }
func (*scriptedTarget) release()            {}
func (*scriptedTarget) close() error        { return nil }

// TestWriteProbe_Busy: a database that is only busy counts as failing once every check of a while has
// found it so. A change between the two causes is reported.
func TestWriteProbe_Busy(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	synctest.Test(t, func(t *testing.T) {
		target, heard := new(scriptedTarget), new(changes)
		p := &WriteProbe{store: s, target: target, onChange: heard.add}
		for i, step := range []struct {
			pause   time.Duration
			err     error
			want    error
			again   bool // the probe checks again although no purchase asks
			changes int
		}{
			{0, errOccupied, nil, true, 0},
			{10 * time.Second, errOccupied, nil, true, 0}, // nothing is known of the time between them
			{time.Second, errOccupied, nil, true, 0},
			{time.Second, errOccupied, nil, true, 0},
			{time.Second, errOccupied, ErrBusy, false, 1},
			{time.Second, nil, nil, false, 2},
			{time.Second, errOccupied, nil, true, 2},
			{time.Second, ordertest.ErrTest, ordertest.ErrTest, false, 3},
			{time.Second, ordertest.ErrTest, ordertest.ErrTest, false, 3},
			{time.Second, errOccupied, ErrBusy, false, 4}, // the last check has not proved the opposite
			{time.Second, ordertest.ErrTest, ordertest.ErrTest, false, 5},
		} {
			<-time.After(step.pause) // in virtual time
			target.err = step.err
			p.asked.Store(false)
			p.check(t.Context())
			again := p.asked.Load()
			if err := p.Failing(); !errors.Is(err, step.want) || again != step.again || len(heard.list()) != step.changes {
				t.Errorf("check %d: %v, again %v, reported %v", i, err, again, heard.list())
			}
		}
		// A commit of another connection proves something only if it is recent.
		target.commits, target.err, target.writes = true, nil, 0
		for pause, writes := range map[time.Duration]int{probeTrust - 1: 0, probeTrust: 1} {
			target.writes = 0
			<-time.After(pause)
			if p.check(t.Context()); target.writes != writes {
				t.Errorf("%v after the last check: %d writes, want %d", pause, target.writes, writes)
			}
		}
	})
}
