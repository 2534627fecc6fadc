package admission

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/pause"
	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/inventory"
	"flashsale/order/ordertest"
	"flashsale/queue"
)

// looks feeds a gauge with the reads of a queue at a given pace of orders per second, one
// every tenth of a second.
type looks struct {
	gauge
	cfg  PressureConfig
	now  time.Time
	load queue.Load
	room int
}

func newLooks(room int) *looks {
	l := &looks{cfg: NewPressure(PressureConfig{}).cfg, now: time.Unix(1_000_000, 0), room: room}
	l.pace = -1
	return l
}

func (l *looks) see(n, length, perSecond int, oldest time.Duration) *queueState {
	for range n {
		l.now = l.now.Add(l.cfg.Every)
		l.load.Done += int64(perSecond) / int64(time.Second/l.cfg.Every)
		l.load.Length, l.load.Active, l.load.OldestReady = length, length, oldest
		l.note(&l.cfg, l.load, l.room, l.now)
	}
	return l.state.Load()
}

func TestPressure_Estimate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name      string
		room      int
		length    int
		perSecond int
		oldest    time.Duration
		shut      bool
		late      bool
		from, to  time.Duration
	}{
		{"at rest", 1000, 0, 0, 0, false, false, 0, 0},
		{"busy", 10_000, 2000, 1000, 2 * time.Second, false, false, 1900 * time.Millisecond, 2100 * time.Millisecond},
		{"late", 10_000, 6000, 1000, 6 * time.Second, false, true, 5900 * time.Millisecond, 6100 * time.Millisecond},
		{"full", 5000, 5000, 1000, 5 * time.Second, true, false, 4900 * time.Millisecond, 5100 * time.Millisecond},
		{"full for an instant", 10, 10, 1000, 0, false, false, 0, 20 * time.Millisecond},
		{"full and stopped", 10, 10, 0, time.Minute, true, true, paceless, paceless},
		{"stopped with all in the workers' hands", 10_000, 10, 0, 0, false, true, paceless, paceless},
		{"endless", 2_000_000, 1_000_000, 1000, time.Hour, false, true, longestWait, longestWait},
	} {
		got := newLooks(c.room).see(60, c.length, c.perSecond, c.oldest)
		if got.shut != c.shut || got.late != c.late || got.wait < c.from || got.wait > c.to {
			t.Errorf("%s: shut %v, late %v, %v to wait", c.name, got.shut, got.late, got.wait)
		}
	}
}

// TestPressure_Reopens: a full queue drains, and purchases are admitted when a tenth of it
// is free, well before the workers are idle.
func TestPressure_Reopens(t *testing.T) {
	t.Parallel()
	l := newLooks(5000)
	for _, c := range []struct {
		length int
		shut   bool
	}{{4999, false}, {5000, true}, {4999, true}, {4501, true}, {4500, false}, {4999, false}, {5000, true}} {
		if got := l.see(1, c.length, 1000, time.Second); got.shut != c.shut {
			t.Errorf("at %d of 5000: shut %v", c.length, got.shut)
		}
	}
	l.load.Minute++ // the count starts again
	l.load.Done = 0
	if got := l.see(1, 5000, 1000, time.Second); !got.shut || got.wait < 4*time.Second {
		t.Errorf("in another minute: %+v", got)
	}
}

// TestPressure_Volatile: if only a commit is an answer, purchases that would wait for a
// late commit are refused; otherwise they are accepted.
func TestPressure_Volatile(t *testing.T) {
	t.Parallel()
	for _, volatile := range []bool{false, true} {
		p := NewPressure(PressureConfig{Queues: make([]Loader, 1), Partition: func(string) int { return 0 }, Volatile: volatile})
		for _, late := range []bool{false, true} {
			p.of[0].state.Store(&queueState{late: late, wait: 7 * time.Second})
			wait, err := p.Admit("item")
			if !late || !volatile {
				if err != nil {
					t.Errorf("volatile %v, late %v: %v", volatile, late, err)
				}
			} else if !errors.Is(err, inventory.ErrOverloaded) || wait != 7*time.Second {
				t.Errorf("volatile %v, late %v: %v, %v to wait", volatile, late, err, wait)
			}
			if p.Late("item") != late {
				t.Errorf("volatile %v: late is %v, want %v", volatile, p.Late("item"), late)
			}
		}
	}
}

