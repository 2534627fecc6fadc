package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"flashsale/bench/internal/load"
	"flashsale/handler/auth"
	"flashsale/internal/testing/await"
	"flashsale/internal/testing/process"
)

// TestMain is the contender's process too: a rig starts this program with the command serve.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == serveCommand {
		if err := dispatch(context.Background(), os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	process.Main(m)
}

// needServers skips the test if a server that the contender needs is not installed.
func needServers(t *testing.T, c contender) {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("redis-server is not installed; make deps installs it")
		}
		t.Skip("redis-server is not installed; make deps installs it")
	}
	if c.missing != nil && c.missing() != nil {
		t.Skip(c.missing())
	}
}

// startRig starts a contender with so many units on sale.
func startRig(t *testing.T, c contender, units int64) *rig {
	t.Helper()
	needServers(t, c)
	var service string
	if c.ours {
		service = process.Build(t)
	}
	s, err := newRig(await.Context(t), c, service)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	if err := s.stock.put(await.Context(t), item, units); err != nil {
		t.Fatal(err)
	}
	return s
}

// client sends purchases to a rig.
type client struct {
	t   *testing.T
	rig *rig
}

// buy sends a purchase and returns its status and the fields id and code of the answer.
func (c client) buy(buyer, key string, quantity int) (status int, id, code string) {
	c.t.Helper()
	token, err := auth.SignToken([]byte(load.Secret), buyer, auth.RoleBuyer, time.Hour, time.Now())
	if err != nil {
		c.t.Error(err)
	}
	return c.send(token, key, fmt.Sprintf(`{"quantity":%d}`, quantity))
}

func (c client) send(token, key, body string) (status int, id, code string) {
	c.t.Helper()
	url := "http://" + c.rig.addr + "/v1/items/" + item + "/orders"
	req, err := http.NewRequestWithContext(await.Context(c.t), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		c.t.Error(err)
		return 0, "", ""
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Idempotency-Key", key)
	if c.rig.contender.answer == http.StatusAccepted {
		req.Header.Set("Prefer", "respond-async")
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		c.t.Error(err)
		return 0, "", ""
	}
	defer res.Body.Close()
	var out struct{ ID, Code string }
	text, err := io.ReadAll(res.Body)
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	if err != nil {
		c.t.Errorf("answer %d %q: %v", res.StatusCode, text, err)
	}
	return res.StatusCode, out.ID, out.Code
}

func TestContenders_SmallStock(t *testing.T) {
	t.Parallel()
	for _, c := range contenders() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			sellSmallStock(t, c)
		})
	}
}

func sellSmallStock(t *testing.T, c contender) {
	const units, crowd = perBuyer + 10, 24
	b := client{t, startRig(t, c, units)}
	status, greedy, code := b.buy("greedy", "all", perBuyer)
	if status != c.answer {
		t.Fatalf("as many as the limit: %d %q, want %d", status, code, c.answer)
	}
	if status, _, code := b.buy("greedy", "more", 1); status != http.StatusConflict || code != "user_limit" {
		t.Errorf("above the limit: %d %q, want 409 user_limit", status, code)
	}
	if status, _, _ := b.send("no.such.token", "k", `{"quantity":1}`); status != http.StatusUnauthorized {
		t.Errorf("bad token: %d, want 401", status)
	}
	var mu sync.Mutex
	var all sync.WaitGroup
	answers := []answer{{"all", greedy}}
	refused := 0
	for i := range crowd {
		all.Go(func() {
			buyer := fmt.Sprint("buyer-", i)
			status, id, code := b.buy(buyer, "first", 1)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case status == c.answer:
				answers = append(answers, answer{"first", id})
			case status == http.StatusConflict && code == "sold_out":
				refused++
			default:
				t.Errorf("%s: %d %q, want %d or 409 sold_out", buyer, status, code, c.answer)
			}
		})
	}
	all.Wait()
	if left := units - perBuyer; len(answers)-1 != left || refused != crowd-left {
		t.Errorf("%d accepted and %d refused, want %d and %d", len(answers)-1, refused, left, crowd-left)
	}
	mustBeClean(t, b.rig, units, answers)
}

