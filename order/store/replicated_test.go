package store

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"testing"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/postgrestest"
	"flashsale/order"
	"flashsale/order/ordertest"
	"flashsale/order/store/postgres"
)

// standbyServer starts a server for one test, and returns the URL of a database on it.
func standbyServer(t *testing.T) (server *postgrestest.Instance, url string) {
	t.Helper()
	server = postgrestest.Start(t, postgrestest.Options{})
	return server, ordertest.NewPostgresOn(t, server)
}

// awaitWaiting waits until n sessions have committed and wait for a standby.
func awaitWaiting(t *testing.T, server *postgrestest.Instance, n int) {
	t.Helper()
	await.True(t, "commits wait for the standby", func() bool { return server.WaitingCommits(t) == n })
}

// committingTo begins a transaction that has written a row of meta.
func committingTo(ctx context.Context, t *testing.T, s *Store) (*sql.Tx, *sql.Conn, txID) {
	t.Helper()
	db, err := s.Writer().DB()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close() //nolint:errcheck // the test has ended the connection
	})
	tx, open, err := beginLocked(ctx, conn, true)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO meta VALUES ('key', 'value')"); err != nil {
		t.Fatal(err)
	}
	return tx, conn, open.txID
}

// visible reports whether other sessions see the row of committingTo.
func visible(t *testing.T, s *Store) (found bool) {
	t.Helper()
	if err := s.Reader().WithContext(await.Context(t)).Raw("SELECT EXISTS (SELECT 1 FROM meta WHERE key = 'key')").Scan(&found).Error; err != nil {
		t.Fatal(err)
	}
	return found
}

// TestPostgres_Standby_Abandoned: when the time of a commit is over that waits for a synchronous
// standby, the server goes on waiting. No other session sees the commit before the standby has it.
func TestPostgres_Standby_Abandoned(t *testing.T) {
	t.Parallel()
	server, url := standbyServer(t)
	s, other := openStore(t, url), openStore(t, url)
	server.RequireStandby(t, "none")
	ctx, cancel := context.WithCancel(await.Context(t))
	tx, conn, _ := committingTo(ctx, t, s)
	var closed <-chan struct{}
	if err := conn.Raw(func(driver any) error {
		c, err := postgres.PGX(driver)
		if err == nil {
			closed = c.PgConn().CleanupDone()
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	committing := make(chan error, 1)
	go func() { committing <- tx.Commit() }()
	awaitWaiting(t, server, 1)
	cancel()
	if err := <-committing; err == nil {
		t.Error("the commit did not wait for the standby")
	}
	<-closed
	if visible(t, other) {
		t.Fatal("the commit is visible, and no standby has it")
	}
	awaitWaiting(t, server, 1)
	server.RequireStandby(t, "")
	await.True(t, "the commit is visible once the standby is not required", func() bool { return visible(t, other) })
}

// TestPostgres_Standby_Cancelled: a commit whose wait for a synchronous standby an operator has
// cancelled does not count as committed, although the server reports it so.
func TestPostgres_Standby_Cancelled(t *testing.T) {
	t.Parallel()
	for name, cancel := range map[string]string{"cancelled": "pg_cancel_backend", "terminated": "pg_terminate_backend"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, url := standbyServer(t)
			s := openStore(t, url)
			server.RequireStandby(t, "none")
			ctx := await.Context(t)
			tx, conn, mark := committingTo(ctx, t, s)
			committing := make(chan error, 1)
			go func() { committing <- tx.Commit() }()
			awaitWaiting(t, server, 1)
			err := server.Do(ctx, "postgres", func(db *sql.DB) error {
				_, err := db.ExecContext(ctx, "SELECT "+cancel+"(pid) FROM pg_stat_activity WHERE "+postgrestest.InSyncRep)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := <-committing; err == nil {
				t.Error("the commit succeeded, and no standby has it")
			}
			if err := conn.Close(); err != nil {
				t.Log(err)
			}
			if err := committed(s, mark, ordertest.ErrTest); !errors.Is(err, errUnknown) || !Transient(err) {
				t.Errorf("committed: %v, want errUnknown", err)
			}
			if status, _, err := transactionStatus(ctx, s, mark.xid); err != nil || status != "committed" {
				t.Errorf("status %q, %v", status, err)
			}
			if _, err := s.Order(ctx, "o"); !errors.Is(err, order.ErrNotFound) {
				t.Errorf("an order without a row: %v, want ErrNotFound", err)
			}
			server.RequireStandby(t, "")
			if err := s.Replicated(ctx); err != nil {
				t.Errorf("without a standby: %v", err)
			}
		})
	}
}

// TestPostgres_Standby_Crash: what a server has recovered after a crash is no answer to a client
// before a synchronous standby has it. The payment here was committed, and waited for the standby.
func TestPostgres_Standby_Crash(t *testing.T) {
	t.Parallel()
	server, url := standbyServer(t)
	ctx := await.Context(t)
	s := openStore(t, url)
	mustInsert(t, s, ordertest.NewItem("item", 10, 5))
	task := ordertest.Bought("o1", "item", "u", "k", 1)
	mustCommit(t, s, task)
	if _, err := s.Order(ctx, "o1"); err != nil {
		t.Fatal(err)
	}
	server.RequireStandby(t, "none")
	money := ordertest.Money("psp-1", 1)
	var paying sync.WaitGroup
	paying.Go(func() {
		if _, err := s.Pay(ctx, "o1", money); !errors.Is(err, order.ErrDatabase) {
			t.Errorf("the payment: %v, want ErrDatabase", err)
		}
	})
	awaitWaiting(t, server, 1)
	server.Kill(t)
	server.Restart(t)
	paying.Wait()
	later := openStore(t, url)
	answers := map[string]func(ctx context.Context, s *Store) error{
		"the order": func(ctx context.Context, s *Store) error { _, err := s.Order(ctx, "o1"); return err },
		"the order by its key": func(ctx context.Context, s *Store) error {
			_, err := OrderByKey(ctx, s, "u", "item", "k")
			return err
		},
		"the outcomes": func(ctx context.Context, s *Store) error {
			_, err := s.Settled(ctx, []string{"o1"})
			return err
		},
		"the buyer's list": func(ctx context.Context, s *Store) error {
			_, _, err := s.List(ctx, order.Filter{UserID: "u", ItemID: "item", Limit: 10})
			return err
		},
		"an admin's list": func(ctx context.Context, s *Store) error {
			_, _, err := s.List(ctx, order.Filter{Limit: 10})
			return err
		},
		"the repeated payment": func(ctx context.Context, s *Store) error {
			_, err := s.Pay(ctx, "o1", money)
			return err
		},
	}
	all := func(ctx context.Context, check func(name string, err error)) *sync.WaitGroup {
		var asking sync.WaitGroup
		for _, process := range []*Store{s, later} {
			for name, answer := range answers {
				asking.Go(func() { check(name, answer(ctx, process)) })
			}
		}
		return &asking
	}
	leaving, leave := context.WithCancel(ctx)
	asking := all(leaving, func(name string, err error) {
		if err == nil {
			t.Errorf("%s is answered, and no standby has it", name)
		}
	})
	awaitWaiting(t, server, 1) // of the two processes one waits for the other's row
	leave()
	asking.Wait()
	server.RequireStandby(t, "")
	all(ctx, func(name string, err error) {
		if err != nil {
			t.Errorf("%s, with the standby: %v", name, err)
		}
	}).Wait()
	o, err := later.Order(ctx, "o1")
	if err != nil || o.Status != order.StatusPaid {
		t.Errorf("the order is %s, %v; want paid", o.Status, err)
	}
}
