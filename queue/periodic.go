package queue

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Periodic is a task that is added again and again, by a schedule.
type Periodic struct {
	// Name tells the periodic tasks of a queue apart, over restarts and changes of
	// Spec; 1 to 200 bytes. Required.
	Name string
	// Spec says when its ticks are: a cron expression of five fields (minute, hour,
	// day of the month, month, day of the week from 0 for Sunday to 6), a descriptor
	// such as @hourly or @daily, or "@every 90s" in whole seconds, which count from
	// the last tick, or at first from the start. Times are UTC, unless it begins with
	// a zone: "CRON_TZ=Europe/Berlin 0 9 * * 1-5". Required.
	//
	// Where a zone changes its time, a time of day that is left out has no tick
	// that day, and one that comes twice has two. What has to run once a day
	// without exception is better in UTC.
	Spec string
	// Task makes the task that is added for a tick. An ID left empty becomes
	// "<Name>@<tick>", the tick in UTC by RFC 3339. Due is set to the tick whatever
	// it says. The call must not block. One that panics, or makes a task that Enqueue
	// would refuse as invalid, is reported, and its tick passed over until another
	// process leads or this one starts anew. Required.
	Task func(tick time.Time) Task
	// Missed says what becomes of ticks that nobody added before their time.
	Missed Missed
}

// Missed says what becomes of the ticks that passed, by the Redis server's clock,
// before anybody added their tasks: nobody led, Redis was away, or the queue full.
type Missed uint8

// The ways to deal with missed ticks.
const (
	// MissedLatest adds one task, for the latest of them.
	MissedLatest Missed = iota
	// MissedAll adds a task for each of them, the oldest first; of more than 1000
	// for the latest 1000, and says so.
	MissedAll
	// MissedSkip adds none.
	MissedSkip
)

// ScheduleConfig configures Schedule. The zero value of a field means its
// default; anything out of bounds is an error of Schedule.
type ScheduleConfig struct {
	// Ahead is how long before its tick a task is added, as a delayed one; 1 ms to
	// 1 min. In this time another process may take over without a tick being missed;
	// a lock that chooses the leader takes its TTL to pass to another when its holder
	// dies. Default 5 s.
	Ahead time.Duration
	// Lead runs lead in one process at a time, for as long as this process is the
	// one, and returns when lead has. The context of lead ends when that is over. It
	// is called again when it returns. With a lock:
	//
	//	func(ctx context.Context, lead func(context.Context) error) error {
	//		return locks.Do(ctx, "schedule", func(ctx context.Context, _ *lock.Lock) error { return lead(ctx) })
	//	}
	//
	// It spares the other processes' work and nothing depends on it: two that lead at
	// once still add each tick once. Default: this process always leads.
	Lead func(ctx context.Context, lead func(ctx context.Context) error) error
	// OnError is told of failures of Redis and of Lead, and with the name of the
	// periodic task of a full queue (ErrFull; it is tried again), a task refused for
	// its id or unique key (ErrDuplicate; the tick is done), an invalid one
	// (ErrInvalidTask, ErrPeriodicPanic; the tick is passed over), ticks given up
	// (ErrTicksDropped) and one far in the future (ErrTickAhead). It must not block.
	// Default: nobody is told.
	OnError func(error)
}

// What Schedule tells ScheduleConfig.OnError beside the package's other errors.
var (
	// ErrTicksDropped: more ticks were missed than are made up for.
	ErrTicksDropped = errors.New("queue: missed ticks dropped")
	// ErrTickAhead: the last tick of a periodic task lies in the future, by the Redis
	// server's clock, further than it was ever added ahead; so that clock was wrong.
	// Nothing is added until that time, unless ForgetTicks is called.
	ErrTickAhead = errors.New("queue: last tick is in the future")
	// ErrPeriodicPanic: Periodic.Task panicked.
	ErrPeriodicPanic = errors.New("queue: periodic task panicked")
)

const (
	maxPeriodic     = 1000 // entries of one Schedule
	maxPeriodicName = 200  // bytes; the tick's time has room in an id beside it
	maxMissed       = 1000 // ticks that are made up for
	maxAhead        = time.Minute
	// lookEvery is the longest a leader goes without asking Redis for its time and
	// the last ticks.
	lookEvery = 5 * time.Second
	// roundLimit is how many ticks of one periodic task a leader adds before it
	// looks at the others.
	roundLimit = 100
)