// TestPressure_Minutes: every read falls into another minute of the queue's count; a count
// above zero shows that orders are done.
func TestPressure_Minutes(t *testing.T) {
	t.Parallel()
	for _, done := range []int64{1, 0} {
		l := newLooks(1000)
		for range 60 {
			l.load.Minute++
			l.load.Done = done
			l.see(1, 10, 0, 0)
		}
		if got := l.state.Load(); got.late != (done == 0) {
			t.Errorf("%d done in each minute: late %v", done, got.late)
		}
	}
}

// stalled is a queue whose orders are all leased by workers that cannot commit.
type stalled struct {
	orders  atomic.Int64
	delayed atomic.Int64 // of the orders
	looks   atomic.Int64
}

func (s *stalled) Load(context.Context) (queue.Load, error) {
	s.looks.Add(1)
	return queue.Load{Length: int(s.orders.Load()), Active: int(s.orders.Load() - s.delayed.Load())}, nil
}
func (*stalled) MaxLength() int { return 1000 }

// TestPressure_Lull has buyers return after a while in which no order was committed: the
// first of them is refused instead of queued behind the others. An empty queue without
// purchases is not read.
func TestPressure_Lull(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := new(stalled)
		p := NewPressure(PressureConfig{Queues: []Loader{q}, Partition: func(string) int { return 0 }, Volatile: true})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- p.Run(ctx) }()
		admit := func() error {
			_, err := p.Admit("item")
			return err
		}
		if err := admit(); err != nil {
			t.Errorf("an empty queue: %v", err)
		}
		q.orders.Store(3)
		pause.For(ctx, time.Second)
		if err := admit(); err != nil {
			t.Errorf("orders of a second: %v", err)
		}
		before := q.looks.Load()
		pause.For(ctx, time.Minute)
		if n := q.looks.Load() - before; n < 50 || n > 100 {
			t.Errorf("%d reads of a queue with orders in a minute without buyers, want about one a second", n)
		}
		if err := admit(); !errors.Is(err, inventory.ErrOverloaded) {
			t.Errorf("after a minute without a commit: %v, want %v", err, inventory.ErrOverloaded)
		}
		q.orders.Store(2)
		q.delayed.Store(2) // they are retried later, which refuses no purchase
		pause.For(ctx, time.Minute)
		if err := admit(); err != nil {
			t.Errorf("once only retries are left: %v", err)
		}
		pause.For(ctx, 3*time.Second)
		before = q.looks.Load()
		pause.For(ctx, time.Minute)
		if n := q.looks.Load() - before; n != 0 {
			t.Errorf("%d reads of an empty queue without buyers", n)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestPressure reads a real queue: the answers follow the state of the queue while there
// are purchases.
func TestPressure(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := ordertest.NewQueue(t, rdb, queue.Config{MaxLength: 20})
		p := NewPressure(PressureConfig{
			Queues: []Loader{q}, Partition: func(string) int { return 0 }, MaxAge: 300 * time.Millisecond, Every: 10 * time.Millisecond,
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- p.Run(ctx) }()
		defer func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}()
		if _, err := p.Admit("item"); err != nil || p.Late("item") {
			t.Error("an empty queue refuses purchases")
		}
		var tasks []queue.Task
		for _, x := range ordertest.Distinct("o", "item", 20) {
			tasks = append(tasks, queue.Task{ID: x.ID, Payload: []byte(x.Payload())})
		}
		if _, err := q.Enqueue(await.Context(t), tasks...); err != nil {
			t.Fatal(err)
		}
		await.True(t, "purchases to be refused", func() bool { _, err := p.Admit("item"); return errors.Is(err, inventory.ErrOverloaded) })
		await.True(t, "the orders are late", func() bool { return p.Late("item") })
		if wait := p.Wait("item"); wait < time.Second {
			t.Errorf("wait %v for orders without a worker", wait)
		}
		got, err := q.Dequeue(await.Context(t), 20)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := q.Ack(await.Context(t), got.Tasks...); err != nil {
			t.Fatal(err)
		}
		await.True(t, "the orders are done", func() bool { return !p.Late("item") })
		await.True(t, "purchases to be admitted", func() bool { _, err := p.Admit("item"); return err == nil })
	})
}

