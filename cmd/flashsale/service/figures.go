package service

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"flashsale/handler/problem"
	"flashsale/lock"
	"flashsale/order/figures"
	"flashsale/order/worker"
)

// liveQueues is how many queues are read for each event of the live figures. With more, an event
// has the last values of the monitor.
const liveQueues = 20

// noticeMargin is the time from noticing a watcher to the first rates of a process.
const noticeMargin = 3 * time.Second

// newCounters returns the counters of this process.
func newCounters() *figures.Counters {
	return figures.NewCounters(slices.Sorted(maps.Keys(problem.Statuses())))
}

// newFigures returns the live figures of this process, and adds their loop. locks are those of
// the items on sale; nil without an API, whose process only publishes.
func newFigures(sh *shared, locks *lock.Manager, sources figures.Sources, ps *parts) (*figures.Figures, error) {
	c := figures.Config{
		Redis: sh.eng.rdb, Counters: sh.counters, Sources: sources, Wanted: sh.mon.watched, OnError: sh.reporter("figures"),
		Process: figures.Process{Kind: sh.role.command, Host: processHost(), Version: sh.build.Version, State: func() figures.State {
			s := figures.State{BreakersOpen: sh.eng.breakers.Open(), CallsBlocked: sh.eng.breakers.Refused()}
			if locks != nil {
				s.LocksHeld, s.LocksWaiting = len(locks.Held()), locks.Waiting()
			}
			return s
		}},
	}
	if !sh.embedded() {
		c.Settle = sh.mon.monitor.Every() + noticeMargin
	}
	f, err := figures.New(c)
	if err != nil {
		return nil, err
	}
	ps.add(part{name: "figures", run: f.Run})
	return f, nil
}

// processHost identifies this process by host and process id.
func processHost() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s:%d", host, os.Getpid())
}

// figureSources returns what the API reads for the live figures.
func figureSources(sh *shared, sl *selling, backlog *worker.Backlog) figures.Sources {
	return figures.Sources{
		Queues: func(ctx context.Context) (orders, expiries *figures.Queue, err error) {
			depths, err := queueDepths(ctx, sh, backlog)
			if err != nil {
				return nil, nil, err
			}
			n := min(len(sh.eng.queues), len(depths))
			return sumDepths(depths[:n]), sumDepths(depths[n:]), nil
		},
		Workers: func() *figures.Workers {
			l := sh.mon.monitor.Last()
			if l == nil {
				return nil
			}
			return &figures.Workers{Live: len(l.Workers.Live), Trouble: worker.Trouble(l.Workers)}
		},
		Item: sl.items.Item,
		Left: sl.stock.Left,
		Lock: func(ctx context.Context, item string) (*figures.Lock, error) {
			i, err := sl.stock.LockInfo(ctx, item)
			if err != nil {
				return nil, err
			}
			l := &figures.Lock{Fence: i.Fence, Waiting: i.Waiters}
			if i.Held {
				l.Holder = &i.Holder.Metadata
			}
			return l, nil
		},
		Now: sh.eng.clock.ItemNow,
	}
}

var errNotRead = errors.New("the monitor could not read the queues")

// queueDepths returns the depths of all queues, those of orders first.
func queueDepths(ctx context.Context, sh *shared, backlog *worker.Backlog) ([]worker.QueueDepth, error) {
	if len(sh.eng.queues)+len(sh.eng.expires) <= liveQueues {
		return backlog.Depths(ctx)
	}
	l := sh.mon.monitor.Last()
	if l == nil {
		return nil, errNotRead
	}
	return l.Queues, nil
}

func sumDepths(depths []worker.QueueDepth) *figures.Queue {
	var q figures.Queue
	for i := range depths {
		d := &depths[i]
		q.Orders += d.Orders
		q.Ready += d.Ready
		q.Delayed += d.Delayed
		q.Leased += d.Leased
		q.Dead += d.Dead
		q.OldestAgeMS = max(q.OldestAgeMS, float64(d.OldestReady.Microseconds())/1000)
		q.Paused = q.Paused || d.Paused
	}
	return &q
}