// Schedule adds the tasks of the entries at their ticks until ctx ends, through
// whatever happens to Redis meanwhile, and then returns nil. Every process that
// may lead runs it, with the same entries.
//
// Each tick is added at most once, however many processes lead at once, stall or
// start again: the last tick of each name is noted in Redis, in the same step as
// the task is added. A tick that was not added before its time is missed,
// see [Missed]. Only the Redis server's clock counts. The task does not start
// before its tick; how soon after depends on the workers.
//
// A name that is new begins with the first tick after it was first seen. A name
// whose Spec has changed goes on from its last tick. Of an entry that is gone,
// what was added ahead still runs; see also [Queue.ForgetTicks].
//
// Errors: ErrConfig, before doing anything.
func (q *Queue) Schedule(ctx context.Context, entries []Periodic, cfg ScheduleConfig) error {
	parsed, err := parseEntries(entries)
	if err != nil {
		return err
	}
	return q.schedule(ctx, parsed, cfg)
}

// entry is a Periodic with its ticks.
type entry struct {
	Periodic
	schedule schedule
}

func parseEntries(entries []Periodic) ([]entry, error) {
	if len(entries) > maxPeriodic {
		return nil, fmt.Errorf("%w: %d periodic tasks, want at most %d", ErrConfig, len(entries), maxPeriodic)
	}
	parsed := make([]entry, 0, len(entries))
	seen := make(map[string]bool)
	for i, p := range entries {
		switch {
		case p.Name == "" || len(p.Name) > maxPeriodicName:
			return nil, fmt.Errorf("%w: periodic task %d: Name %.64q has %d bytes, want 1 to %d", ErrConfig, i, p.Name, len(p.Name), maxPeriodicName)
		case seen[p.Name]:
			return nil, fmt.Errorf("%w: periodic task %q: Name is taken by another", ErrConfig, p.Name)
		case p.Task == nil:
			return nil, fmt.Errorf("%w: periodic task %q: no Task", ErrConfig, p.Name)
		case p.Missed > MissedSkip:
			return nil, fmt.Errorf("%w: periodic task %q: Missed is %d", ErrConfig, p.Name, p.Missed)
		}
		seen[p.Name] = true
		s, err := parseSpec(p.Spec, time.Now())
		if err != nil {
			return nil, fmt.Errorf("%w: periodic task %q: Spec %q: %w", ErrConfig, p.Name, p.Spec, err)
		}
		parsed = append(parsed, entry{p, s})
	}
	return parsed, nil
}

// schedule is Schedule for entries whose ticks may be anything.
func (q *Queue) schedule(ctx context.Context, entries []entry, cfg ScheduleConfig) error {
	setDefault(&cfg.Ahead, 5*time.Second)
	if cfg.Ahead < time.Millisecond || cfg.Ahead > maxAhead {
		return fmt.Errorf("%w: Ahead %v, want 1ms to %v", ErrConfig, cfg.Ahead, maxAhead)
	}
	if cfg.OnError == nil {
		cfg.OnError = func(error) {}
	}
	if cfg.Lead == nil {
		cfg.Lead = func(ctx context.Context, lead func(context.Context) error) error { return lead(ctx) }
	}
	failures := 0
	for ctx.Err() == nil {
		err := cfg.Lead(ctx, func(ctx context.Context) error {
			failures = 0
			l := &leader{q: q, cfg: cfg, entries: entries, passed: make(map[string]time.Time), told: make(map[string]bool)}
			l.lead(ctx)
			return nil
		})
		// That it ended with ctx is no news; that a lock could not be released is.
		if err != nil && (ctx.Err() == nil || !errors.Is(err, ctx.Err()) && !errors.Is(err, context.Cause(ctx))) {
			cfg.OnError(fmt.Errorf("lead schedule: %w", err))
		}
		if ctx.Err() == nil {
			failures++
			pause(ctx, fullJitter(redisBackoffBase, redisBackoffMax, failures))
		}
	}
	return nil
}

