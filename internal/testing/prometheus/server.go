//go:build unix

package prometheus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/child"
	"flashsale/internal/testing/freeport"
)

const (
	// scrapeEvery is the interval of scrapes and evaluations. A scrape of a process whose Redis
	// does not answer takes a second.
	scrapeEvery = "2s"
	// logTail is how much of the server's log a failed test shows, in bytes.
	logTail = 4 << 10
	// reapWithin bounds the wait for the kernel after SIGKILL.
	reapWithin = 10 * time.Second
	pollEvery  = 100 * time.Millisecond
)

// Config configures a server.
type Config struct {
	// Rules is the text of a rule file.
	Rules string
	// Job is the value of the label job.
	Job string
	// Targets are the host:port to scrape.
	Targets []string
}

// Server is a Prometheus server that scrapes every two seconds.
type Server struct {
	t    testing.TB
	url  string
	log  string // path
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
}

// Start starts a server on a free port and returns once it is ready. It is killed by its own pid
// at the end of the test.
func Start(t testing.TB, cfg Config) *Server {
	t.Helper()
	program := Program(t, "prometheus")
	dir := t.TempDir()
	targets, err := json.Marshal(cfg.Targets)
	if err != nil {
		t.Fatal(err)
	}
	settings := fmt.Sprintf("global: {scrape_interval: %[1]s, scrape_timeout: %[1]s, evaluation_interval: %[1]s}\nrule_files: [rules.yaml]\n"+
		"scrape_configs:\n- job_name: %[2]s\n  static_configs:\n  - targets: %[3]s\n", scrapeEvery, cfg.Job, targets)
	for name, text := range map[string]string{"prometheus.yaml": settings, "rules.yaml": cfg.Rules} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	addr, err := freeport.Addr()
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{t: t, url: "http://" + addr, log: filepath.Join(dir, "log"), done: make(chan struct{})}
	// Not bound to the test's context: kill ends it.
	s.cmd = exec.CommandContext(context.WithoutCancel(t.Context()), program, "--config.file=prometheus.yaml", "--storage.tsdb.path=data", "--web.listen-address="+addr)
	s.cmd.Dir = dir
	if err := s.start(); err != nil {
		t.Fatalf("start prometheus: %v", err)
	}
	t.Cleanup(s.kill)
	await.Every(t, pollEvery, "prometheus is ready", func() bool {
		select {
		case <-s.done:
			t.Fatal("prometheus ended before it was ready" + s.tail())
		default:
		}
		res, err := s.get("/-/ready")
		if err != nil {
			return false
		}
		return res.Body.Close() == nil && res.StatusCode == http.StatusOK
	})
	return s
}

// start creates the process; its output goes to a file.
func (s *Server) start() error {
	out, err := os.Create(s.log)
	if err != nil {
		return err
	}
	s.cmd.Stdout, s.cmd.Stderr = out, out
	err = child.Start(s.cmd, func(error) { close(s.done) })
	// The running process has its own descriptor.
	return errors.Join(err, out.Close())
}

func (s *Server) kill() {
	if err := s.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		s.t.Errorf("kill prometheus: %v", err)
	}
	limit := time.NewTimer(reapWithin)
	defer limit.Stop()
	select {
	case <-s.done:
	case <-limit.C:
		s.t.Errorf("prometheus (pid %d) is still there %v after SIGKILL", s.cmd.Process.Pid, reapWithin)
	}
	if s.t.Failed() {
		s.t.Log(s.tail())
	}
}

// tail formats the end of the log.
func (s *Server) tail() string {
	text, err := os.ReadFile(s.log)
	if err != nil {
		return "; its log: " + err.Error()
	}
	return "; prometheus's log ends:\n" + string(text[max(0, len(text)-logTail):])
}

func (s *Server) get(path string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, s.url+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	return http.DefaultClient.Do(req)
}

// read decodes the data of an answer of the HTTP API.
func (s *Server) read(path string, into any) {
	s.t.Helper()
	res, err := s.get(path)
	if err != nil {
		s.t.Fatalf("prometheus: %v", err)
	}
	var body struct {
		Status, Error string
		Data          json.RawMessage
	}
	err = errors.Join(json.NewDecoder(res.Body).Decode(&body), res.Body.Close())
	if err == nil && body.Status != "success" {
		err = fmt.Errorf("%s: %s", res.Status, body.Error)
	}
	if err == nil {
		err = json.Unmarshal(body.Data, into)
	}
	if err != nil {
		s.t.Fatalf("prometheus: %s: %v", path, err)
	}
}

// Alert is a pending or firing alert.
type Alert struct {
	Labels, Annotations map[string]string
	// State is "pending" or "firing".
	State string
	Value string
}

// Name is the alert's name.
func (a *Alert) Name() string { return a.Labels["alertname"] }

// Alerts returns the pending and the firing alerts.
func (s *Server) Alerts() []Alert {
	s.t.Helper()
	var data struct{ Alerts []Alert }
	s.read("/api/v1/alerts", &data)
	return data.Alerts
}

// Sample is one series of a query's result.
type Sample struct {
	Metric map[string]string
	// Value has the time and, as a string, the value.
	Value [2]any
}

// Query evaluates an expression now.
func (s *Server) Query(expr string) []Sample {
	s.t.Helper()
	var data struct{ Result []Sample }
	s.read("/api/v1/query?query="+url.QueryEscape(expr), &data)
	return data.Result
}

// Rules checks that the server has loaded all of its rules and evaluates them without errors,
// and returns the number of alerts.
func (s *Server) Rules() int {
	s.t.Helper()
	var data struct {
		Groups []struct {
			Rules []struct{ Name, Health, LastError string }
		}
	}
	s.read("/api/v1/rules", &data)
	n := 0
	for _, g := range data.Groups {
		for _, r := range g.Rules {
			n++
			if r.Health == "err" || strings.TrimSpace(r.LastError) != "" {
				s.t.Errorf("rule %s: %s", r.Name, r.LastError)
			}
		}
	}
	return n
}
