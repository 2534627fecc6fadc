package queue_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"flashsale/internal/redistest"
	"flashsale/queue"
)

const (
	tickPeriod = 20 * time.Millisecond
	tickAhead  = 200 * time.Millisecond
)

// plain is a periodic task whose payload says its tick.
func plain(name, spec string, missed queue.Missed) queue.Periodic {
	return queue.Periodic{Name: name, Spec: spec, Missed: missed, Task: func(tick time.Time) queue.Task {
		return queue.Task{Payload: []byte(tick.Format(time.RFC3339Nano))}
	}}
}

// tickOf reads the tick from the payload of a plain task.
func tickOf(t testing.TB, payload []byte) time.Time {
	t.Helper()
	tick, err := time.Parse(time.RFC3339Nano, string(payload))
	if err != nil {
		t.Error(err)
	}
	return tick
}

// background runs fn; the function returned ends its context and waits for it. It fails unless fn returns nil.
func background(t testing.TB, fn func(ctx context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- fn(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-result:
			if err != nil {
				t.Errorf("Schedule: %v", err)
			}
		case <-time.After(limit):
			t.Error("Schedule did not end")
		}
	})
	t.Cleanup(stop)
	return stop
}

// schedule runs Schedule with Ahead short, for specs whose ticks are far apart.
func schedule(t testing.TB, q *queue.Queue, cfg queue.ScheduleConfig, entries ...queue.Periodic) (stop func()) {
	t.Helper()
	if cfg.Ahead == 0 {
		cfg.Ahead = time.Millisecond
	}
	return background(t, func(ctx context.Context) error { return q.Schedule(ctx, entries, cfg) })
}

// often runs a schedule with a tick every tickPeriod.
func often(t testing.TB, q *queue.Queue, cfg queue.ScheduleConfig, entries ...queue.Periodic) (stop func()) {
	t.Helper()
	if cfg.Ahead == 0 {
		cfg.Ahead = tickAhead
	}
	return background(t, func(ctx context.Context) error { return q.ScheduleEvery(ctx, tickPeriod, entries, cfg) })
}

// diary notes what was handled, and when by the server's clock.
type diary struct {
	t   testing.TB
	rdb redis.UniversalClient

	mu   sync.Mutex
	runs []queue.Leased
}

// handle fails the test where a task starts before its tick.
func (d *diary) handle(ctx context.Context, tasks []queue.Leased) []error {
	now, err := d.rdb.Time(ctx).Result()
	if err != nil {
		return slices.Repeat([]error{err}, len(tasks))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, task := range tasks {
		if tick := tickOf(d.t, task.Payload); now.Before(tick) {
			d.t.Errorf("%s was taken at %v", task.ID, now)
		}
		d.runs = append(d.runs, task)
	}
	return nil
}

func (d *diary) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.runs)
}

// wantOnce fails unless each tick was handled once, with its own id; it returns the ticks in order.
func (d *diary) wantOnce(name string) []time.Time {
	d.t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	var ticks []time.Time
	for _, task := range d.runs {
		tick := tickOf(d.t, task.Payload)
		if want := name + "@" + tick.Format(time.RFC3339Nano); task.ID != want || tick.Location() != time.UTC {
			d.t.Errorf("id %s, want %s", task.ID, want)
		}
		ticks = append(ticks, tick)
	}
	slices.SortFunc(ticks, time.Time.Compare)
	for i := 1; i < len(ticks); i++ {
		if ticks[i].Equal(ticks[i-1]) {
			d.t.Errorf("tick %v came twice", ticks[i])
		}
	}
	return ticks
}

// wantNoGap fails unless the ticks follow each other.
func wantNoGap(t testing.TB, ticks []time.Time) {
	t.Helper()
	for i := 1; i < len(ticks); i++ {
		if gap := ticks[i].Sub(ticks[i-1]); gap != tickPeriod {
			t.Errorf("between tick %v and the next are %v", ticks[i-1], gap)
		}
	}
}

// noted returns the last tick that is noted of a name.
func lastNoted(t testing.TB, q *queue.Queue, name string) queue.TickInfo {
	t.Helper()
	infos, err := q.Ticks(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range infos {
		if info.Name == name {
			return info
		}
	}
	return queue.TickInfo{}
}

// note writes a name's value in the hash ticks.
func noteTick(t testing.TB, rdb redis.UniversalClient, prefix, name, value string) {
	t.Helper()
	if err := rdb.HSet(testContext(t), prefix+"ticks", name, value).Err(); err != nil {
		t.Fatal(err)
	}
}

func millis(tick time.Time) string { return strconv.FormatInt(tick.UnixMilli(), 10) }

// barrier is a periodic task that has missed a tick. Its Task makes nothing that
// could be added, and says that all entries before it have had their turn.
func barrier(t testing.TB, rdb redis.UniversalClient, prefix string) (p queue.Periodic, reached <-chan struct{}) {
	t.Helper()
	signal := make(chan struct{}, 1)
	p = plain("barrier", "@every 1h", queue.MissedLatest)
	p.Task = func(time.Time) queue.Task {
		select {
		case signal <- struct{}{}:
		default:
		}
		return queue.Task{Priority: -1}
	}
	noteTick(t, rdb, prefix, p.Name, millis(serverTime(t, rdb).Add(-90*time.Minute)))
	return p, signal
}

// complaints gathers what OnError is told.
type complaints struct {
	mu   sync.Mutex
	errs []error
}

func (c *complaints) add(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.errs = append(c.errs, err)
}

// count is how many of them are of a kind and have a text in them.
func (c *complaints) count(kind error, text string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, err := range c.errs {
		if errors.Is(err, kind) && strings.Contains(err.Error(), text) {
			n++
		}
	}
	return n
}

func (c *complaints) all() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.errs)
}