// leader is one term of leading. It keeps nothing that Redis could tell.
type leader struct {
	q       *Queue
	cfg     ScheduleConfig
	entries []entry
	passed  map[string]time.Time // by name: the last tick whose task could not be made
	told    map[string]bool      // by name: its last tick was reported as too far ahead
}

func (l *leader) lead(ctx context.Context) {
	failures := 0
	for ctx.Err() == nil {
		wait, err := l.round(ctx)
		if err == nil {
			failures = 0
		} else if ctx.Err() == nil {
			failures++
			l.cfg.OnError(err)
			wait = fullJitter(redisBackoffBase, redisBackoffMax, failures)
		}
		pause(ctx, wait)
	}
}

// round adds what is to be added now, and says when to look again.
func (l *leader) round(ctx context.Context) (time.Duration, error) {
	now, last, err := l.look(ctx)
	if err != nil {
		return 0, err
	}
	asked := time.Now()
	wait := lookEvery
	for i := range l.entries {
		e := &l.entries[i]
		if last[i].IsZero() {
			continue // reported by look
		}
		l.checkAhead(e, last[i], now)
		if p := l.passed[e.Name]; p.After(last[i]) {
			last[i] = p
		}
		// Those before it may have taken their time, in which this one's ticks have passed.
		todo, next, dropped := plan(e.schedule, e.Missed, last[i], now.Add(time.Since(asked)), l.cfg.Ahead)
		if dropped {
			l.cfg.OnError(fmt.Errorf("periodic task %q: %w: all but the latest %d of those after %s",
				e.Name, ErrTicksDropped, maxMissed, last[i].Format(time.RFC3339)))
		}
		if len(todo) > roundLimit {
			todo, next = todo[:roundLimit], todo[roundLimit].tick
		}
		if err := l.add(ctx, e, todo); err != nil {
			return 0, err
		}
		if !next.IsZero() {
			wait = min(wait, next.Sub(now)-l.cfg.Ahead)
		}
	}
	// The wait counts from when Redis told its time. Its lower bound is for a clock
	// that runs a little faster than the server's, which would look again and again.
	return max(wait-time.Since(asked), time.Millisecond), nil
}

// checkAhead reports a last tick that nobody can have added by the clock as it is.
func (l *leader) checkAhead(e *entry, last, now time.Time) {
	ahead := last.Sub(now) > 2*maxAhead
	if ahead && !l.told[e.Name] {
		l.cfg.OnError(fmt.Errorf("periodic task %q: %w: %s, and it is %s",
			e.Name, ErrTickAhead, last.Format(time.RFC3339), now.Format(time.RFC3339)))
	}
	l.told[e.Name] = ahead
}

// look asks for the server's time and the last tick of each entry, or since when
// it is known. A value that nobody can have written is reported and left zero.
func (l *leader) look(ctx context.Context) (now time.Time, last []time.Time, err error) {
	args := make([]any, len(l.entries))
	for i := range l.entries {
		args[i] = l.entries[i].Name
	}
	reply, err := l.run(ctx, sinceScript, args).StringSlice()
	if err != nil {
		return now, nil, fmt.Errorf("look up ticks: %w", err)
	}
	if len(reply) != 1+len(args) {
		return now, nil, fmt.Errorf("look up ticks: %w: %d fields", ErrReply, len(reply))
	}
	us, err := strconv.ParseInt(reply[0], 10, 64)
	if err != nil {
		return now, nil, fmt.Errorf("look up ticks: %w: %w", ErrReply, err)
	}
	last = make([]time.Time, len(args))
	for i, value := range reply[1:] {
		info, err := parseTick(l.entries[i].Name, value)
		if err != nil {
			l.cfg.OnError(fmt.Errorf("look up ticks: %w", err))
			continue
		}
		last[i] = info.Last
		if last[i].IsZero() {
			last[i] = info.Since
		}
	}
	return time.UnixMicro(us).UTC(), last, nil
}

