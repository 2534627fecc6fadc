package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/registry"
	"flashsale/inventory"
)

// The Redis keys of the state of workers and queues, shared by all processes.
const (
	// WorkersKey is the registry of worker processes; see registry.Registry.
	WorkersKey = "fs:{p0}:workers"
	// backlogKey holds the latest state of all queues, and expires when it is too old.
	backlogKey = "fs:{p0}:backlog"
	// backlogTurnKey exists while a process reads that state.
	backlogTurnKey = "fs:{p0}:backlog:turn"
)

const (
	// FetchStale is how long no worker may have fetched before operators are alerted: three
	// times as long as an idle worker waits between two fetches.
	FetchStale = 15 * time.Second

	monitorEvery = 5 * time.Second
	// monitorQueues is how many queues are read in monitorEvery; with many partitions there
	// are more, and they are read less often.
	monitorQueues = 500
	// readLimit bounds the read of up to monitorQueues queues, and one process's turn to
	// read them.
	readLimit = 3 * time.Second
)

// Trouble describes the problem of the workers for operators, such as "none live
// since 2026-11-22T10:00:00Z". It is empty if a live worker fetches.
func Trouble(w registry.Workers) string {
	at := func(t time.Time) string { return t.UTC().Format(time.RFC3339) }
	if len(w.Live) == 0 {
		if w.SeenAt.IsZero() {
			return "none has ever registered"
		}
		return "none live since " + at(w.SeenAt)
	}
	last := w.FetchedAt
	for i := range w.Live {
		if started := w.Live[i].StartedAt; started.After(last) {
			last = started // the worker gets time for its first fetch
		}
	}
	switch {
	case w.Now.Sub(last) <= FetchStale:
		return ""
	case w.FetchedAt.IsZero():
		return fmt.Sprintf("%d live, and none has ever fetched", len(w.Live))
	default:
		return fmt.Sprintf("%d live, and none has fetched since %s", len(w.Live), at(w.FetchedAt))
	}
}

// Snapshot is the state of all queues and workers at one moment, by the clock of Redis.
type Snapshot struct {
	Queues []QueueDepth
	// Waiting is how many accepted orders are not committed: those of the ready, delayed and
	// leased tasks of the queues of orders.
	Waiting int
	Workers registry.Workers
}

// Alarm describes orders that wait while no worker fetches them.
type Alarm struct {
	Waiting int           // accepted orders that are not committed
	Oldest  time.Duration // how long the oldest ready one has waited
	Workers string        // the result of Trouble
}

// MonitorConfig configures a Monitor. All fields but Others, Every and the functions are
// required.
type MonitorConfig struct {
	Redis   redis.UniversalClient
	Workers *registry.Registry
	Orders  []NamedQueue // the queues of accepted orders
	Others  []NamedQueue // the other queues to show
	// WatchKey is another key of the slot of WorkersKey, whose existence is checked with each
	// read, at no further command; if it exists, OnWatch is called. Default "": none.
	WatchKey string
	OnWatch  func()
	// Every is the interval of the reads. Default 5 s, and 5 s more for each further 500
	// queues.
	Every time.Duration
	// OnAlarm is called when orders wait and no live worker fetches in two consecutive
	// reads, and with nil when that has ended. Default: not called.
	OnAlarm func(*Alarm)
	// OnError receives the first of several consecutive errors. Default: not called.
	OnError func(error)
}

// Monitor reads the state of queues and workers at intervals, for metrics and alarms. One
// process at a time reads them and stores the result in Redis for the others, so the cost
// does not depend on the number of processes, except for one MGET per interval of each, unless
// Redis refuses writes.
type Monitor struct {
	cfg   MonitorConfig
	limit time.Duration // of one read
	last  atomic.Pointer[timedSnapshot]

	// The rest belongs to Run.
	suspected, alarmed, failing bool
	shown                       string // the result that was used last
}

// timedSnapshot is a Snapshot and the time when this process got it.
type timedSnapshot struct {
	Snapshot
	at time.Time
}

// NewMonitor returns a Monitor without data until Run has read.
func NewMonitor(cfg MonitorConfig) *Monitor {
	if cfg.Every == 0 {
		cfg.Every = monitorEvery * time.Duration(1+(len(cfg.Orders)+len(cfg.Others))/monitorQueues)
	}
	if cfg.OnAlarm == nil {
		cfg.OnAlarm = func(*Alarm) {}
	}
	if cfg.OnWatch == nil {
		cfg.OnWatch = func() {}
	}
	if cfg.OnError == nil {
		cfg.OnError = func(error) {}
	}
	return &Monitor{cfg: cfg, limit: max(readLimit, cfg.Every*3/5)}
}

// Last returns the latest Snapshot, which must not be changed. It returns nil if there was none
// within the last three intervals, because Redis does not answer.
func (m *Monitor) Last() *Snapshot {
	l := m.last.Load()
	if l == nil || time.Since(l.at) > 3*m.cfg.Every {
		return nil
	}
	return &l.Snapshot
}