// TestSchedule_Once: three schedulers lead at once; each tick comes once, none is
// left out, and none starts early.
func TestSchedule_Once(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		prefix := redistest.Prefix(t)
		q := newQueue(t, rdb, queue.Config{Prefix: prefix})
		seen := diary{t: t, rdb: rdb}
		start(t, q, seen.handle, queue.RunConfig{})
		var stops []func()
		for range 3 {
			other := newQueue(t, redistest.Second(t, rdb), queue.Config{Prefix: prefix})
			stops = append(stops, often(t, other, queue.ScheduleConfig{OnError: func(err error) { t.Error(err) }},
				plain("every", "", queue.MissedAll)))
		}
		waitFor(t, func() bool { return seen.count() >= 25 })
		for _, stop := range stops {
			stop()
		}
		last := lastNoted(t, q, "every").Last
		waitFor(t, func() bool { return stats(t, q) == queue.Stats{} })
		ticks := seen.wantOnce("every")
		wantNoGap(t, ticks)
		if !ticks[len(ticks)-1].Equal(last) {
			t.Errorf("the last tick is noted as %v, and was %v", last, ticks[len(ticks)-1])
		}
	})
}

// TestSchedule_TwoNames: periodic tasks of one queue have ticks of their own.
func TestSchedule_TwoNames(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{})
		a, b := diary{t: t, rdb: rdb}, diary{t: t, rdb: rdb}
		start(t, q, queue.Each(1, func(ctx context.Context, task queue.Leased) error {
			to := &a
			if strings.HasPrefix(task.ID, "b@") {
				to = &b
			}
			return errors.Join(to.handle(ctx, []queue.Leased{task})...)
		}), queue.RunConfig{})
		stop := often(t, q, queue.ScheduleConfig{}, plain("a", "", queue.MissedAll), plain("b", "", queue.MissedAll))
		waitFor(t, func() bool { return a.count() >= 10 && b.count() >= 10 })
		stop()
		waitFor(t, func() bool { return stats(t, q) == queue.Stats{} })
		wantNoGap(t, a.wantOnce("a"))
		wantNoGap(t, b.wantOnce("b"))
		infos, err := q.Ticks(testContext(t))
		if err != nil || len(infos) != 2 || infos[0].Name != "a" || infos[1].Name != "b" {
			t.Errorf("%+v, %v", infos, err)
		}
	})
}

// holdTick makes a client hold its next script with an argument that says so, until released.
type holdTick struct {
	name    string
	held    chan struct{}
	release chan struct{}
	once    sync.Once
}

func (*holdTick) DialHook(next redis.DialHook) redis.DialHook { return next }
func (*holdTick) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
func (h *holdTick) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		// The tick's script has its task's id among its arguments, the other one only names.
		if slices.ContainsFunc(cmd.Args(), func(a any) bool { s, ok := a.(string); return ok && strings.HasPrefix(s, h.name+"@") }) {
			h.once.Do(func() {
				close(h.held)
				<-h.release
			})
		}
		return next(context.WithoutCancel(ctx), cmd)
	}
}

// TestSchedule_Stalls: a leader stalls between its decision and the deed. Another
// one goes on and its tasks are done; when the first wakes up it adds nothing twice.
func TestSchedule_Stalls(t *testing.T) {
	t.Parallel()
	for missed, name := range map[queue.Missed]string{queue.MissedLatest: "latest", queue.MissedAll: "all", queue.MissedSkip: "skip"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
				prefix := redistest.Prefix(t)
				q := newQueue(t, rdb, queue.Config{Prefix: prefix})
				seen := diary{t: t, rdb: rdb}
				start(t, q, seen.handle, queue.RunConfig{})
				second := redistest.Second(t, rdb)
				hold := &holdTick{name: "every", held: make(chan struct{}), release: make(chan struct{})}
				second.AddHook(hold)
				stalled := often(t, newQueue(t, second, queue.Config{Prefix: prefix}), queue.ScheduleConfig{}, plain("every", "", missed))
				receive(t, "the stall", hold.held)
				stop := often(t, q, queue.ScheduleConfig{}, plain("every", "", missed))
				waitFor(t, func() bool { return seen.count() >= 10 })
				close(hold.release)
				n := seen.count()
				waitFor(t, func() bool { return seen.count() >= n+10 })
				stop()
				stalled()
				waitFor(t, func() bool { return stats(t, q) == queue.Stats{} })
				seen.wantOnce("every")
			})
		})
	}
}

