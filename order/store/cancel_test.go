package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/pooltest"
	"flashsale/order"
	"flashsale/order/ordertest"
	"flashsale/order/store/database"
)

// TestStore_Cancel_Together: orders that are cancelled in one transaction leave the same rows, and
// their callers get the same answers, as orders that are cancelled one by one.
func TestStore_Cancel_Together(t *testing.T) {
	t.Parallel()
	contents := func(waiting bool) []string {
		clock := ordertest.NewClock()
		clock.Store(1_790_000_000_000)
		s := openStore(t, ordertest.NewDatabase(t), WithClock(clock))
		withItems(t, s)
		bucket := ordertest.NewItem("divided", 30, 10)
		bucket.Buckets = 3
		mustInsert(t, s, bucket)
		ids := unpaidOrders(t, s, "o", 20)
		for i, row := range []string{"divided", "divided.1", "divided.2", "divided.1"} {
			id := fmt.Sprintf("d%04d", i)
			mustCommit(t, s, ordertest.Bought(id, row, "u", id, int64(1+i)))
		}
		if _, err := s.Pay(await.Context(t), ids[1], ordertest.Money("psp", 2)); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.Cancel(await.Context(t), ids[2], order.Canceller{Admin: true, UserID: "root"}); err != nil {
			t.Fatal(err)
		}
		err := s.Change(await.Context(t), "test", func(ctx context.Context, c database.Conn, _ int64) error {
			_, err := c.ExecContext(ctx, DeleteReleases, database.JSONList(ids[2]))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		clock.Add(1000)
		buyer := func(id string) order.Canceller { return order.Canceller{UserID: ordertest.AllRows(t, s)[id].UserID} }
		root := order.Canceller{Admin: true, UserID: "root", RequestID: "r-1"}
		type call struct {
			id string
			by order.Canceller
		}
		list := []call{
			{ids[1], buyer(ids[1])}, // paid
			{ids[2], buyer(ids[2])}, // cancelled, and its units have returned
			{ids[3], order.Canceller{UserID: "stranger"}}, {ids[3], order.Canceller{}},
			{"unknown", buyer(ids[4])}, {"unknown", root},
			{ids[4], buyer(ids[4])}, {ids[4], buyer(ids[4])}, {ids[4], root},
			{ids[5], root}, {ids[5], buyer(ids[5])},
			{"o\"\\<é", root},
			{"d0000", buyer("d0000")}, {"d0001", buyer("d0001")}, {"d0002", root}, {"d0003", buyer("d0003")},
		}
		for _, id := range ids[6:] {
			list = append(list, call{id, buyer(id)})
		}
		answers := make([]string, len(list))
		c := &calls{t: t, s: s}
		release := func() {}
		if waiting {
			release = pooltest.Hold(t, s.Writer())
		}
		for i, one := range list {
			cancel := func() error {
				o, pending, err := s.Cancel(await.Context(t), one.id, one.by)
				answers[i] = fmt.Sprintf("%s by %+v: %+v, pending %+v, %v", one.id, one.by, o, pending, err)
				return nil
			}
			if waiting {
				c.add(cancel)
			} else if err := cancel(); err != nil {
				t.Error(err)
			}
		}
		release()
		c.succeeded()
		return append(answers, contentsOf(t, s)...)
	}
	sameLines(t, contents(true), contents(false))
}

// TestStore_Cancel_Faulty: one order of a group cannot be cancelled. The others are.
func TestStore_Cancel_Faulty(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	mustInsert(t, s, ordertest.NewItem("item", 1000, 1))
	mustCommit(t, s, ordertest.Distinct("o", "item", 10)...)
	ordertest.Refuse(t, s, "INSERT", "releases", "NEW.order_id = 'o0007'")
	release := pooltest.Hold(t, s.Writer())
	c := &calls{t: t, s: s}
	for i := range 10 {
		c.cancel(fmt.Sprintf("o%04d", i))
	}
	release()
	for i, err := range c.results() {
		if (err != nil) != (i == 7) {
			t.Errorf("order %d: %v", i, err)
		}
	}
	for id, r := range ordertest.AllRows(t, s) {
		if (r.Status == string(order.StatusCancelled)) == (id == "o0007") {
			t.Errorf("order %s is %s", id, r.Status)
		}
	}
	ordertest.AuditStore(t, s)
}

// together is how many payments, or cancellations, are made by the same statements at most beside other changes.
const together = 40

// TestPostgres_Pay_Statements: a payment that pays nothing costs only its own statements, and not
// those of the payments beside it.
func TestPostgres_Pay_Statements(t *testing.T) {
	t.Parallel()
	server := loggingServer(t)
	s := openStore(t, ordertest.NewPostgresOn(t, server))
	withItems(t, s)
	statements := func(prefix string, n int) int {
		ids := unpaidOrders(t, s, prefix, 2*n)
		release := pooltest.Hold(t, s.Writer())
		c := &calls{t: t, s: s}
		for pair := range slices.Chunk(ids, 2) {
			c.pay(pair[1], ordertest.Money(pair[1], 2))
		}
		c.pay("unknown", ordertest.Money("psp", 2))
		before := statementsOf(t, server)
		release()
		for i, err := range c.results() {
			if (i == n) != errors.Is(err, order.ErrNotFound) || i < n && err != nil {
				t.Errorf("payment %d: %v", i, err)
			}
		}
		return statementsOf(t, server) - before
	}
	if few, many := statements("few", 2), statements("many", together-1); few == 0 || many > 2*few { // a connection may be new
		t.Errorf("%d statements for %d payments, and %d for 3", many, together, few)
	}
}

// TestPostgres_Cancel_Statements: the number of statements of a group of cancellations, or of
// payments and cancellations that wait in turns, does not grow with the number of orders.
func TestPostgres_Cancel_Statements(t *testing.T) {
	t.Parallel()
	server := loggingServer(t)
	s := openStore(t, ordertest.NewPostgresOn(t, server))
	withItems(t, s)
	statements := func(prefix string, n int, pay bool) int {
		ids := unpaidOrders(t, s, prefix, 2*n)
		release := pooltest.Hold(t, s.Writer())
		c := &calls{t: t, s: s}
		for pair := range slices.Chunk(ids, 2) {
			c.cancel(pair[0])
			if pay {
				c.pay(pair[1], ordertest.Money(pair[1], 2))
			}
		}
		before := statementsOf(t, server)
		release()
		c.succeeded()
		return statementsOf(t, server) - before
	}
	if few, many := statements("few", 1, false), statements("many", together, false); few == 0 || many > 2*few { // a connection may be new
		t.Errorf("%d statements for %d cancellations, and %d for one", many, together, few)
	}
	if few, many := statements("two", 2, true), statements("all", together, true); few == 0 || many > 2*few {
		t.Errorf("%d statements for %d payments and as many cancellations, and %d for two", many, together, few)
	}
}
