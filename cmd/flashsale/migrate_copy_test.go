//go:build unix

package main_test

import (
	"database/sql"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"flashsale/internal/testing/postgrestest"
	"flashsale/internal/testing/process"
)

// A shop on SQLite sells, moves to Postgres, and sells the rest there with the same Redis:
// repeated purchases get the same orders, and nothing is oversold. Then it moves back.
func TestMigrateCopy_ShopSellsTheRest(t *testing.T) {
	needProcesses(t)
	needSQLite(t)
	s := newRedisShop(t)
	s.letGo()
	worker, api := s.worker(), s.api(noLimit...)
	c := dial(t, api)
	const stock = 12
	item := s.newItem(c, stock, 1)
	buy := func(from, to int, verdict string) (ids []string) {
		t.Helper()
		var got []purchase
		for i := from; i < to; i++ {
			p := c.settle(item, c.buy(item, fmt.Sprintf("u%d", i), "k", untilCommitted...))
			got, ids = append(got, p), append(ids, p.Order.ID)
		}
		only(t, got, verdict)
		return ids
	}
	url := postgrestest.NewDatabase(t)
	there := []string{"migrate", "copy", "--from", "sqlite:" + s.dbPath, "--to", url}
	before := buy(0, 5, "201")
	wantCode(t, 1, s.run(there...), "another process serves this database", "stop every flashsale api")
	worker.Stop()
	wantCode(t, 1, s.run(there...), "another process serves this database")
	api.Stop()
	wantCode(t, 0, s.run(there...), "copying orders: 5 rows", "orders by status", "equal", "next 1")
	for _, command := range []string{"api", "worker"} {
		wantCode(t, 1, process.Run(t, s.spec(command, nil)), "setting db", "its shop was moved to postgres://", "--replace")
	}
	wantCode(t, 1, s.run("doctor"), "its shop was moved to postgres://")

	running := []*process.P{s.worker("--db", url), s.api(append([]string{"--db", url}, noLimit...)...)}
	c = dial(t, running[1])
	if again := buy(0, 5, "201"); fmt.Sprint(again) != fmt.Sprint(before) {
		t.Errorf("repeats have the orders %v, want %v", again, before)
	}
	all := append(before, buy(20, 20+stock-5, "201")...)
	buy(40, 42, "409 sold_out")
	wantCode(t, 0, s.run("reconcile", "--server", running[1].URL()))
	back := []string{"migrate", "copy", "--from", url, "--to", "sqlite:" + s.dbPath}
	wantCode(t, 1, s.run(back...), "another process serves this database")
	for _, p := range running {
		p.Stop()
	}
	wantCode(t, 1, s.run(back...), "add --replace")
	wantCode(t, 0, s.run(append(back, "--replace")...), "moved to", s.dbPath)
	wantCode(t, 1, process.Run(t, s.spec("api", []string{"--db", url})), "its shop was moved to sqlite:")
	s.worker()
	api = s.api(noLimit...)
	c = dial(t, api)
	buy(40, 42, "409 sold_out")
	if again := buy(20, 20+stock-5, "201"); fmt.Sprint(again) != fmt.Sprint(all[5:]) {
		t.Errorf("repeats have the orders %v, want %v", again, all[5:])
	}
	if rows := s.rows(item); len(rows) != stock || s.sold(item) != stock {
		t.Errorf("%d rows and %d sold, want %d", len(rows), s.sold(item), stock)
	}
	wantCode(t, 0, s.run("reconcile", "--server", api.URL()))
}

// A copy that is killed at any step leaves one usable database at most, and the same command
// finishes it.
func TestMigrateCopy_Killed(t *testing.T) {
	needSQLite(t)
	needProcesses(t)
	for _, place := range []string{"transfer.copying", "transfer.copied", "transfer.verified", "transfer.left"} {
		t.Run(place, func(t *testing.T) {
			t.Parallel()
			s := newShop(t)
			s.letGo()
			wantCode(t, 0, s.run("migrate", "up"))
			fill(t, s.dbPath, "full", 6000)
			url := postgrestest.NewDatabase(t)
			args := []string{"copy", "--from", "sqlite:" + s.dbPath, "--to", url}
			if r := process.Run(t, s.faultySpec(place, "migrate", args)); r.Code != -1 {
				t.Fatalf("the fault never struck: exit code %d\n%s", r.Code, r.Output)
			}
			wantCode(t, 1, process.Run(t, s.spec("doctor", []string{"--db", url})), "it is an unfinished copy of another database")
			wantCode(t, 0, s.run(append([]string{"migrate"}, args...)...), "moved to")
			db, err := sql.Open("pgx", url)
			if err != nil {
				t.Fatal(err)
			}
			var orders int
			if err := db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM orders").Scan(&orders); err != nil || orders != 6000 {
				t.Errorf("%d orders, error %v, want 6000", orders, err)
			}
			if err := db.Close(); err != nil {
				t.Error(err)
			}
			wantCode(t, 1, s.run("doctor"), "its shop was moved to postgres://")
		})
	}
}

// Arguments are checked before a database is opened, and no password is printed.
func TestMigrateCopy_Arguments(t *testing.T) {
	needProcesses(t)
	s := newShop(t)
	s.letGo()
	file := "sqlite:" + filepath.Join(s.dir, "none.db")
	const secret = "hunter2"
	for _, q := range []struct {
		from, to string
		code     int
		words    string
	}{
		{"", file, 2, "--from: value \"\": it is missing"},
		{file, "", 2, "--to: value \"\": it is missing"},
		{"shop.db", file, 2, "unknown kind of database"},
		{file, "postgres://u:" + secret + "@h:x/d", 2, "a port in it is not a number"},
		{file, file, 2, "the same database"},
		{file, "postgres://u:" + secret + "@127.0.0.1:1/d", 1, "--from"},
		{"postgres://u:" + secret + "@127.0.0.1:1/d?connect_timeout=1", file, 1, "start the server"},
	} {
		r := s.run("migrate", "copy", "--from", q.from, "--to", q.to)
		wantCode(t, q.code, r, q.words)
		if strings.Contains(r.Output, secret) {
			t.Errorf("the output has the password:\n%s", r.Output)
		}
	}
}