// TestSchedule_StallsAlone: nobody else led meanwhile. What the leader had decided
// is out of date when it wakes up, and the policy decides anew.
func TestSchedule_StallsAlone(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		for missed, name := range map[queue.Missed]string{queue.MissedLatest: "latest", queue.MissedSkip: "skip"} {
			prefix := redistest.Prefix(t)
			second := redistest.Second(t, rdb)
			hold := &holdTick{name: "every", held: make(chan struct{}), release: make(chan struct{})}
			second.AddHook(hold)
			q := newQueue(t, second, queue.Config{Prefix: prefix})
			stop := often(t, q, queue.ScheduleConfig{}, plain("every", "", missed))
			receive(t, "the stall", hold.held)
			decided := serverTime(t, rdb)
			waitFor(t, func() bool { return serverTime(t, rdb).After(decided.Add(2 * tickAhead)) })
			awake := serverTime(t, rdb)
			close(hold.release)
			waitFor(t, func() bool { return stats(t, q).Delayed+stats(t, q).Ready >= 5 })
			stop()
			late := 0
			for _, task := range append(list(t, q, queue.StateReady), list(t, q, queue.StateDelayed)...) {
				if tickOf(t, task.Payload).Before(awake) {
					late++
				}
			}
			if want := map[string]int{"latest": 1, "skip": 0}[name]; late > want {
				t.Errorf("%s: %d ticks were made up for, want at most %d", name, late, want)
			}
		}
	})
}

// TestSchedule_ReplyLost: the answers to some scripts are lost; no tick comes twice.
func TestSchedule_ReplyLost(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		prefix := redistest.Prefix(t)
		q := newQueue(t, rdb, queue.Config{Prefix: prefix})
		seen := diary{t: t, rdb: rdb}
		start(t, q, seen.handle, queue.RunConfig{})
		second := redistest.Second(t, rdb)
		var n atomic.Int64
		second.AddHook(tap{lose: func(name string) bool { return name == "evalsha" && n.Add(1)%3 == 0 && n.Load() < 20 }})
		var told complaints
		stop := often(t, newQueue(t, second, queue.Config{Prefix: prefix}), queue.ScheduleConfig{OnError: told.add, Ahead: time.Second},
			plain("every", "", queue.MissedAll))
		waitFor(t, func() bool { return seen.count() >= 50 })
		stop()
		waitFor(t, func() bool { return stats(t, q) == queue.Stats{} })
		wantNoGap(t, seen.wantOnce("every"))
		if told.count(errLost, "every") == 0 {
			t.Error("nobody was told")
		}
	})
}

// TestSchedule_First: a name that is new begins with its next tick, and its start
// is kept, so that a tick that nobody lived to see is made up for.
func TestSchedule_First(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		prefix := redistest.Prefix(t)
		q := newQueue(t, rdb, queue.Config{Prefix: prefix})
		before := serverTime(t, rdb).Add(-time.Millisecond)
		entry := plain("report", "@every 2h", queue.MissedLatest)
		stop := schedule(t, q, queue.ScheduleConfig{}, entry)
		waitFor(t, func() bool { return !lastNoted(t, q, "report").Since.IsZero() })
		stop()
		info := lastNoted(t, q, "report")
		if info.Since.Before(before) || info.Since.After(serverTime(t, rdb)) || !info.Last.IsZero() {
			t.Fatalf("%+v, started at %v", info, before)
		}
		wantStats(t, q, queue.Stats{})

		// A second start does not begin again.
		stop = schedule(t, q, queue.ScheduleConfig{}, entry, plain("other", "@every 2h", queue.MissedLatest))
		waitFor(t, func() bool { return !lastNoted(t, q, "other").Since.IsZero() })
		stop()
		if again := lastNoted(t, q, "report"); again != info {
			t.Fatalf("%+v, want %+v", again, info)
		}

		since := info.Since.Add(-3 * time.Hour)
		noteTick(t, rdb, prefix, "report", "s"+millis(since))
		stop = schedule(t, q, queue.ScheduleConfig{}, entry)
		waitFor(t, func() bool { return stats(t, q).Ready == 1 })
		stop()
		want := since.Truncate(time.Second).Add(2 * time.Hour)
		if got := lastNoted(t, q, "report"); !got.Last.Equal(want) || !got.Since.IsZero() {
			t.Fatalf("%+v, want %v", got, want)
		}
		take(t, q, "report@"+want.Format(time.RFC3339))
	})
}