// add adds the tasks of one entry's ticks, in order. A queue that is full for one
// is so for all that follow, and their turn comes with the next round.
func (l *leader) add(ctx context.Context, e *entry, todo []planned) error {
	for _, p := range todo {
		t, err := e.build(p.tick)
		if err != nil {
			l.passed[e.Name] = p.tick
			l.cfg.OnError(fmt.Errorf("%s: %w", e.at(p.tick), err))
			continue
		}
		till := int64(0)
		if !p.till.IsZero() {
			till = dueMillis(p.till)
		}
		args := t.args([]any{e.Name, p.tick.UnixMilli(), till, l.q.cfg.MaxLength})
		letter, err := l.run(ctx, tickScript, args).Text()
		if err != nil {
			return fmt.Errorf("add %s: %w", e.at(p.tick), err)
		}
		switch letter {
		case "K", "O", "L":
			// The last of these: time went by since the plan was made. The next look decides.
		case "D":
			l.cfg.OnError(fmt.Errorf("add %s: %w: task %q", e.at(p.tick), ErrDuplicate, t.ID))
		case "F":
			return fmt.Errorf("add %s: %w", e.at(p.tick), ErrFull)
		default:
			return fmt.Errorf("add %s: %w: %q", e.at(p.tick), ErrReply, letter)
		}
	}
	return nil
}

// run runs a script that works on the ticks too.
func (l *leader) run(ctx context.Context, s *redis.Script, args []any) *redis.Cmd {
	ctx, cancel := context.WithTimeout(ctx, fetchLimit)
	defer cancel()
	return s.Run(ctx, l.q.rdb, append(slices.Clone(l.q.keys.all), l.q.keys.ticks()), args...)
}

// at names one tick in errors.
func (e *entry) at(tick time.Time) string {
	return fmt.Sprintf("periodic task %q at %s", e.Name, tick.UTC().Format(time.RFC3339Nano))
}

func (e *entry) build(tick time.Time) (t Task, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%w: %v\n%s", ErrPeriodicPanic, v, debug.Stack())
		}
	}()
	tick = tick.UTC()
	t = e.Task(tick)
	if t.ID == "" {
		t.ID = e.Name + "@" + tick.Format(time.RFC3339Nano)
	}
	t.Due = tick
	return t, t.validate()
}

// ticks is the hash of the last ticks, by name.
func (k keys) ticks() string { return k.prefix + "ticks" }

// TickInfo is how far a periodic task has come.
type TickInfo struct {
	Name string
	// Last is the last tick that was added; zero where there was none yet.
	Last time.Time
	// Since is when the name was first seen; zero once there was a tick.
	Since time.Time
}

// Ticks returns what is known of the periodic tasks, by name: also of those that
// no schedule has any more. Errors: those of Redis.
func (q *Queue) Ticks(ctx context.Context) ([]TickInfo, error) {
	values, err := q.rdb.HGetAll(ctx, q.keys.ticks()).Result()
	if err != nil {
		return nil, fmt.Errorf("list ticks: %w", err)
	}
	out := make([]TickInfo, 0, len(values))
	for name, value := range values {
		info, err := parseTick(name, value)
		if err != nil {
			return nil, fmt.Errorf("list ticks: %w", err)
		}
		out = append(out, info)
	}
	slices.SortFunc(out, func(a, b TickInfo) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// ForgetTicks forgets periodic tasks, for names that no schedule has any more;
// others begin anew, as on their first day. Tasks that were added stay. Errors:
// those of Redis.
func (q *Queue) ForgetTicks(ctx context.Context, names ...string) error {
	if len(names) == 0 {
		return nil
	}
	if err := q.rdb.HDel(ctx, q.keys.ticks(), names...).Err(); err != nil {
		return fmt.Errorf("forget ticks: %w", err)
	}
	return nil
}

// parseTick reads a value of the hash ticks; see lua/since.lua.
func parseTick(name, value string) (TickInfo, error) {
	text, fresh := strings.CutPrefix(value, "s")
	ms, err := strconv.ParseInt(text, 10, 64)
	if err != nil || ms < 0 || ms > math.MaxInt64/int64(time.Millisecond) {
		return TickInfo{}, fmt.Errorf("%w: last tick of %q is %q", ErrReply, name, value)
	}
	info := TickInfo{Name: name}
	if at := time.UnixMilli(ms).UTC(); fresh {
		info.Since = at
	} else {
		info.Last = at
	}
	return info, nil
}