// failingDatabase is a database that cannot write.
type failingDatabase struct{ err error }

func (f failingDatabase) Failing() error { return f.err }

// TestPressure_Database: a database that accepts no orders refuses purchases. One that is only busy
// does not.
func TestPressure_Database(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ failing, want error }{
		{nil, nil}, {ordertest.ErrTest, ordertest.ErrTest}, {fmt.Errorf("probe: %w", ErrBusy), nil},
	} {
		p := NewPressure(PressureConfig{Queues: make([]Loader, 1), Partition: func(string) int { return 0 }, Database: failingDatabase{c.failing}})
		if _, err := p.Admit("item"); !errors.Is(err, c.want) {
			t.Errorf("%v: %v, want %v", c.failing, err, c.want)
		}
	}
}

// TestPressure_Shut: only queues that refuse purchases count as shut, and only a known queue has a
// wait.
func TestPressure_Shut(t *testing.T) {
	t.Parallel()
	p := NewPressure(PressureConfig{Queues: make([]Loader, 3), Partition: func(item string) int { return len(item) }})
	p.of[1].state.Store(&queueState{late: true, wait: time.Second})
	p.of[2].state.Store(&queueState{shut: true, wait: time.Minute})
	if n := p.Shut(); n != 1 {
		t.Errorf("%d queues shut, want 1", n)
	}
	for item, want := range map[string]time.Duration{"": 0, "a": time.Second, "bb": time.Minute} {
		if wait := p.Wait(item); wait != want {
			t.Errorf("%q: %v to wait, want %v", item, wait, want)
		}
	}
}

// TestPressure_Smooth: one read in which no order is done is no standstill.
func TestPressure_Smooth(t *testing.T) {
	t.Parallel()
	l := newLooks(10_000)
	l.see(60, 2000, 1000, 0)
	if got := l.see(1, 2000, 0, 0); got.wait < 2400*time.Millisecond || got.wait > 2600*time.Millisecond {
		t.Errorf("%v to wait, want about 2.5 s", got.wait)
	}
}

// unstable is a queue whose next read the test sets.
type unstable struct {
	length int
	err    error
}

func (u *unstable) Load(context.Context) (queue.Load, error) {
	return queue.Load{Length: u.length, Active: u.length}, u.err
}
func (*unstable) MaxLength() int { return 1000 }

// TestPressure_Unread: a queue that cannot be read refuses no purchase, also not by what was known of
// it before. The error is reported, unless the process ends.
func TestPressure_Unread(t *testing.T) {
	t.Parallel()
	q := &unstable{length: 1000}
	var reported []error
	p := NewPressure(PressureConfig{
		Queues: []Loader{q}, Partition: func(string) int { return 0 }, OnError: func(err error) { reported = append(reported, err) },
	})
	p.Late("item") // a purchase: the queue is read
	for _, c := range []struct {
		name    string
		length  int
		err     error
		refused bool
		reports int
	}{
		{"full", 1000, nil, true, 0},
		{"nearly full", 950, nil, true, 0},
		{"not read", 1000, ordertest.ErrTest, false, 1},
		{"nearly full after that", 950, nil, false, 1},
		{"full again", 1000, nil, true, 1},
		{"at the end", 1000, context.Canceled, false, 1},
	} {
		q.length, q.err = c.length, c.err
		p.readAll(t.Context())
		if _, err := p.Admit("item"); (err != nil) != c.refused || len(reported) != c.reports {
			t.Errorf("%s: %v, reported %v", c.name, err, reported)
		}
	}
}