// mustBeClean waits until all orders are in the database. Faults that time cannot repair fail at
// once.
func mustBeClean(t *testing.T, s *rig, units int64, answers []answer) {
	t.Helper()
	await.Every(t, 20*time.Millisecond, "a sale without loss, oversell, duplicates and stranded units", func() bool {
		v, _, err := s.verdict(await.Context(t), units, answers)
		if err != nil || v.oversold+v.duplicates > 0 {
			t.Fatal(v, err)
		}
		return v.clean()
	})
}

func TestContenders_Repeat(t *testing.T) {
	t.Parallel()
	for _, c := range contenders() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := client{t, startRig(t, c, 2)}
			status, first, _ := b.buy("alice", "k", 1)
			if status != c.answer || first == "" {
				t.Fatalf("first: %d %q, want %d and an id", status, first, c.answer)
			}
			// The service answers 201 to a repeat of an order that has become a row.
			status, again, _ := b.buy("alice", "k", 1)
			if status/100 != 2 || again != first {
				t.Errorf("repeat: %d %q, want the order %q", status, again, first)
			}
			status, other, _ := b.buy("alice", "k2", 1)
			if status/100 != 2 || other == first {
				t.Errorf("another key: %d %q, want another order", status, other)
			}
			mustBeClean(t, b.rig, 2, []answer{{"k", first}, {"k", again}, {"k2", other}})
		})
	}
}

// One transaction is complete or not there, so a kill does no harm. The channel's losses depend on
// the moment of the kill, and a test cannot predict them.
func TestKillRun(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"sqlite", "channel"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, err := find(name)
			if err != nil {
				t.Fatal(err)
			}
			needServers(t, c)
			crowd, err := load.NewCrowd(100)
			if err != nil {
				t.Fatal(err)
			}
			c.patience = time.Millisecond
			plan := sale{units: 300, kills: 2, connections: 8, limit: await.Limit}
			k, err := killRun(await.Context(t), c, "", crowd, plan)
			if err != nil {
				t.Fatal(err)
			}
			if k.answered < 1 || k.interrupted < 2 || k.resumed <= 0 {
				t.Errorf("%+v: want answers, interrupted requests of both kills and a time to the next answer", k)
			}
			if name == "sqlite" && (!k.clean() || int64(k.rows) != plan.total()) {
				t.Errorf("%d orders, %s; want %d and no fault", k.rows, k.verdict, plan.total())
			}
			if k.oversold != 0 || k.duplicates != 0 {
				t.Errorf("%s: oversold or duplicates", k.verdict)
			}
		})
	}
}

