package queue_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/redistest"
	"flashsale/lock"
	"flashsale/queue"
)

// One process at a time adds the tasks of the schedule: the one that has the lock.
func ExampleQueue_Schedule() {
	q, rdb, closeAll := exampleQueue()
	defer closeAll()
	ctx, stop := context.WithCancel(context.Background())

	locks, err := lock.New(rdb, lock.Config{})
	must(err)
	scheduled := make(chan error, 1)
	go func() {
		scheduled <- q.Schedule(ctx, []queue.Periodic{{
			Name: "carts",
			Spec: "@every 1s",
			Task: func(tick time.Time) queue.Task { return queue.Task{Type: "expire-carts"} },
		}, {
			Name:   "report",
			Spec:   "CRON_TZ=Europe/Berlin 0 6 * * 1-5",
			Task:   func(tick time.Time) queue.Task { return queue.Task{Payload: []byte(tick.Format(time.DateOnly))} },
			Missed: queue.MissedAll,
		}}, queue.ScheduleConfig{
			Lead: func(ctx context.Context, lead func(context.Context) error) error {
				return locks.Do(ctx, "schedule", func(ctx context.Context, _ *lock.Lock) error { return lead(ctx) })
			},
		})
	}()
	must(q.Run(ctx, queue.Each(1, func(_ context.Context, t queue.Leased) error {
		name, tick, _ := strings.Cut(t.ID, "@")
		at, err := time.Parse(time.RFC3339, tick)
		must(err)
		fmt.Println(name, t.Type, "early:", time.Now().Before(at))
		stop() // the example ends with its first task
		return nil
	}), queue.RunConfig{Batch: 1, Workers: 1}))
	must(<-scheduled)
	must(locks.Close(context.Background()))
	// Output: carts expire-carts early: false
}

// lockVar tells a scheduling process whether a lock chooses the leader ("yes").
const lockVar = "QUEUE_TEST_LOCK"

// scheduler starts a process that runs the schedule "every" until its input ends.
func scheduler(t *testing.T, rdb *redis.Client, prefix string, locked bool) *redistest.Child {
	t.Helper()
	choice := "no"
	if locked {
		choice = "yes"
	}
	// The name of the test on top, which is what the further process runs.
	name, _, _ := strings.Cut(t.Name(), "/")
	return redistest.Reexec(t, name, addrVar+"="+rdb.Options().Addr, prefixVar+"="+prefix, lockVar+"="+choice)
}

// runScheduler is what a scheduling process does. It says when it leads.
func runScheduler(t *testing.T) {
	rdb := redis.NewClient(redistest.Options(os.Getenv(addrVar)))
	defer rdb.Close()
	prefix := os.Getenv(prefixVar)
	cfg := queue.ScheduleConfig{Lead: func(ctx context.Context, lead func(context.Context) error) error {
		redistest.Say("leads")
		return lead(ctx)
	}}
	if os.Getenv(lockVar) == "yes" {
		locks, err := lock.New(rdb, lock.Config{TTL: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := locks.Close(context.Background()); err != nil {
				t.Error(err)
			}
		}()
		alone := cfg.Lead
		cfg.Lead = func(ctx context.Context, lead func(context.Context) error) error {
			return locks.Do(ctx, prefix+"schedule", func(ctx context.Context, _ *lock.Lock) error { return alone(ctx, lead) })
		}
	}
	stop := often(t, newQueue(t, rdb, queue.Config{Prefix: prefix}), cfg, plain("every", "", queue.MissedAll))
	var b [1]byte
	for _, err := os.Stdin.Read(b[:]); err == nil; _, err = os.Stdin.Read(b[:]) {
		t.Error("nothing was to be read")
	}
	stop()
}

// leads waits until one of the processes says that it leads.
func leads(t *testing.T, children ...*redistest.Child) (leader, other *redistest.Child) {
	t.Helper()
	a, b := children[0], children[len(children)-1]
	select {
	case line := <-a.Lines():
		leader, other = a, b
		wantLeads(t, line)
	case line := <-b.Lines():
		leader, other = b, a
		wantLeads(t, line)
	case <-time.After(limit):
		t.Fatal("no process leads")
	}
	return leader, other
}

func wantLeads(t *testing.T, line string) {
	t.Helper()
	if line != "leads" {
		t.Fatalf("a process said %q", line)
	}
}

// end lets a process come to its end by itself.
func end(t *testing.T, c *redistest.Child) {
	t.Helper()
	if err := c.Stdin().Close(); err != nil {
		t.Error(err)
	}
	if err := c.Wait(); err != nil {
		t.Error(err)
	}
}

// TestSchedule_LeaderKilled: the process that leads is killed, again and again; the
// next one goes on where it was, and makes up for the ticks between.
func TestSchedule_LeaderKilled(t *testing.T) {
	if redistest.IsChild() {
		runScheduler(t)
		return
	}
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		prefix := redistest.Prefix(t)
		q := newQueue(t, rdb, queue.Config{Prefix: prefix})
		seen := diary{t: t, rdb: rdb}
		start(t, q, seen.handle, queue.RunConfig{})
		leader, other := leads(t, scheduler(t, rdb, prefix, true), scheduler(t, rdb, prefix, true))
		for range 2 {
			n := seen.count()
			waitFor(t, func() bool { return seen.count() >= n+10 })
			if err := leader.Kill(); err != nil {
				t.Fatal(err)
			}
			leader, other = leads(t, other, scheduler(t, rdb, prefix, true))
		}
		n := seen.count()
		waitFor(t, func() bool { return seen.count() >= n+10 })
		end(t, leader)
		leads(t, other) // a lock that is given back is taken at once
		end(t, other)
		waitFor(t, func() bool { return stats(t, q) == queue.Stats{} })
		wantNoGap(t, seen.wantOnce("every"))
	})
}

// TestSchedule_LeaderStopped: the process that leads is stopped (SIGSTOP) until
// another leads, and goes on then, with a lock and without one.
func TestSchedule_LeaderStopped(t *testing.T) {
	if redistest.IsChild() {
		runScheduler(t)
		return
	}
	t.Parallel()
	for _, locked := range []bool{true, false} {
		t.Run(fmt.Sprintf("lock=%v", locked), func(t *testing.T) {
			t.Parallel()
			redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
				prefix := redistest.Prefix(t)
				q := newQueue(t, rdb, queue.Config{Prefix: prefix})
				seen := diary{t: t, rdb: rdb}
				start(t, q, seen.handle, queue.RunConfig{})
				leader, other := leads(t, scheduler(t, rdb, prefix, locked), scheduler(t, rdb, prefix, locked))
				for range 2 {
					n := seen.count()
					waitFor(t, func() bool { return seen.count() >= n+10 })
					if err := leader.Pause(); err != nil {
						t.Fatal(err)
					}
					if locked {
						leads(t, other)
					}
					n = seen.count()
					waitFor(t, func() bool { return seen.count() >= n+10 })
					if err := leader.Continue(); err != nil {
						t.Fatal(err)
					}
					leader, other = other, leader
				}
				end(t, leader)
				end(t, other)
				waitFor(t, func() bool { return stats(t, q) == queue.Stats{} })
				wantNoGap(t, seen.wantOnce("every"))
			})
		})
	}
}
