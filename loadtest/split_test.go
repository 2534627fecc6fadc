package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"flashsale/internal/testing/process"
)

// needRedis skips the test where no redis-server is installed, and fails it with
// CI=true.
func needRedis(t *testing.T) {
	t.Helper()
	_, err := exec.LookPath("redis-server")
	switch {
	case err == nil:
	case os.Getenv("CI") == "true":
		t.Fatal(err)
	default:
		t.Skip("skipped: redis-server is not installed; `make deps` installs it")
	}
}

// TestRun_Split is --split as its users run it, on a small scale.
func TestRun_Split(t *testing.T) {
	t.Parallel()
	needRedis(t)
	var out, errs bytes.Buffer
	code := run(t.Context(), []string{"--split", "--buyers", "1600", "--stock", "800", "--duplicates", "0.2", "--json"}, &out, &errs)
	var s summary
	if err := json.Unmarshal(out.Bytes(), &s); err != nil {
		t.Fatalf("exit %d: %v\n%s\n%s", code, err, out.String(), errs.String())
	}
	want := "PASS accepted=800 persisted=800 oversold=0 lost=0 duplicated=0 over_limit=0 unsold=0"
	if code != exitPassed || s.Line != want || lastLine(errs.String()) != want {
		t.Errorf("exit %d\n%s\n%s", code, out.String(), errs.String())
	}
	if len(s.Kills) != 2 || s.Kills[0].Process != "api 1" || s.Kills[1].Process != "worker 1" || s.Load.Connections != 200 {
		t.Errorf("kills %+v with %d connections", s.Kills, s.Load.Connections)
	}
}

// The workers are killed in the middle and come back: everything is sold, and the report
// has the gap, the recovery and their marks.
func TestRun_Kill(t *testing.T) {
	t.Parallel()
	needRedis(t)
	path := filepath.Join(t.TempDir(), "report.html")
	var out, errs bytes.Buffer
	code := run(t.Context(), []string{"--split", "--kill", "worker@50%", "--down", "1s", "--async", "--buyers", "400", "--stock", "400",
		"--profile", "steady", "--rate", "200", "--json", "--report", path}, &out, &errs)
	var s summary
	if err := json.Unmarshal(out.Bytes(), &s); err != nil {
		t.Fatalf("exit %d: %v\n%s\n%s", code, err, out.String(), errs.String())
	}
	if want := "PASS accepted=400 persisted=400 oversold=0 lost=0 duplicated=0 over_limit=0 unsold=0"; code != exitPassed || s.Line != want {
		t.Fatalf("exit %d\n%s\n%s", code, s.Line, errs.String())
	}
	k := s.Kills
	if len(k) != 1 || k[0].Process != "all workers" || k[0].AcceptedBefore < 200 || k[0].Back == nil || *k[0].Back <= k[0].At {
		t.Fatalf("kills %+v", k)
	}
	var names []string
	for _, m := range s.Series.Marks {
		names = append(names, m.What)
	}
	// The last answer may come before the workers do.
	if names[0] != "all workers killed" || !slices.Contains(names, "all workers ready again") {
		t.Errorf("marks: %q", names)
	}
	var most int64
	for _, p := range s.Series.Points {
		if p.Queued != nil && p.At > k[0].At {
			most = max(most, *p.Queued)
		}
	}
	if !slices.Contains(s.Series.Outages, outage{"all workers down", k[0].At, *k[0].Back}) {
		t.Errorf("outages %v", s.Series.Outages)
	}
	// 200 orders come in the second without a worker.
	if most < 50 {
		t.Errorf("at most %d orders were queued after the kill", most)
	}
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	checkReport(t, page, out.String())
	checkSeries(t, &s)
}

func TestRun_SplitWithoutRedis(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	var out, errs bytes.Buffer
	code := run(t.Context(), []string{"--split"}, &out, &errs)
	if code != exitFailed || out.Len() > 0 || !strings.Contains(errs.String(), "make deps") || !strings.Contains(errs.String(), "apt-get install redis-server") {
		t.Errorf("exit %d\n%s\n%s", code, out.String(), errs.String())
	}
}

func newDeployment(t *testing.T) *deployment {
	t.Helper()
	return &deployment{dir: t.TempDir(), bin: process.Build(t), secret: newSecret()}
}

// allEnded fails the test if a process of the deployment is left.
func allEnded(t *testing.T, d *deployment) {
	t.Helper()
	for _, p := range slices.Concat(d.apis, d.workers) {
		select {
		case <-p.exited:
		default:
			t.Errorf("%s is still running", p.name)
		}
	}
	select {
	case <-d.redis.Done():
	default:
		t.Error("redis-server is still running")
	}
}

// Processes that were started before a failure are ended.
func TestDeployment_FailsToStart(t *testing.T) {
	t.Parallel()
	needRedis(t)
	d := newDeployment(t)
	err := d.start(t.Context(), options4test(t, "--split", "--db", "sqlite:/dev/null/shop.db"))
	if err == nil || !strings.Contains(err.Error(), "migrate the database") {
		t.Errorf("got %v", err)
	}
	if d.redis == nil {
		t.Fatal("Redis was not started")
	}
	if err := d.stop(); err != nil {
		t.Error(err)
	}
	allEnded(t, d)
}

// An interrupt in the middle of the burst leaves nothing behind.
func TestDeployment_Interrupted(t *testing.T) {
	t.Parallel()
	needRedis(t)
	d := newDeployment(t)
	// The crowd cannot finish before the interrupt.
	o := options4test(t, "--split", "--profile", "steady", "--rate", "100")
	if err := d.start(t.Context(), o); err != nil {
		t.Fatal(errors.Join(err, d.stop()))
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	at := d.place(o)
	kill := at.victims[0].kill
	at.victims[0].kill = func() error {
		cancel()
		return kill()
	}
	at.victims[0].target = anyTarget
	o.Stock = 20 // the kill comes early
	if s, err := at.test(ctx, o, t.Logf, io.Discard); s != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("got %+v, %v", s, err)
	}
	if err := d.stop(); err != nil {
		t.Error(err)
	}
	if !d.apis[0].killed || len(d.apis) != 2 || len(d.workers) != 2 {
		t.Errorf("%d APIs and %d workers; the first API killed: %v", len(d.apis), len(d.workers), d.apis[0].killed)
	}
	allEnded(t, d)
	if _, err := os.Stat(d.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is still there: %v", err)
	}
}