// TestSchedule_Missed: ten ticks passed while nobody led.
func TestSchedule_Missed(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		last := serverTime(t, rdb).Truncate(time.Second).Add(-10*time.Hour - 30*time.Minute)
		var all []string
		for i := range 10 {
			all = append(all, "backup@"+last.Add(time.Duration(i+1)*time.Hour).UTC().Format(time.RFC3339))
		}
		for missed, want := range map[queue.Missed][]string{queue.MissedLatest: all[9:], queue.MissedAll: all, queue.MissedSkip: nil} {
			prefix := redistest.Prefix(t)
			q := newQueue(t, rdb, queue.Config{Prefix: prefix})
			noteTick(t, rdb, prefix, "backup", millis(last))
			var told complaints
			behind, reached := barrier(t, rdb, prefix)
			stop := schedule(t, q, queue.ScheduleConfig{OnError: told.add}, plain("backup", "@every 1h", missed), behind)
			receive(t, "the last entry's turn", reached)
			stop()
			if told.all() != told.count(queue.ErrInvalidTask, "barrier") {
				t.Errorf("told %v", told.errs)
			}
			wantStats(t, q, queue.Stats{Ready: len(want)})
			take(t, q, want...)
			wantLast := last
			if len(want) > 0 {
				wantLast = last.Add(10 * time.Hour)
			}
			if info := lastNoted(t, q, "backup"); !info.Last.Equal(wantLast) {
				t.Errorf("missed %v: last tick %v, want %v", missed, info.Last, wantLast)
			}
		}
	})
}

// TestSchedule_MissedBound: of very many missed ticks the latest 1000 are made up for.
func TestSchedule_MissedBound(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		prefix := redistest.Prefix(t)
		q := newQueue(t, rdb, queue.Config{Prefix: prefix})
		last := serverTime(t, rdb).Truncate(time.Second).Add(-1500*time.Hour - 30*time.Minute)
		noteTick(t, rdb, prefix, "backup", millis(last))
		var told complaints
		stop := schedule(t, q, queue.ScheduleConfig{OnError: told.add}, plain("backup", "@every 1h", queue.MissedAll))
		waitFor(t, func() bool { return lastNoted(t, q, "backup").Last.Equal(last.Add(1500 * time.Hour)) })
		stop()
		wantStats(t, q, queue.Stats{Ready: 1000})
		if oldest := list(t, q, queue.StateReady)[0].ID; oldest != "backup@"+last.Add(501*time.Hour).UTC().Format(time.RFC3339) {
			t.Errorf("the oldest is %s", oldest)
		}
		if told.count(queue.ErrTicksDropped, `"backup"`) != 1 || told.all() != 1 {
			t.Errorf("told %v", told.errs)
		}
	})
}

// TestSchedule_Respecified: a name goes on from its last tick, whatever its new spec,
// and a task that is done long ago is not added again.
func TestSchedule_Respecified(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		prefix := redistest.Prefix(t)
		q := newQueue(t, rdb, queue.Config{Prefix: prefix})
		last := serverTime(t, rdb).UTC().Truncate(24 * time.Hour).Add(-48 * time.Hour)
		noteTick(t, rdb, prefix, "report", millis(last.Add(-time.Hour)))
		run := func(spec string) []string {
			behind, reached := barrier(t, rdb, prefix)
			stop := schedule(t, q, queue.ScheduleConfig{}, plain("report", spec, queue.MissedAll), behind)
			receive(t, "the last entry's turn", reached)
			stop()
			f := dequeue(t, q, 100)
			ack(t, q, f.Tasks...)
			return names(f.Tasks)
		}
		want := []string{"report@" + last.Format(time.RFC3339), "report@" + last.Add(24*time.Hour).Format(time.RFC3339)}
		if got := run("0 0 * * *"); len(got) < 2 || !slices.Equal(got[:2], want) {
			t.Fatalf("daily: %v, want %v", got, want)
		}
		now := lastNoted(t, q, "report").Last
		if got := run("@daily"); len(got) > 1 {
			t.Fatalf("started again: %v", got)
		}
		// The last tick was less than 25 hours ago, so this spec has missed none or few.
		got := run("30 * * * *")
		if len(got) == 0 && serverTime(t, rdb).After(now.Add(30*time.Minute)) {
			t.Fatal("every hour: none")
		}
		for i, id := range got {
			if want := "report@" + now.Add(30*time.Minute+time.Duration(i)*time.Hour).Format(time.RFC3339); id != want {
				t.Errorf("every hour: %s, want %s", id, want)
			}
		}
	})
}

// TestSchedule_Restart: a scheduler that starts again and again adds each tick once and leaves none out.
func TestSchedule_Restart(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{})
		seen := diary{t: t, rdb: rdb}
		start(t, q, seen.handle, queue.RunConfig{})
		for i := range 6 {
			stop := often(t, q, queue.ScheduleConfig{}, plain("every", "", queue.MissedAll))
			waitFor(t, func() bool { return seen.count() >= 10*(i+1) })
			stop()
		}
		waitFor(t, func() bool { return stats(t, q) == queue.Stats{} })
		wantNoGap(t, seen.wantOnce("every"))
	})
}