// Run reads at intervals until ctx ends.
func (m *Monitor) Run(ctx context.Context) error {
	tick := time.NewTicker(m.cfg.Every)
	defer tick.Stop()
	for {
		m.round(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// round reads once, and raises or clears the alarm.
func (m *Monitor) round(ctx context.Context) {
	brief, cancel := context.WithTimeout(ctx, m.limit)
	defer cancel()
	l, err := m.snapshot(brief)
	if ctx.Err() != nil {
		return
	}
	if err != nil && !m.failing {
		m.cfg.OnError(fmt.Errorf("read queues and workers: %w", err))
	}
	m.failing = err != nil
	if l == nil {
		return // another process is reading, or Redis does not answer
	}
	m.last.Store(&timedSnapshot{Snapshot: *l, at: time.Now()})
	trouble := Trouble(l.Workers)
	bad := l.Waiting > 0 && trouble != ""
	switch {
	case bad && m.suspected && !m.alarmed:
		m.alarmed = true
		m.cfg.OnAlarm(&Alarm{Waiting: l.Waiting, Oldest: l.oldest(len(m.cfg.Orders)), Workers: trouble})
	case !bad && m.alarmed:
		m.alarmed = false
		m.cfg.OnAlarm(nil)
	}
	m.suspected = bad // a worker that restarts is absent in one read
}

// oldest returns the longest wait in the first n queues.
func (l *Snapshot) oldest(n int) (d time.Duration) {
	for i := range l.Queues[:min(n, len(l.Queues))] {
		d = max(d, l.Queues[i].OldestReady)
	}
	return d
}

// snapshot returns the recent result of another process, or else reads the state itself. It
// returns nil while another process is reading. If Redis refuses writes, each process reads for
// itself.
func (m *Monitor) snapshot(ctx context.Context) (*Snapshot, error) {
	rdb := m.cfg.Redis
	text, err := m.shared(ctx)
	if err != nil {
		return nil, err
	}
	// A result expires before it could be found twice, unless the clock of Redis was set back.
	if text != "" && text != m.shown {
		m.shown = text
		var l Snapshot
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			return nil, fmt.Errorf("read %s: %w", backlogKey, err)
		}
		return &l, nil
	}
	mine, err := m.takeTurn(ctx)
	shares := !refusesWrites(err)
	if shares && (err != nil || !mine) {
		return nil, err
	}
	l, err := m.read(ctx)
	if err != nil || !shares {
		return l, err
	}
	own, err := json.Marshal(l)
	if err != nil {
		return nil, err
	}
	// It expires before this process's next turn, so that the process does not find its own
	// old result then.
	if err := rdb.Set(ctx, backlogKey, own, m.cfg.Every*4/5).Err(); err != nil {
		return nil, err
	}
	m.shown = string(own)
	return l, nil
}

// refusesWrites reports whether a master answers, but refuses writes: its memory is full, it cannot
// save, or it has too few replicas.
func refusesWrites(err error) bool {
	return redis.HasErrorPrefix(err, "OOM") || redis.HasErrorPrefix(err, "MISCONF") || redis.HasErrorPrefix(err, "NOREPLICAS")
}

// takeTurn returns false while another process reads.
func (m *Monitor) takeTurn(ctx context.Context) (bool, error) {
	rdb := m.cfg.Redis
	mine, err := rdb.SetNX(ctx, backlogTurnKey, 1, m.limit).Result()
	if err != nil || mine {
		return mine, err
	}
	left, err := rdb.PTTL(ctx, backlogTurnKey).Result()
	if err != nil || left <= m.limit {
		return false, err
	}
	// The clock of Redis was set back. If several processes take this turn, all of them read.
	return true, rdb.Set(ctx, backlogTurnKey, 1, m.limit).Err()
}

// shared returns the recent result of another process, or "". With the same command it checks
// WatchKey.
func (m *Monitor) shared(ctx context.Context) (string, error) {
	keys := []string{backlogKey}
	if m.cfg.WatchKey != "" {
		keys = append(keys, m.cfg.WatchKey)
	}
	found, err := m.cfg.Redis.MGet(ctx, keys...).Result()
	if err != nil {
		return "", err
	}
	if len(found) > 1 && found[1] != nil {
		m.cfg.OnWatch()
	}
	text, _ := found[0].(string) // "" where there is none
	return text, nil
}

// Every returns the interval of the reads.
func (m *Monitor) Every() time.Duration { return m.cfg.Every }

// read reads every queue and the workers. Each costs Redis about as much as a purchase.
func (m *Monitor) read(ctx context.Context) (*Snapshot, error) {
	l := &Snapshot{Queues: make([]QueueDepth, 0, len(m.cfg.Orders)+len(m.cfg.Others))}
	for i, queues := range [][]NamedQueue{m.cfg.Orders, m.cfg.Others} {
		for _, q := range queues {
			d, err := q.depth(ctx)
			if err != nil {
				return nil, err
			}
			if i == 0 {
				l.Waiting += d.Waiting
			}
			l.Queues = append(l.Queues, d)
		}
	}
	var err error
	l.Workers, err = m.cfg.Workers.List(ctx)
	return l, err
}

// Status is the state of the workers for operators.
type Status struct {
	Live      int       // processes with a recent heartbeat
	LastFetch time.Time // of any worker, by Redis's clock; zero: never
	Trouble   string    // the result of Trouble; empty: none
}

// WorkerStatus reads Redis, which costs about as much as a ping. Errors:
// inventory.ErrUnavailable.
func (m *Monitor) WorkerStatus(ctx context.Context) (Status, error) {
	w, err := m.cfg.Workers.List(ctx)
	if err != nil {
		return Status{}, fmt.Errorf("%w: %w", inventory.ErrUnavailable, err)
	}
	return Status{Live: len(w.Live), LastFetch: w.FetchedAt, Trouble: Trouble(w)}, nil
}
