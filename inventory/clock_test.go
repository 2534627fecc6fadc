package inventory

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// TestClock_FollowsRedis: however wrong the host's clock is, the Clock shows the time of the
// server that runs the purchase script.
func TestClock_FollowsRedis(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		for _, skew := range []time.Duration{0, 5 * time.Minute, -5 * time.Minute} {
			const partitions = 5
			c := NewClock(rdb, partitions, func() time.Time { return time.Now().Add(skew) })
			if c.Offset() != 0 {
				t.Errorf("offset %v before the first measurement", c.Offset())
			}
			// On a busy machine a measurement may run into its own limit.
			await.True(t, "a measurement", func() bool { return c.Measure(await.Context(t)) == nil })
			if (c.Offset() + skew).Abs() > time.Minute {
				t.Errorf("skew %v: offset %v", skew, c.Offset())
			}
			for item := range 20 {
				id := "item-" + strconv.Itoa(item)
				key := saleKeyOf(id, partitions)
				before := scriptTime(t, rdb, key)
				now := c.ItemNow(id)
				after := scriptTime(t, rdb, key)
				uncertainty := uncertaintyOf(c)
				if now.Before(before.Add(-uncertainty)) || now.After(after.Add(uncertainty)) {
					t.Errorf("skew %v, item %s: %v is not within %v to %v, give or take %v", skew, id, now, before, after, uncertainty)
				}
			}
		}
	})
}

func saleKeyOf(item string, partitions int) string { return keys{partitions}.sale(item) }

// scriptTime is the time that a script reads on the key's server.
func scriptTime(t *testing.T, rdb redis.UniversalClient, key string) time.Time {
	t.Helper()
	v, err := rdb.Eval(await.Context(t), "return redis.call('TIME')", []string{key}).StringSlice()
	if err != nil || len(v) != 2 {
		t.Fatal(v, err)
	}
	s, err1 := strconv.ParseInt(v[0], 10, 64)
	us, err2 := strconv.ParseInt(v[1], 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	return time.Unix(s, us*1000)
}

// uncertaintyOf is the largest error that the offsets may have, including how far the clocks can
// have drifted since.
func uncertaintyOf(c *Clock) time.Duration {
	most := time.Millisecond
	for _, r := range c.known {
		most = max(most, r.uncertainty+time.Millisecond)
	}
	return most
}

// toldTime answers TIME instead of a server.
type toldTime struct{ tell func() (time.Time, error) }

func (toldTime) DialHook(next redis.DialHook) redis.DialHook { return next }
func (toldTime) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h toldTime) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		asked, ok := cmd.(*redis.TimeCmd)
		if !ok {
			return next(ctx, cmd)
		}
		at, err := h.tell()
		asked.SetVal(at)
		asked.SetErr(err)
		return err
	}
}

// TestClock_Partitions: on a cluster each item goes by the clock of its own master.
func TestClock_Partitions(t *testing.T) {
	t.Parallel()
	shared := redistest.Cluster(t)
	o := redistest.ClusterOptions(shared.Options().Addrs...)
	ahead := shared.Options().Addrs[1]
	o.NewClient = func(o *redis.Options) *redis.Client {
		c := redis.NewClient(o)
		c.AddHook(toldTime{func() (time.Time, error) {
			if o.Addr == ahead {
				return time.Now().Add(time.Hour), nil
			}
			return time.Now(), nil
		}})
		return c
	}
	rdb := redis.NewClusterClient(o)
	defer rdb.Close()
	const partitions = 24
	c := NewClock(rdb, partitions, time.Now)
	if err := c.Measure(await.Context(t)); err != nil {
		t.Fatal(err)
	}
	found := 0
	for p := range partitions {
		node, err := rdb.MasterForKey(await.Context(t), c.keys.epoch(p))
		if err != nil {
			t.Fatal(err)
		}
		isAhead := time.Until(c.at(p)) > 30*time.Minute
		if isAhead != (node.Options().Addr == ahead) {
			t.Errorf("partition %d on %s: %v from now", p, node.Options().Addr, time.Until(c.at(p)))
		}
		if isAhead {
			found++
		}
	}
	if found == 0 || found == partitions {
		t.Errorf("%d of %d partitions are on the node that is ahead: the test saw too little", found, partitions)
	}
	if c.Offset() < 30*time.Minute {
		t.Errorf("the largest offset is %v", c.Offset())
	}
}