// The checker has to see faults in a contender's real database and stock.
func TestRig_Verdict(t *testing.T) {
	t.Parallel()
	c, err := find("sqlite")
	if err != nil {
		t.Fatal(err)
	}
	s := startRig(t, c, 5)
	b := client{t, s}
	var answers []answer
	for _, key := range []string{"a", "b"} {
		_, id, _ := b.buy("alice", key, 1)
		answers = append(answers, answer{key, id})
	}
	verdict := func() verdict {
		v, _, err := s.verdict(await.Context(t), 5, answers)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	if v := verdict(); !v.clean() {
		t.Fatalf("%s before anything was planted", v)
	}
	writer := s.stock.(sqlStock).db
	exec := func(query string, args ...any) {
		if _, err := writer.ExecContext(await.Context(t), query, args...); err != nil {
			t.Fatal(err)
		}
	}
	exec("DELETE FROM orders WHERE id = $1", answers[0].id)
	if v := verdict(); v.lost != 1 || v.stranded != 1 {
		t.Errorf("a deleted order: %s", v)
	}
	exec("UPDATE items SET stock = 5")
	if v := verdict(); v.oversold != 1 {
		t.Errorf("units that return although one is sold: %s", v)
	}
}

func TestJudge(t *testing.T) {
	t.Parallel()
	rows := []row{{"1", "ann", "a", 1}, {"2", "bob", "b", 2}}
	answers := []answer{{"a", "1"}, {"b", "2"}, {"a", "1"}}
	for _, tc := range []struct {
		name        string
		total, left int64
		answers     []answer
		rows        []row
		want        verdict
	}{
		{"clean", 5, 2, answers, rows, verdict{}},
		{"nothing sold", 5, 5, nil, nil, verdict{}},
		{"sold out", 3, 0, answers, rows, verdict{}},
		{"an order without an answer", 5, 2, answers[:1], rows, verdict{}},
		{"an answered order is missing", 5, 2, answers, rows[:1], verdict{lost: 1, stranded: 2}},
		{"answered twice and missing", 5, 4, answers, rows[1:], verdict{lost: 1, oversold: 1}},
		{"answered with another id", 5, 2, append(answers, answer{"b", "3"}), rows, verdict{lost: 1}},
		{"the id of another key", 5, 2, []answer{{"b", "1"}}, rows, verdict{lost: 1}},
		{"a unit of no order", 5, 1, answers, rows, verdict{stranded: 1}},
		{"more than the stock", 2, 0, answers, rows, verdict{oversold: 1}},
		{"more than the stock, which is below zero", 2, -1, answers, rows, verdict{oversold: 1}},
		{"sold units that are still for sale", 5, 3, answers, rows, verdict{oversold: 1}},
		{"two orders for one key", 6, 2, answers, append(rows, row{"3", "ann", "a", 1}), verdict{duplicates: 1}},
		{"one key of two buyers", 6, 2, answers, append(rows, row{"3", "cat", "a", 1}), verdict{}},
	} {
		got := judge(tc.total, tc.left, tc.answers, tc.rows)
		if got != tc.want || got.clean() != (tc.want == verdict{}) {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
		}
	}
}

func TestResults_Print(t *testing.T) {
	t.Parallel()
	r := results{o: options{rounds: 2, phase: time.Second, connections: 8, kills: 1}}
	r.empty.speeds = []speed{{rate: 900}, {rate: 1100}}
	add := func(name string, ours bool, skipped error, rate float64, k killed) {
		c := contender{name: name, approach: "as " + name, answer: http.StatusAccepted, ours: ours}
		r.all = append(r.all, &result{contender: c, skipped: skipped, speeds: []speed{{rate, 1, 2}, {rate, 2, 3}}, kill: k})
	}
	add("ours", true, nil, 500, killed{resumed: time.Second})
	add("fast", false, nil, 300, killed{verdict: verdict{1, 2, 3, 4}, settled: 1500 * time.Millisecond})
	add("safe", false, nil, 100, killed{})
	add("gone", false, io.EOF, 0, killed{})
	var out bytes.Buffer
	r.print(&out)
	want := `8 connections, medians of 2 rounds of 1s; the empty handler answers 1000/s; killed 1 times during a sale

| contender | answer | accepted/s | of an empty handler | p50 ms | p99 ms | lost | oversold | duplicates | stranded | sells again after s | final after s |
|---|---|---|---|---|---|---|---|---|---|---|---|
| ` + "`ours`" + `: as ours | 202 | 500 | 0.500 | 1.5 | 2.5 | 0 | 0 | 0 | 0 | 1.0 | 0.0 |
| ` + "`fast`" + `: as fast | 202 | 300 | 0.300 | 1.5 | 2.5 | 1 | 2 | 3 | 4 | 0.0 | 1.5 |
| ` + "`safe`" + `: as safe | 202 | 100 | 0.100 | 1.5 | 2.5 | 0 | 0 | 0 | 0 | 0.0 | 0.0 |
| ` + "`gone`" + `: as gone | 202 | skipped: EOF | | | | | | | | | |

BAR peers_lost 0 0 met
BAR peers_oversold 0 0 met
BAR peers_duplicates 0 0 met
BAR peers_stranded 0 0 met
the fastest peer with a clean sale is safe: the service accepts 5.00 times as many orders
the fastest peer is fast (lost 1, oversold 2, duplicates 3, stranded 4)
BAR peers_accepted/best_peer 1.67 2.00 missed
`
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
	if err := r.fault(); err != nil {
		t.Errorf("a peer's loss is a fault: %v", err)
	}
	r.all[0].kill.stranded = 1
	if err := r.fault(); err == nil {
		t.Error("a stranded unit of the service is no fault")
	}
}

func TestParse_ErrOptions(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"-rounds 0": "1 round", "-phase 1ms": "100ms", "-kills 0": "kills", "-kills 101": "kills", "-connections 1": "connections",
		"-only nothing": "there are flashsale, ", "more": `unexpected argument "more"`, "serve -contender nothing": "no contender",
		"serve -contender flashsale": "a program of its own",
	} {
		fields := strings.Fields(args)
		err := error(nil)
		if fields[0] == serveCommand {
			err = serve(t.Context(), fields[1:])
		} else {
			err = run(t.Context(), fields, io.Discard, io.Discard)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one with %q", args, err, want)
		}
	}
}
