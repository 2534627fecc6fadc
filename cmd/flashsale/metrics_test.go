//go:build unix

package main_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

var helpLine = regexp.MustCompile(`(?m)^# HELP (flashsale_\S+) (.*)$`)

// All metrics follow Prometheus' conventions and are documented, and a purchase is in the
// histogram of each of its steps.
func TestMetrics_Names(t *testing.T) {
	needProcesses(t)
	s := newRedisShop(t)
	api, worker := s.api(), s.worker()
	c := dial(t, api)
	item := s.newItem(c, 3, 1)
	only(t, []purchase{c.buy(item, "alice", "k", untilCommitted...)}, "201")
	if again := c.buy(item, "alice", "other", untilCommitted...); again.Status != 409 {
		t.Errorf("above the limit: %s", again.verdict())
	}
	raw, err := os.ReadFile("../../docs/monitoring.md")
	if err != nil {
		t.Fatal(err)
	}
	pages := string(raw)
	both := metricsOf(t, api) + metricsOf(t, worker)
	for _, text := range []string{metricsOf(t, api), metricsOf(t, worker)} {
		problems, err := promlint.New(strings.NewReader(text)).Lint()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
	for _, m := range helpLine.FindAllStringSubmatch(both, -1) {
		name, help := m[1], m[2]
		if !strings.Contains(pages, "`"+name+"`") && !strings.Contains(pages, "`"+name+"{") {
			t.Errorf("docs/monitoring.md does not have %s", name)
		}
		if !strings.HasSuffix(help, ".") {
			t.Errorf("the help of %s is no sentence: %s", name, help)
		}
		if strings.Contains(both, "# TYPE "+name+" histogram") && !regexp.MustCompile(`_(seconds|bytes|requests|orders)$`).MatchString(name) {
			t.Errorf("the histogram %s has no unit", name)
		}
	}
	for _, step := range []string{"admission", "batch_wait", "lock_wait", "script", "queue", "commit"} {
		line := regexp.MustCompile(`(?m)^flashsale_purchase_step_duration_seconds_count\{step="` + step + `"\} (\d+)$`).FindStringSubmatch(both)
		if line == nil || line[1] == "0" {
			t.Errorf("the step %s: %v", step, line)
		}
	}
	if !strings.Contains(both, `flashsale_purchase_duration_seconds_count{outcome="committed"} 1`) {
		t.Errorf("whole purchases:\n%s", grep(both, "flashsale_purchase_duration"))
	}
}