// TestSchedule_RedisRestarts: Redis is killed and started again. What was added
// stays, and what was missed meanwhile comes, each once.
func TestSchedule_RedisRestarts(t *testing.T) {
	t.Parallel()
	srv := redistest.Real(t)
	rdb := redis.NewClient(redistest.Options(srv.Addr()))
	defer closeClient(t, rdb)
	q := newQueue(t, rdb, queue.Config{Lease: time.Minute})
	seen := diary{t: t, rdb: rdb}
	var told complaints
	stop := often(t, q, queue.ScheduleConfig{OnError: told.add}, plain("every", "", queue.MissedAll))
	for range 3 {
		last := lastNoted(t, q, "every").Last
		waitFor(t, func() bool { return lastNoted(t, q, "every").Last.After(last.Add(20 * tickPeriod)) })
		if err := srv.Kill(); err != nil {
			t.Fatal(err)
		}
		n := told.all()
		waitFor(t, func() bool { return told.all() > n })
		if err := srv.Start(); err != nil {
			t.Fatal(err)
		}
		waitFor(t, func() bool { return rdb.Ping(testContext(t)).Err() == nil })
	}
	last := lastNoted(t, q, "every").Last
	waitFor(t, func() bool { return lastNoted(t, q, "every").Last.After(last.Add(20 * tickPeriod)) })
	stop()
	// The worker comes now, so that no task was under way when Redis went.
	start(t, q, seen.handle, queue.RunConfig{})
	waitFor(t, func() bool { return stats(t, q) == queue.Stats{} })
	wantNoGap(t, seen.wantOnce("every"))
}

// TestSchedule_Full: a full queue loses no tick; they come in order when there is room.
func TestSchedule_Full(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		prefix := redistest.Prefix(t)
		q := newQueue(t, rdb, queue.Config{Prefix: prefix, MaxLength: 2})
		enqueue(t, q, queue.Task{ID: "a"}, queue.Task{ID: "b"})
		last := serverTime(t, rdb).Truncate(time.Second).Add(-3*time.Hour - 30*time.Minute)
		noteTick(t, rdb, prefix, "backup", millis(last))
		var told complaints
		schedule(t, q, queue.ScheduleConfig{OnError: told.add}, plain("backup", "@every 1h", queue.MissedAll))
		waitFor(t, func() bool { return told.count(queue.ErrFull, `"backup"`) >= 3 })
		wantStats(t, q, queue.Stats{Ready: 2})
		if info := lastNoted(t, q, "backup"); !info.Last.Equal(last) {
			t.Fatalf("noted %v", info)
		}
		id := func(i int) string { return "backup@" + last.Add(time.Duration(i)*time.Hour).UTC().Format(time.RFC3339) }
		for i, want := range []string{"a", "b", id(1), id(2), id(3)} {
			f := dequeue(t, q, 1)
			if len(f.Tasks) != 1 || f.Tasks[0].ID != want {
				t.Fatalf("took %v, want %s", names(f.Tasks), want)
			}
			ack(t, q, f.Tasks...)
			waitFor(t, func() bool { return stats(t, q).Ready == min(2, 4-i) })
		}
	})
}

// afterFull calls a function after the first answer that says that the queue is full.
type afterFull struct {
	call func()
	once sync.Once
}

func (*afterFull) DialHook(next redis.DialHook) redis.DialHook { return next }
func (*afterFull) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
func (a *afterFull) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if answer, ok := cmd.(*redis.Cmd); ok && answer.Val() == "F" {
			a.once.Do(a.call)
		}
		return err
	}
}

// TestSchedule_FullOrder: there is room again just after the oldest tick was refused. The next ones do not pass it.
func TestSchedule_FullOrder(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		prefix := redistest.Prefix(t)
		q := newQueue(t, rdb, queue.Config{Prefix: prefix})
		enqueue(t, q, numbered(3)...)
		last := serverTime(t, rdb).Truncate(time.Second).Add(-3*time.Hour - 30*time.Minute)
		noteTick(t, rdb, prefix, "backup", millis(last))
		second := redistest.Second(t, rdb)
		second.AddHook(&afterFull{call: func() {
			if _, err := q.Cancel(testContext(t), "t000001", "t000002", "t000003"); err != nil {
				t.Error(err)
			}
		}})
		stop := schedule(t, newQueue(t, second, queue.Config{Prefix: prefix, MaxLength: 3}), queue.ScheduleConfig{}, plain("backup", "@every 1h", queue.MissedAll))
		waitFor(t, func() bool { return lastNoted(t, q, "backup").Last.Equal(last.Add(3 * time.Hour)) })
		stop()
		wantStats(t, q, queue.Stats{Ready: 3})
	})
}

// TestSchedule_Duplicate: while the task of an earlier tick is in the queue under
// the same id or unique key, a tick is refused, told of, and done.
func TestSchedule_Duplicate(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		prefix := redistest.Prefix(t)
		q := newQueue(t, rdb, queue.Config{Prefix: prefix})
		last := serverTime(t, rdb).Truncate(time.Second).Add(-3*time.Hour - 30*time.Minute)
		same, unique := plain("same", "@every 1h", queue.MissedAll), plain("unique", "@every 1h", queue.MissedAll)
		same.Task = func(time.Time) queue.Task { return queue.Task{ID: "cleanup"} }
		unique.Task = func(time.Time) queue.Task { return queue.Task{Unique: "k", UniqueFreeOnDeath: true} }
		noteTick(t, rdb, prefix, "same", millis(last))
		noteTick(t, rdb, prefix, "unique", millis(last))
		var told complaints
		stop := schedule(t, q, queue.ScheduleConfig{OnError: told.add}, same, unique)
		waitFor(t, func() bool { return lastNoted(t, q, "unique").Last.Equal(last.Add(3 * time.Hour)) })
		stop()
		wantStats(t, q, queue.Stats{Ready: 2})
		if told.count(queue.ErrDuplicate, `"same"`) != 2 || told.count(queue.ErrDuplicate, `"unique"`) != 2 || told.all() != 4 {
			t.Errorf("told %v", told.errs)
		}
		take(t, q, "cleanup", "unique@"+last.Add(time.Hour).UTC().Format(time.RFC3339))
		if info := lastNoted(t, q, "same"); !info.Last.Equal(last.Add(3 * time.Hour)) {
			t.Errorf("noted %v", info)
		}
	})
}

