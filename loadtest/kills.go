package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"flashsale/internal/plural"
)

// anyTarget is the target of a victim to which the load sends nothing.
const anyTarget = -1

// victim is a process that the run kills while the crowd buys.
type victim struct {
	name   string
	target int          // index of its URL, or anyTarget
	kill   func() error // returns once the process executes nothing
	// share is the part of the orders after which it is killed; 0: see newPlannedKills.
	share float64
	// again starts it again after the time down, and returns once it is ready; nil: it stays
	// dead.
	again func(context.Context) error
	down  time.Duration
}

// kill is the result of one kill.
type kill struct {
	Process string `json:"process"`
	// AcceptedBefore counts the acknowledgements before the kill, AcceptedAfter those
	// of requests that were sent after it.
	AcceptedBefore int64 `json:"accepted_before"`
	AcceptedAfter  int64 `json:"accepted_after"`
	// InFlight counts the requests in flight during the kill: those that a killed API did
	// not answer, or those sent before the kill of a worker and answered after it.
	InFlight int64 `json:"in_flight"`
	// At is when it was killed, after the start; Back when it was ready again, nil: never.
	At   float64  `json:"at_s"`
	Back *float64 `json:"back_s,omitempty"`
}

// plannedKill kills one victim once a number of orders are acknowledged.
type plannedKill struct {
	victim
	after int64 // acknowledgements before the kill, 1 or more
	// amid is how many requests are sent to the victim between that and the kill. All
	// orders of a batch are acknowledged together, so a kill at that moment could find no
	// request in flight.
	amid int64

	began    atomic.Int64 // when kill was called, in ns after the start; 0: not yet
	ended    atomic.Int64 // when kill had returned, the same
	back     atomic.Int64 // when it was ready again, the same
	inFlight atomic.Int64
	later    atomic.Int64

	mu     sync.Mutex
	sends  int64 // since the kill was due
	before int64
	err    error
	// againErr is why it is not ready again. It is valid after wait.
	againErr error
}

// plannedKills are the kills of a run, if any.
type plannedKills struct {
	list  []*plannedKill
	start time.Time
	live  *counters

	restarts sync.WaitGroup
}

// newPlannedKills spreads the kills of the victims that do not say when over the first half of a
// sale of so many orders: with two, at one and at two fifths of them. The connections are
// spread evenly over the targets.
func newPlannedKills(victims []victim, orders, connections, targets int) *plannedKills {
	s := new(plannedKills)
	for i, v := range victims {
		reach := connections
		if v.target != anyTarget {
			reach /= targets
		}
		after := orders * (i + 1) / (2*len(victims) + 1)
		amid := reach / 2
		if v.share > 0 {
			after = int(v.share * float64(orders))
			amid = min(amid, orders/100) // so that the kill comes when it was asked for
		}
		s.list = append(s.list, &plannedKill{victim: v, after: int64(max(1, after)), amid: int64(max(1, amid))})
	}
	return s
}

// begin sets when the load starts, and where its progress is counted and shown.
func (s *plannedKills) begin(start time.Time, live *counters) { s.start, s.live = start, live }

// wait returns once every process that is started again is ready, or is not going to be.
func (s *plannedKills) wait() { s.restarts.Wait() }

// sent notes that a request has been sent, whose answer is not read yet, and carries
// out the next kill if it is due. The context bounds the restarts.
func (s *plannedKills) sent(ctx context.Context, target int) {
	if k := s.next(); k != nil && s.live.accepted.Load() >= k.after {
		s.due(ctx, k, target)
	}
}

// next returns the kill that is carried out next. Kills are carried out in turn also if one batch of acknowledgements
// makes several due: the connections to an API may wait for orders of a worker that was killed, and send it no more
// requests.
func (s *plannedKills) next() (next *plannedKill) {
	for _, k := range s.list {
		if k.ended.Load() == 0 && (next == nil || k.after < next.after) {
			next = k
		}
	}
	return next
}

