//go:build unix

package main_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"flashsale/handler/auth"
	"flashsale/internal/testing/process"
)

// figures are an event of GET /v1/admin/events.
type figures struct {
	Complete  bool
	Accepted  *float64 `json:"accepted_per_second"`
	Committed *float64 `json:"committed_per_second"`
	Refused   *float64 `json:"refused_per_second"`
	Totals    struct {
		Accepted, Committed, Refused int64
		ByCode                       map[string]int64 `json:"refused_by_code"`
	}
	Queue   *struct{ Orders int64 }
	Latency map[string]struct {
		P99 *float64 `json:"p99_ms"`
	}
	Items []struct {
		ID    string
		Left  *int64 `json:"stock_left"`
		State *string
	}
	Processes []struct {
		Kind, Host string
		Accepted   *float64 `json:"accepted_per_second"`
	}
}

// watcher reads the figures of one process.
type watcher struct {
	t    *testing.T
	body io.ReadCloser
	in   *bufio.Reader
}

// watch opens the stream of figures of a process, and returns the answer's status.
func (c *client) watch(p *process.P, role auth.Role, query string) (*watcher, int) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 2*time.Minute)
	c.t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL()+"/v1/admin/events"+query, http.NoBody)
	if err != nil {
		c.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+c.token("root", role))
	resp, err := (&http.Client{Transport: underContract(c.t, &http.Transport{DisableKeepAlives: true})}).Do(r)
	if err != nil {
		c.t.Fatalf("watch: %v", err)
	}
	c.t.Cleanup(func() { resp.Body.Close() })
	return &watcher{t: c.t, body: resp.Body, in: bufio.NewReader(resp.Body)}, resp.StatusCode
}

// next reads an event; false at the end of the stream.
func (w *watcher) next() (f figures, ok bool) {
	w.t.Helper()
	for {
		line, err := w.in.ReadString('\n')
		if errors.Is(err, io.EOF) {
			return f, false
		}
		if err != nil {
			w.t.Fatalf("read figures: %v", err)
		}
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			if err := json.Unmarshal([]byte(data), &f); err != nil {
				w.t.Fatalf("event %q: %v", data, err)
			}
			for _, rate := range []*float64{f.Accepted, f.Committed, f.Refused} {
				if rate != nil && *rate < 0 {
					w.t.Errorf("negative rate in %s", data)
				}
			}
			return f, true
		}
	}
}

// until reads events until one is as expected.
func (w *watcher) until(what string, ok func(*figures) bool) figures {
	w.t.Helper()
	for {
		f, more := w.next()
		if !more {
			w.t.Fatalf("the stream ended before: %s", what)
		}
		if ok(&f) {
			return f
		}
	}
}

// TestFigures_OfTheDeployment: one of two API processes shows what both of them and the worker
// do. When the other is killed, it disappears, and neither its past nor that of its successor
// makes a rate negative.
func TestFigures_OfTheDeployment(t *testing.T) {
	needProcesses(t)
	s := newRedisShop(t)
	one, two := s.api(), s.api()
	s.worker()
	a, b := dial(t, one), dial(t, two)
	item := s.newItem(a, 40, 1)
	if p := a.settle(item, a.buy(item, "early", "k", untilCommitted...)); p.Status != 201 {
		t.Fatalf("buy: %s", p.verdict())
	}
	w, status := a.watch(one, auth.RoleAdmin, "?item="+item)
	if status != 200 {
		t.Fatalf("status %d", status)
	}
	w.until("all three processes", func(f *figures) bool { return f.Complete && len(f.Processes) == 3 })
	bought := stream(60, 8, func(i int) purchase {
		c := []*client{a, b}[i%2]
		return c.settle(item, c.buy(item, fmt.Sprintf("u%d", i), "k", untilCommitted...))
	})
	got := count(bought)
	want := int64(got["201"] + got["202"])
	f := w.until("what was bought", func(f *figures) bool { return f.Totals.Accepted >= want && f.Totals.Committed >= want })
	if f.Totals.Accepted != want || f.Totals.Committed != want || want != 39 {
		t.Errorf("totals %+v, and %d were bought", f.Totals, want)
	}
	f = w.until("the refusals", func(f *figures) bool { return f.Totals.ByCode["sold_out"] >= int64(got["409 sold_out"]) })
	if f.Totals.ByCode["sold_out"] != 21 || len(f.Items) != 1 || *f.Items[0].Left != 0 || *f.Items[0].State != "sold_out" {
		t.Errorf("%d refused as sold out, want 21; items %+v", f.Totals.ByCode["sold_out"], f.Items)
	}
	two.Kill()
	w.until("two processes", func(f *figures) bool { return f.Complete && len(f.Processes) == 2 })
	three := process.Start(t, two.Spec())
	c := dial(t, three)
	next := s.newItem(c, 5, 1)
	for i := range 5 {
		if p := c.settle(next, c.buy(next, fmt.Sprintf("v%d", i), "k", untilCommitted...)); p.Status != 201 {
			t.Fatalf("buy: %s", p.verdict())
		}
	}
	f = w.until("the successor", func(f *figures) bool { return f.Complete && len(f.Processes) == 3 && f.Totals.Accepted >= want+5 })
	if f.Totals.Accepted != want+5 {
		t.Errorf("totals %+v after %d", f.Totals, want+5)
	}
	term(t, three)
	w.until("its end", func(f *figures) bool { return f.Complete && len(f.Processes) == 2 })
}