// TestSchedule_Broken: a Task that panics or makes what cannot be added stops
// neither the others nor its own later ticks, and is called again by the next to lead.
func TestSchedule_Broken(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		prefix := redistest.Prefix(t)
		q := newQueue(t, rdb, queue.Config{Prefix: prefix})
		last := serverTime(t, rdb).Truncate(time.Second).Add(-3*time.Hour - 30*time.Minute)
		fail := func(how func() queue.Task) func(time.Time) queue.Task {
			return func(tick time.Time) queue.Task {
				if tick.Equal(last.Add(3 * time.Hour)) {
					return queue.Task{}
				}
				return how()
			}
		}
		panics, invalid, fine := plain("panics", "@every 1h", queue.MissedAll), plain("invalid", "@every 1h", queue.MissedAll), plain("fine", "@every 1h", queue.MissedAll)
		panics.Task = fail(func() queue.Task { panic("no template") })
		invalid.Task = fail(func() queue.Task { return queue.Task{Priority: 10} })
		never := plain("never", "@every 1h", queue.MissedLatest)
		var calls atomic.Int64
		never.Task = func(time.Time) queue.Task { calls.Add(1); panic("never works") }
		for _, name := range []string{"panics", "invalid", "fine", "never"} {
			noteTick(t, rdb, prefix, name, millis(last))
		}
		var told complaints
		again := make(chan struct{})
		stop := schedule(t, q, queue.ScheduleConfig{
			OnError: told.add,
			Lead: func(ctx context.Context, lead func(context.Context) error) error {
				term, cancel := context.WithCancel(ctx)
				defer cancel()
				go func() {
					select {
					case <-again:
						cancel()
					case <-term.Done():
					}
				}()
				return lead(term)
			},
		}, panics, invalid, never, fine, plain("seconds", "@every 1s", queue.MissedLatest))
		waitFor(t, func() bool { return lastNoted(t, q, "fine").Last.Equal(last.Add(3 * time.Hour)) })
		for _, name := range []string{"panics", "invalid"} {
			if info := lastNoted(t, q, name); !info.Last.Equal(last.Add(3 * time.Hour)) {
				t.Errorf("%s: noted %v", name, info)
			}
		}
		if told.count(queue.ErrPeriodicPanic, "no template") != 2 || told.count(queue.ErrInvalidTask, `"invalid"`) != 2 {
			t.Errorf("told %v", told.errs)
		}
		// The leader looks again, for the sake of another entry, and does not call it again.
		waitFor(t, func() bool { return !lastNoted(t, q, "seconds").Last.IsZero() })
		first := lastNoted(t, q, "seconds").Last
		waitFor(t, func() bool { return lastNoted(t, q, "seconds").Last.After(first) })
		if info := lastNoted(t, q, "never"); !info.Last.Equal(last) || calls.Load() != 1 {
			t.Errorf("noted %v after %d calls", info, calls.Load())
		}
		again <- struct{}{}
		waitFor(t, func() bool { return calls.Load() == 2 })
		stop()
		dequeue(t, q, 1) // promotes what is due
		added := slices.DeleteFunc(list(t, q, queue.StateReady), func(i queue.TaskInfo) bool { return strings.HasPrefix(i.ID, "seconds@") })
		if len(added) != 4 { // of five, one was taken
			t.Errorf("added %+v", added)
		}
	})
}

// TestSchedule_Lead: a leader is one for as long as it is let, Lead is asked again
// when it fails, and one that ends with Schedule is not complained of.
func TestSchedule_Lead(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{})
		refused := errors.New("somebody else leads")
		var told complaints
		terms := make(chan context.CancelFunc)
		asked := 0
		stop := often(t, q, queue.ScheduleConfig{OnError: told.add, Lead: func(ctx context.Context, lead func(context.Context) error) error {
			if asked++; asked%2 == 1 {
				return refused
			}
			term, cancel := context.WithCancel(ctx)
			defer cancel()
			select {
			case terms <- cancel:
			case <-ctx.Done():
				return fmt.Errorf("wait: %w", ctx.Err())
			}
			return lead(term)
		}}, plain("every", "", queue.MissedLatest))
		for range 3 {
			end := receive(t, "a term", terms)
			last := lastNoted(t, q, "every").Last
			waitFor(t, func() bool { return lastNoted(t, q, "every").Last.After(last.Add(5 * tickPeriod)) })
			end()
		}
		waitFor(t, func() bool { return told.count(refused, "lead schedule") >= 4 })
		last := lastNoted(t, q, "every").Last
		waitFor(t, func() bool { return serverTime(t, rdb).After(last.Add(3 * tickPeriod)) })
		if now := lastNoted(t, q, "every").Last; !now.Equal(last) {
			t.Errorf("tick %v came after the term had ended, at %v", now, last)
		}
		stop()
		if told.all() != told.count(refused, "") {
			t.Errorf("told %v", told.errs)
		}
	})
}

