package store

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/postgrestest"
	"flashsale/order"
	"flashsale/order/ordertest"
)

// unpaidOrders commits n orders of some buyers and items that expire after a minute, and returns
// their ids. Every third buyer has two of an item.
func unpaidOrders(t *testing.T, s *Store, prefix string, n int) []string {
	t.Helper()
	tasks := make([]order.Task, n)
	for i := range tasks {
		id := fmt.Sprintf("%s%04d", prefix, i)
		tasks[i] = ordertest.Bought(id, fmt.Sprintf("item%d", i%5), fmt.Sprintf("buyer%d", i-i%3/2), id, int64(1+i%2))
	}
	mustCommit(t, s, tasks...)
	return order.TaskIDs(tasks)
}

// withItems creates the items of unpaidOrders.
func withItems(t *testing.T, s *Store) {
	t.Helper()
	for i := range 5 {
		mustInsert(t, s, ordertest.Asking(fmt.Sprintf("item%d", i), 100_000, 100_000, time.Minute))
	}
	ordertest.SubscribeAll(t, s)
}

// TestStore_Expire_Together: orders that expire in one transaction leave the same rows as orders
// that expire one by one. Some are paid, cancelled or not due, and some do not exist.
func TestStore_Expire_Together(t *testing.T) {
	t.Parallel()
	contents := func(together bool) []string {
		clock := ordertest.NewClock()
		clock.Store(1_790_000_000_000)
		s := openStore(t, ordertest.NewDatabase(t), WithClock(clock))
		withItems(t, s)
		ids := unpaidOrders(t, s, "o", 40)
		if _, err := s.Pay(await.Context(t), ids[3], ordertest.Money("psp", 2)); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.Cancel(await.Context(t), ids[4], order.Canceller{Admin: true, UserID: "root"}); err != nil {
			t.Fatal(err)
		}
		clock.Add(time.Minute.Milliseconds())
		ids = append(append(ids, "unknown"), unpaidOrders(t, s, "later", 5)...)
		list := [][]string{ids}
		if !together {
			list = slices.Collect(slices.Chunk(ids, 1))
		}
		results := make(map[string]Expiry)
		var pending []string
		for _, part := range list {
			results, releases, err := s.Expire(await.Context(t), part)
			if err != nil {
				t.Fatal(err)
			}
			maps.Copy(results, results)
			for _, r := range releases {
				pending = append(pending, fmt.Sprintf("pending %+v", r))
			}
		}
		slices.Sort(pending)
		return append(append(pending, fmt.Sprintf("results %v", results)), contentsOf(t, s)...)
	}
	sameLines(t, contents(true), contents(false))
}

// contentsOf checks the sums of a store, and returns all rows that an order's end changes.
func contentsOf(t *testing.T, s *Store) (lines []string) {
	t.Helper()
	ordertest.AuditStore(t, s)
	for _, query := range []string{
		"SELECT id || ' ' || sold || ' ' || awaiting FROM items ORDER BY id",
		"SELECT id || ' ' || status || ' ' || reason || ' ' || closed_at FROM orders ORDER BY id",
		"SELECT item_id || ' ' || user_id || ' ' || quantity FROM buyers ORDER BY item_id, user_id",
		"SELECT order_id || ' ' || item_id || ' ' || user_id || ' ' || idempotency_key || ' ' || quantity || ' ' || created_at FROM releases ORDER BY order_id",
		"SELECT order_id || ' ' || action || ' ' || actor || ' ' || before || ' ' || after || ' ' || request_id FROM audit ORDER BY order_id, item_id, action",
		"SELECT type || ' ' || item_id || ' ' || order_id || ' ' || body || ' ' || at FROM webhook_events ORDER BY type, order_id",
		"SELECT v.type || ' ' || v.order_id || ' ' || d.state FROM webhook_deliveries d JOIN webhook_events v ON v.seq = d.event_seq ORDER BY v.type, v.order_id",
	} {
		var rows []string
		if err := s.Reader().Raw(query).Scan(&rows).Error; err != nil {
			t.Fatal(err)
		}
		if len(rows) == 0 {
			t.Errorf("nothing in %s", query)
		}
		lines = append(lines, rows...)
	}
	return lines
}

// sameLines compares what orders that ended in one transaction left with what orders that ended
// one by one left.
func sameLines(t *testing.T, together, single []string) {
	t.Helper()
	for i := range min(len(together), len(single)) {
		if together[i] != single[i] {
			t.Errorf("together: %s\none by one: %s", together[i], single[i])
		}
	}
	if len(together) != len(single) {
		t.Errorf("together: %d rows; one by one: %d", len(together), len(single))
	}
}

// TestPostgres_Expire_Statements: the number of statements of an expiry does not depend on the
// number of orders: nothing else is written meanwhile, and each statement is a round trip.
func TestPostgres_Expire_Statements(t *testing.T) {
	t.Parallel()
	server := loggingServer(t)
	clock := ordertest.NewClock()
	s := openStore(t, ordertest.NewPostgresOn(t, server), WithClock(clock))
	withItems(t, s)
	statements := func(prefix string, n int) int {
		ids := unpaidOrders(t, s, prefix, n)
		clock.Add(time.Minute.Milliseconds())
		before := statementsOf(t, server)
		results, _, err := s.Expire(await.Context(t), ids)
		if err != nil {
			t.Fatal(err)
		}
		for id, e := range results {
			if e.Status != order.StatusExpired {
				t.Errorf("order %s is %s", id, e.Status)
			}
		}
		return statementsOf(t, server) - before
	}
	few, many := statements("few", 1), statements("many", 200)
	if few == 0 || many > 2*few { // a connection may be new
		t.Errorf("%d statements for 200 orders, and %d for one", many, few)
	}
}

// loggingServer starts a server that logs every statement.
func loggingServer(t *testing.T) *postgrestest.Instance {
	t.Helper()
	return postgrestest.Start(t, postgrestest.Options{Settings: []string{"log_statement=all"}})
}

// statementsOf is the number of statements that a server has logged.
func statementsOf(t *testing.T, server *postgrestest.Instance) int {
	t.Helper()
	log := server.Log(t)
	return strings.Count(log, "LOG:  execute") + strings.Count(log, "LOG:  statement")
}