// TestClock_Run: the next measurement notices a clock that was set; while Redis does not
// answer, the last measurement stays.
func TestClock_Run(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		errAway := errors.New("away")
		var ahead atomic.Int64
		var away atomic.Bool
		rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
		defer rdb.Close()
		rdb.AddHook(toldTime{func() (time.Time, error) {
			if away.Load() {
				return time.Time{}, errAway
			}
			return time.Now().Add(time.Duration(ahead.Load())), nil
		}})
		c := NewClock(rdb, 3, time.Now)
		ctx, cancel := context.WithCancel(t.Context())
		var failures atomic.Int64
		go c.Run(ctx, func(err error) {
			if !errors.Is(err, errAway) {
				t.Errorf("measurement failed: %v", err)
			}
			failures.Add(1)
		})
		after := func(ahead time.Duration, failed int64) {
			t.Helper()
			time.Sleep(clockEvery + time.Millisecond) //nolint:forbidigo // virtual time
			synctest.Wait()
			for p := range 3 {
				if got := time.Until(c.at(p)); got != ahead {
					t.Errorf("partition %d is %v ahead, want %v", p, got, ahead)
				}
			}
			if failures.Load() != failed {
				t.Errorf("%d failures, want %d", failures.Load(), failed)
			}
		}
		after(0, 0)
		ahead.Store(int64(time.Minute))
		after(time.Minute, 0)
		away.Store(true)
		ahead.Store(0)
		after(time.Minute, 1)
		away.Store(false)
		after(0, 1)
		cancel()
		synctest.Wait()
	})
}

// TestClock_Silent: the Clock is the host's clock if Redis has never answered.
func TestClock_Silent(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer rdb.Close()
	rdb.AddHook(toldTime{func() (time.Time, error) { return time.Time{}, errors.New("no answer") }})
	at := time.Date(2030, 1, 2, 3, 4, 5, 6, time.UTC)
	c := NewClock(rdb, 2, func() time.Time { return at })
	if err := c.Measure(await.Context(t)); err == nil {
		t.Error("measured nothing without an error")
	}
	if c.Offset() != 0 || !c.Now().Equal(at) || !c.ItemNow("x").Equal(at) {
		t.Errorf("offset %v, now %v", c.Offset(), c.Now())
	}
}

func TestReading_Replaces(t *testing.T) {
	t.Parallel()
	start := time.Date(2030, 1, 2, 3, 4, 5, 6, time.UTC)
	was := reading{offset: time.Second, uncertainty: time.Millisecond, at: start}
	for name, c := range map[string]struct {
		offset, uncertainty, later time.Duration
		want                       bool
	}{
		"as good":                           {time.Second, time.Millisecond, 0, true},
		"worse":                             {time.Second, 50 * time.Millisecond, 5 * time.Second, false},
		"worse, and off by less":            {time.Second + 40*time.Millisecond, 50 * time.Millisecond, 5 * time.Second, false},
		"worse, but the clock was set":      {2 * time.Second, 50 * time.Millisecond, 5 * time.Second, true},
		"worse, but the clock was set back": {0, 50 * time.Millisecond, 5 * time.Second, true},
		"worse, after minutes of drift":     {time.Second, 50 * time.Millisecond, 2 * time.Minute, true},
	} {
		r := reading{offset: c.offset, uncertainty: c.uncertainty, at: start.Add(c.later)}
		if got := r.replaces(was); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