// TestSchedule_LeadEnds: what goes wrong when Schedule ends is told, too.
func TestSchedule_LeadEnds(t *testing.T) {
	t.Parallel()
	q := newQueue(t, redistest.Embedded(t), queue.Config{})
	release := errors.New("the lock could not be released")
	var told complaints
	leads := make(chan struct{})
	stop := often(t, q, queue.ScheduleConfig{OnError: told.add, Lead: func(ctx context.Context, lead func(context.Context) error) error {
		close(leads)
		return errors.Join(lead(ctx), release)
	}}, plain("every", "", queue.MissedLatest))
	receive(t, "leading", leads)
	stop()
	if told.count(release, "") != 1 || told.all() != 1 {
		t.Errorf("told %v", told.errs)
	}
}

// TestSchedule_ServerClock: only the server's clock counts, which here is years off.
func TestSchedule_ServerClock(t *testing.T) {
	t.Parallel()
	server := miniredis.RunT(t)
	rdb := redis.NewClient(redistest.Options(server.Addr()))
	defer closeClient(t, rdb)
	now := time.Date(2031, 5, 6, 7, 8, 57, 0, time.UTC)
	server.SetTime(now)
	prefix := redistest.Prefix(t)
	q := newQueue(t, rdb, queue.Config{Prefix: prefix})
	entry := plain("report", "* * * * *", queue.MissedLatest)
	var told complaints
	run := func() {
		t.Helper()
		stop := schedule(t, q, queue.ScheduleConfig{Ahead: 5 * time.Second, OnError: told.add}, entry)
		waitFor(t, func() bool { return stats(t, q).Delayed+stats(t, q).Ready > 0 })
		stop()
	}
	run()
	const first = "report@2031-05-06T07:09:00Z"
	if info := get(t, q, first); info.State != queue.StateDelayed || !info.At.Equal(now.Add(3*time.Second)) {
		t.Fatalf("%+v", info)
	}
	if f := dequeue(t, q, 1); len(f.Tasks) != 0 || f.Next != 3*time.Second {
		t.Fatalf("%+v", f)
	}
	server.SetTime(now.Add(2*time.Second + 999*time.Millisecond))
	if f := dequeue(t, q, 1); len(f.Tasks) != 0 {
		t.Fatalf("early: %+v", f)
	}
	server.SetTime(now.Add(3 * time.Second))
	ack(t, q, take(t, q, first)...)

	// The clock is set back: what was added is not added again, and it is told that nothing comes for long.
	server.SetTime(now.Add(-time.Hour))
	behind, reached := barrier(t, rdb, prefix)
	stop := schedule(t, q, queue.ScheduleConfig{OnError: told.add}, entry, behind)
	receive(t, "the last entry's turn", reached)
	stop()
	wantStats(t, q, queue.Stats{})
	if told.count(queue.ErrTickAhead, `"report"`) != 1 || told.all() != 1+told.count(queue.ErrInvalidTask, "barrier") {
		t.Fatalf("told %v", told.errs)
	}
	if err := q.ForgetTicks(testContext(t), "report", "nobody"); err != nil {
		t.Fatal(err)
	}
	run()
	get(t, q, "report@2031-05-06T06:09:00Z")
}

// TestSchedule_Idle: a leader whose next tick is far away asks Redis now and then.
func TestSchedule_Idle(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		second := redistest.Second(t, rdb)
		var commands atomic.Int64
		second.AddHook(tap{seen: func(name string) {
			if strings.HasPrefix(name, "eval") {
				commands.Add(1)
			}
		}})
		q := newQueue(t, second, queue.Config{})
		stop := schedule(t, q, queue.ScheduleConfig{}, plain("report", "@every 1h", queue.MissedLatest))
		waitFor(t, func() bool { return commands.Load() > 0 })
		<-time.After(2 * time.Second)
		stop()
		// The first is sent twice, where the server does not know the script.
		if n := commands.Load(); n > 2 {
			t.Errorf("%d commands in two seconds", n)
		}
	})
}

