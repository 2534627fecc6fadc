package store

import (
	"context"
	"errors"
	"sync"
	"testing"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/postgrestest"
	"flashsale/order"
	"flashsale/order/ordertest"
	"flashsale/order/store/database"
)

// standbyServer starts a server for one test, and returns the URL of a database on it.
func standbyServer(t *testing.T) (server *postgrestest.Instance, url string) {
	t.Helper()
	server = postgrestest.Start(t, postgrestest.Options{})
	return server, ordertest.NewPostgresOn(t, server)
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
		if _, err := s.Pay(ctx, "o1", money); !errors.Is(err, database.ErrUnavailable) {
			t.Errorf("the payment: %v, want ErrUnavailable", err)
		}
	})
	server.AwaitWaitingCommit(t)
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
	server.AwaitWaitingCommit(t) // of the two processes one waits for the other's row
	// A standby cannot lack a row that does not exist, so this answer does not wait.
	if _, err := later.Order(ctx, "none"); !errors.Is(err, order.ErrNotFound) {
		t.Errorf("an order without a row: %v, want ErrNotFound", err)
	}
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
