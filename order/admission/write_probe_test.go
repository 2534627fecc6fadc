//go:build unix

package admission

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/disktest"
	"flashsale/order/ordertest"
	"flashsale/order/store"
	"flashsale/order/store/database"
	"flashsale/order/store/storetest"
)

// changes records the calls of a probe's onChange.
type changes struct {
	mu  sync.Mutex
	all []error
}

func (c *changes) add(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, err)
}

func (c *changes) list() []error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]error(nil), c.all...)
}

func newProbe(t *testing.T, s *store.Store) (*WriteProbe, *changes) {
	t.Helper()
	c := new(changes)
	p, err := NewWriteProbe(s, c.add)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("close probe: %v", err)
		}
	})
	return p, c
}

// now makes a check, whenever the last one was.
func (p *WriteProbe) now(t *testing.T) error {
	t.Helper()
	<-p.turn
	defer func() { p.turn <- struct{}{} }()
	p.check(await.Context(t))
	return p.Failing()
}

// lockOut takes the database's write lock on another connection.
func lockOut(t *testing.T, s *store.Store) *sql.Conn {
	t.Helper()
	db, err := sql.Open("sqlite3", "file:"+s.Path())
	if err != nil {
		t.Fatal(err)
	}
	c, err := db.Conn(await.Context(t))
	if err == nil {
		_, err = c.ExecContext(await.Context(t), "BEGIN IMMEDIATE")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(c.Close(), db.Close()); err != nil {
			t.Error(err)
		}
	})
	return c
}

func mustExec(t *testing.T, c *sql.Conn, statements ...string) {
	t.Helper()
	for _, text := range statements {
		if _, err := c.ExecContext(await.Context(t), text); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
}

// written is the time in the last write of a probe; empty before the first.
func written(t *testing.T, s *store.Store) string {
	t.Helper()
	var values []string
	if err := s.Reader().Raw("SELECT value FROM meta WHERE key = 'write_probe'").Scan(&values).Error; err != nil {
		t.Fatal(err)
	}
	if len(values) == 0 {
		return ""
	}
	return values[0]
}

// TestWriteProbe_Full fills the disk that the database is on.
func TestWriteProbe_Full(t *testing.T) {
	t.Parallel()
	ordertest.NeedSQLite(t)
	disk := disktest.New(t, 4<<20)
	s := storetest.NewAt(t, filepath.Join(disk.Path(), "shop.db"))
	p, _ := newProbe(t, s)
	ordertest.Pragma(t, s, "wal_checkpoint(TRUNCATE)") // an existing log would be overwritten
	disk.Fill()
	if err := p.now(t); !errors.Is(err, database.ErrUnavailable) || errors.Is(err, ErrBusy) {
		t.Errorf("on a full disk: %v", err)
	}
	disk.Free()
	if err := p.now(t); err != nil {
		t.Errorf("once there is room: %v", err)
	}
}

// TestWriteProbe_OthersCommit: while another connection commits, the probe writes nothing.
func TestWriteProbe_OthersCommit(t *testing.T) {
	t.Parallel()
	ordertest.NeedSQLite(t)
	s := storetest.New(t)
	p, _ := newProbe(t, s)
	if err := p.now(t); err != nil {
		t.Fatal(err)
	}
	first := written(t, s)
	if first == "" {
		t.Fatal("the first check has not written")
	}
	storetest.MustInsert(t, s, ordertest.NewItem("item", 10, 1))
	store.WithClock(ordertest.ClockFunc(func() time.Time { return time.UnixMilli(1) }))(s) // a write would show
	// The first check is recent, however slow the machine is.
	p.checked = time.Now().Add(time.Hour)
	if err := p.now(t); err != nil || written(t, s) != first {
		t.Errorf("after a commit of another: %v, wrote %q after %q", err, written(t, s), first)
	}
	if err := p.now(t); err != nil || written(t, s) != "1" {
		t.Errorf("after no commit of another: %v, wrote %q, want %q", err, written(t, s), "1")
	}
}

// TestWriteProbe_Run checks in the background while Failing is called or writes fail.
func TestWriteProbe_Run(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	p, heard := newProbe(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	for _, f := range probeFaults(t) {
		if f.name != "readonly" {
			continue
		}
		end := f.begin(t, s)
		await.True(t, "it is found", func() bool { return p.Failing() != nil })
		end()
		await.True(t, "its end is reported", func() bool { return len(heard.list()) == 2 })
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestWriteProbe_SlowCommits checks while another connection holds the lock for longer than
// a check waits. As long as that connection sometimes commits, the database accepts writes.
func TestWriteProbe_SlowCommits(t *testing.T) {
	t.Parallel()
	ordertest.NeedSQLite(t)
	s := storetest.New(t)
	p, heard := newProbe(t, s)
	if err := p.now(t); err != nil {
		t.Fatal(err)
	}
	other := lockOut(t, s)
	for i := range 3 {
		if err := p.now(t); err != nil {
			t.Errorf("during commit %d: %v", i, err)
		}
		if p.busySince.IsZero() {
			t.Fatal("the check got the lock")
		}
		p.busySince = time.Now().Add(-time.Hour) // as if it had lasted that long
		p.checked = time.Now().Add(time.Hour)    // so that this check is recent, however slow the machine is
		mustExec(t, other, fmt.Sprintf("INSERT INTO meta (key, value) VALUES ('other', '%d') ON CONFLICT (key) DO UPDATE SET value = excluded.value", i),
			"COMMIT", "BEGIN IMMEDIATE")
		if err := p.now(t); err != nil {
			t.Errorf("after commit %d: %v", i, err)
		}
	}
	mustExec(t, other, "ROLLBACK")
	if got := heard.list(); len(got) != 0 {
		t.Errorf("reported %v", got)
	}
}

// TestWriteProbe_Closed: a check after Close reports nothing.
func TestWriteProbe_Closed(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	heard := new(changes)
	p, err := NewWriteProbe(s, heard.add)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if err := p.now(t); err != nil || len(heard.list()) != 0 {
		t.Errorf("after Close: %v, reported %v", err, heard.list())
	}
}

// TestWriteProbe_Hung: a check that hangs does not delay other callers beyond their
// deadline.
func TestWriteProbe_Hung(t *testing.T) {
	t.Parallel()
	p, _ := newProbe(t, storetest.New(t))
	<-p.turn // like a check whose disk does not answer
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Check(ctx); !errors.Is(err, ErrBusy) {
		t.Errorf("meanwhile: %v, want %v", err, ErrBusy)
	}
	p.turn <- struct{}{}
}