// TestSchedule_Damaged: a value that nobody can have written is told of, and the others go on.
func TestSchedule_Damaged(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		for _, value := range []string{"", "s", "x", "-1", "99999999999999999999", "1.5"} {
			prefix := redistest.Prefix(t)
			q := newQueue(t, rdb, queue.Config{Prefix: prefix})
			noteTick(t, rdb, prefix, "bad", value)
			var told complaints
			stop := often(t, q, queue.ScheduleConfig{OnError: told.add}, plain("bad", "", queue.MissedAll), plain("good", "", queue.MissedAll))
			waitFor(t, func() bool { s := stats(t, q); return s.Delayed+s.Ready > 0 })
			stop()
			added := append(list(t, q, queue.StateDelayed), list(t, q, queue.StateReady)...)
			if told.count(queue.ErrReply, `"bad"`) == 0 || slices.ContainsFunc(added, func(i queue.TaskInfo) bool { return !strings.HasPrefix(i.ID, "good@") }) {
				t.Errorf("%q: told %v, added %+v", value, told.errs, added)
			}
			if infos, err := q.Ticks(testContext(t)); !errors.Is(err, queue.ErrReply) {
				t.Errorf("%q: %+v, %v", value, infos, err)
			}
		}
	})
}

func TestSchedule_Config(t *testing.T) {
	t.Parallel()
	rdb := redistest.Embedded(t)
	second := redistest.Second(t, rdb)
	second.AddHook(tap{seen: func(name string) { t.Errorf("%s was sent", name) }})
	q := newQueue(t, second, queue.Config{})
	ok := plain("ok", "@daily", queue.MissedLatest)
	with := func(change func(p *queue.Periodic)) []queue.Periodic {
		p := plain("report", "@daily", queue.MissedLatest)
		change(&p)
		return []queue.Periodic{ok, p}
	}
	for name, c := range map[string]struct {
		entries []queue.Periodic
		cfg     queue.ScheduleConfig
		want    []string
	}{
		"no name":   {entries: with(func(p *queue.Periodic) { p.Name = "" }), want: []string{"task 1", "Name"}},
		"long name": {entries: with(func(p *queue.Periodic) { p.Name = strings.Repeat("n", 201) }), want: []string{"task 1", "Name", "201"}},
		"duplicate": {entries: with(func(p *queue.Periodic) { p.Name = "ok" }), want: []string{`"ok"`, "Name"}},
		"no task":   {entries: with(func(p *queue.Periodic) { p.Task = nil }), want: []string{`"report"`, "Task"}},
		"missed":    {entries: with(func(p *queue.Periodic) { p.Missed = 3 }), want: []string{`"report"`, "Missed"}},
		"spec":      {entries: with(func(p *queue.Periodic) { p.Spec = "61 * * * *" }), want: []string{`"report"`, "Spec", "61"}},
		"no spec":   {entries: with(func(p *queue.Periodic) { p.Spec = "" }), want: []string{`"report"`, "Spec"}},
		"never":     {entries: with(func(p *queue.Periodic) { p.Spec = "0 0 31 4 *" }), want: []string{`"report"`, "Spec", "five years"}},
		"ahead":     {entries: []queue.Periodic{ok}, cfg: queue.ScheduleConfig{Ahead: time.Microsecond}, want: []string{"Ahead"}},
		"far ahead": {entries: []queue.Periodic{ok}, cfg: queue.ScheduleConfig{Ahead: time.Hour}, want: []string{"Ahead"}},
		"too many":  {entries: make([]queue.Periodic, 1001), want: []string{"1001"}},
	} {
		err := q.Schedule(testContext(t), c.entries, c.cfg)
		if !errors.Is(err, queue.ErrConfig) {
			t.Errorf("%s: %v, want ErrConfig", name, err)
			continue
		}
		for _, part := range c.want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %v does not say %s", name, err, part)
			}
		}
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if err := q.Schedule(ended, []queue.Periodic{ok}, queue.ScheduleConfig{}); err != nil {
		t.Errorf("an ended context: %v", err)
	}
}

// TestSchedule_Names: the longest name, many names, and odd ones.
func TestSchedule_Names(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		prefix := redistest.Prefix(t)
		q := newQueue(t, rdb, queue.Config{Prefix: prefix})
		entries := []queue.Periodic{plain(strings.Repeat("n", 200), "@every 1m", queue.MissedLatest)}
		for _, name := range oddities {
			entries = append(entries, plain(name, "@every 1m", queue.MissedLatest))
		}
		for i := range 60 {
			entries = append(entries, plain(fmt.Sprintf("many%d", i), "@every 1m", queue.MissedLatest))
		}
		// The last of them is known, and has missed a tick.
		entries = append(entries, plain("known", "@every 1h", queue.MissedLatest))
		last := serverTime(t, rdb).Truncate(time.Second).Add(-90 * time.Minute)
		noteTick(t, rdb, prefix, "known", millis(last))
		stop := schedule(t, q, queue.ScheduleConfig{Ahead: time.Minute, OnError: func(err error) { t.Error(err) }}, entries...)
		waitFor(t, func() bool {
			infos, err := q.Ticks(testContext(t))
			return err == nil && len(infos) == len(entries) && !slices.ContainsFunc(infos, func(i queue.TickInfo) bool { return i.Last.IsZero() || i.Last.Equal(last) })
		})
		stop()
		if info := lastNoted(t, q, "known"); !info.Last.Equal(last.Add(time.Hour)) {
			t.Errorf("known at %v: %+v", last, info)
		}
		if err := q.ForgetTicks(testContext(t)); err != nil {
			t.Error(err)
		}
	})
}