// The embedded service shows its figures at once; other roles may not see them; the stream ends
// properly when the process stops, which does not wait for it.
func TestFigures_Embedded(t *testing.T) {
	needProcesses(t)
	s := newShop(t)
	p := s.serve("--drain", "10m")
	c := dial(t, p)
	item := s.newItem(c, 10, 1)
	for role, want := range map[auth.Role]int{auth.RoleBuyer: 403, auth.RoleService: 403} {
		if _, status := c.watch(p, role, ""); status != want {
			t.Errorf("%s: status %d, want %d", role, status, want)
		}
	}
	if _, status := c.watch(p, auth.RoleAdmin, "?item=none-such"); status != 404 {
		t.Errorf("an unknown item: status %d", status)
	}
	w, _ := c.watch(p, auth.RoleAdmin, "")
	w.until("figures", func(f *figures) bool { return f.Complete && *f.Accepted == 0 })
	if p := c.settle(item, c.buy(item, "alice", "k", untilCommitted...)); p.Status != 201 {
		t.Fatalf("buy: %s", p.verdict())
	}
	f := w.until("the order", func(f *figures) bool { return f.Totals.Committed == 1 && len(f.Items) == 1 })
	if f.Items[0].ID != item || *f.Items[0].Left != 9 || len(f.Processes) != 1 || f.Processes[0].Kind != "serve" {
		t.Errorf("%+v", f)
	}
	term(t, p)
	for more := true; more; _, more = w.next() { // to the end, which must be proper
	}
}

// TestTop prints lines, or draws on a terminal until q; it survives a restart of the server.
func TestTop(t *testing.T) {
	needProcesses(t)
	s := newShop(t)
	p := s.serve()
	r := process.Run(t, process.Spec{
		Args: []string{"top", "--server", p.URL(), "--token", "nonsense"}, Dir: s.dir, Env: []string{"FLASHSALE_JWT_SECRET=" + secret},
	})
	wantCode(t, 1, r, "token_malformed")
	wantCode(t, 1, s.run("top", "--addr", process.FreeAddr(t)), "refused")
	wantCode(t, 1, s.run("top", "--server", p.URL(), "--item", "none-such"), "item_not_found")

	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, process.Build(t), "top", "--server", p.URL(), "--json")
	cmd.Env = append(os.Environ(), "FLASHSALE_JWT_SECRET="+secret)
	cmd.Dir = s.dir
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var notices strings.Builder
	cmd.Stderr = &notices
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewScanner(out)
	in.Buffer(nil, 1<<20)
	read := func() {
		t.Helper()
		var f figures
		if !in.Scan() || json.Unmarshal(in.Bytes(), &f) != nil || len(f.Processes) != 1 {
			t.Fatalf("line %q, %v", in.Text(), in.Err())
		}
	}
	read()
	read()
	term(t, p)
	process.Start(t, p.Spec())
	read()
	read()
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	for in.Scan() { // until the command has ended
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("after Ctrl-C: %v\n%s", err, notices.String())
	}
	if said := notices.String(); !strings.Contains(said, "connection lost, reconnecting") || !strings.Contains(said, "connected again") {
		t.Errorf("said\n%s", said)
	}
}

// TestTop_Terminal draws on a pseudo-terminal, quits on q, and restores the terminal.
func TestTop_Terminal(t *testing.T) {
	needProcesses(t)
	script, err := exec.LookPath("script")
	if err != nil {
		t.Skip("skipped: it needs script(1) for a pseudo-terminal")
	}
	s := newShop(t)
	p := s.serve()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, script, "-qefc", "stty rows 24 cols 80; exec "+process.Build(t)+" top --server "+p.URL(), "/dev/null")
	cmd.Env = append(os.Environ(), "FLASHSALE_JWT_SECRET="+secret, "TERM=xterm-256color", "NO_COLOR=1")
	cmd.Dir = s.dir
	keys, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var seen strings.Builder
	b, quit := make([]byte, 4096), false
	for {
		n, err := out.Read(b)
		seen.Write(b[:n])
		if !quit && strings.Contains(seen.String(), "COMMITTED/S") {
			quit = true
			if _, err := io.WriteString(keys, "q"); err != nil {
				t.Fatal(err)
			}
		}
		if err != nil {
			break
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("after q: %v", err)
	}
	screen := seen.String()
	enter, leave := strings.Index(screen, "\x1b[?1049h"), strings.LastIndex(screen, "\x1b[?1049l")
	if enter < 0 || leave < enter || !strings.Contains(screen, "orders/s") || !strings.Contains(screen, "q quits") {
		t.Errorf("the screen was not drawn and restored: %q", screen)
	}
	for _, color := range []string{"\x1b[31m", "\x1b[32m", "\x1b[33m"} {
		if strings.Contains(screen, color) {
			t.Errorf("NO_COLOR is ignored: %q", color)
		}
	}
}