// due kills the victim if enough requests are in flight. It is called right after a
// request was sent, which cannot have been answered yet. During the kill no answer is read
// and at most one request is sent on each connection, so that units are left for the time
// after a slow kill.
func (s *plannedKills) due(ctx context.Context, k *plannedKill, target int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ended.Load() != 0 || k.target != anyTarget && k.target != target {
		return
	}
	if k.sends++; k.sends <= k.amid {
		return
	}
	k.began.Store(int64(time.Since(s.start)))
	k.before = s.live.accepted.Load()
	k.err = k.kill()
	k.ended.Store(int64(time.Since(s.start)))
	if k.err != nil {
		return
	}
	s.live.enter("buying after the kill of " + k.name)
	if k.again != nil {
		s.restarts.Go(func() { k.againErr = s.restart(ctx, k) })
	}
}

// restart starts a killed process again after its time down.
func (s *plannedKills) restart(ctx context.Context, k *plannedKill) error {
	down := time.NewTimer(k.down)
	defer down.Stop()
	select {
	case <-down.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := k.again(ctx); err != nil {
		return err
	}
	k.back.Store(int64(time.Since(s.start)))
	s.live.enter("buying after the return of " + k.name)
	return nil
}

// attempt is the target and the times of an attempt: when it began, when its request was
// written (zero if it was not), and when its answer ended.
type attempt struct {
	target             int
	sent, written, end time.Time
}

// seen counts an attempt that has ended.
func (s *plannedKills) seen(a *answer, t attempt) {
	for _, k := range s.list {
		began, ended := time.Duration(k.began.Load()), time.Duration(k.ended.Load())
		switch {
		case began == 0, t.end.Sub(s.start) < began:
			// It ended before the kill.
		case !t.written.IsZero() && t.written.Sub(s.start) < began:
			if k.target == anyTarget || k.target == t.target && a.status == 0 {
				k.inFlight.Add(1)
			}
		case ended != 0 && t.sent.Sub(s.start) > ended:
			if a.kind == kindAccepted {
				k.later.Add(1)
			}
		}
	}
}

// report returns the result of each kill, and, if the run proves nothing, the reason. It
// is called after the end of the load, and after wait.
func (s *plannedKills) report() (kills []kill, void finding) {
	for _, k := range s.list {
		if k.began.Load() == 0 {
			void.add(1, "never killed: %s; that was to be after %s, and there were %d", k.name, plural.Count(k.after, "acknowledged order"), s.live.accepted.Load())
			continue
		}
		if k.err != nil {
			void.add(1, "%v", k.err)
			continue
		}
		seen := kill{
			Process: k.name, AcceptedBefore: k.before, AcceptedAfter: k.later.Load(), InFlight: k.inFlight.Load(),
			At: seconds(time.Duration(k.began.Load())),
		}
		switch {
		case k.againErr != nil:
			void.add(1, "%s did not start again: %v", k.name, k.againErr)
		case k.again != nil:
			seen.Back = new(seconds(time.Duration(k.back.Load())))
		}
		kills = append(kills, seen)
		if seen.InFlight == 0 {
			void.add(1, "the kill of %s met no request in flight", k.name)
		}
		if seen.AcceptedAfter == 0 {
			void.add(1, "no request sent after the kill of %s got an order; use a larger --stock or fewer --connections", k.name)
		}
	}
	return kills, void
}

// sentence describes the kill in the summary.
func (k *kill) sentence() string {
	text := fmt.Sprintf("killed %s after %s, with %s in flight; requests sent later got %s",
		k.Process, plural.Count(k.AcceptedBefore, "acknowledgement"), plural.Count(k.InFlight, "request"), plural.Count(k.AcceptedAfter, "order"))
	if k.Back != nil {
		text += fmt.Sprintf("; killed at %.2f s, ready again at %.2f s", k.At, *k.Back)
	}
	return text
}
