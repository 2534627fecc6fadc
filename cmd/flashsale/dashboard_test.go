//go:build unix

package main_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"flashsale/internal/testing/longtest"
	"flashsale/internal/testing/process"
	"flashsale/internal/testing/prometheus"
	"flashsale/internal/testing/redistest"
)

const (
	alertRules = "../../deploy/grafana/alerts.yaml"
	dashboard  = "../../deploy/grafana/dashboard.json"
	runbook    = "../../docs/runbook.md"
)

// usedQueries returns the expressions of the alerts and the dashboard, by where they are used,
// and the labels that they and their texts refer to.
func usedQueries(t *testing.T) (exprs map[string]string, labels map[string][]string) {
	t.Helper()
	exprs, labels = make(map[string]string), make(map[string][]string)
	for _, r := range prometheus.ReadRules(t, alertRules) {
		exprs[r.Alert] = r.Expr
		labels[r.Alert] = prometheus.Labels(r.Expr, r.Annotations["description"])
	}
	d := prometheus.ReadDashboard(t, dashboard)
	for _, p := range d.Panels {
		for _, q := range p.Targets {
			name := "panel " + p.Title + " " + q.RefID
			exprs[name] = q.Expr
			labels[name] = prometheus.Labels(q.Expr, q.LegendFormat)
		}
	}
	for _, v := range d.Templating.List {
		exprs["variable "+v.Name] = v.Definition
	}
	return exprs, labels
}

// scraped are the labels that Prometheus adds, and those of histograms.
var scraped = []string{"job", "instance", "le"}

// missing returns what a selector refers to and the page of metrics lacks, or "".
func missing(page prometheus.Page, s prometheus.Selector) string {
	var fits []map[string]string
	for _, labels := range page[s.Metric] {
		if !slices.ContainsFunc(s.Matchers, func(m prometheus.Matcher) bool { return !matches(labels, m) }) {
			fits = append(fits, labels)
		}
	}
	if len(fits) == 0 && s.Metric != "up" {
		return s.Metric
	}
	return ""
}

// absent are the values that a healthy service does not have: classes of status and codes of
// problems appear with their first use. TestDashboard_MetricsExist checks the codes.
var absent = []string{"status", "code"}

// matches reports whether a series can have a label, with that value where a matcher names one.
func matches(labels map[string]string, m prometheus.Matcher) bool {
	value, there := labels[m.Label]
	switch {
	case slices.Contains(scraped, m.Label):
		return true
	case !there:
		return false
	case strings.HasPrefix(m.Op, "!"), slices.Contains(absent, m.Label):
		return true
	case m.Op == "=~":
		return regexp.MustCompile("^(?:" + m.Value + ")$").MatchString(value)
	default:
		return value == m.Value
	}
}

// Every metric and label that the dashboard and the alerts use is on the pages of a running
// service.
func TestDashboard_MetricsExist(t *testing.T) {
	needProcesses(t)
	needSQLite(t)
	s := newShopOn(t, redistest.Real(t, "--appendfsync", "everysec", "--maxmemory", "1gb"))
	api, worker := s.api(), s.worker()
	c := dial(t, api)
	item := s.newItem(c, 3, 1)
	only(t, []purchase{c.buy(item, "alice", "k", untilCommitted...), c.buy(item, "alice", "other")}, "201", "409 user_limit")
	if a := c.get("/v1/items/"+item, "alice"); a.Status != 200 {
		t.Fatalf("read item: %s", a.verdict())
	}
	exprs, labels := usedQueries(t)
	if len(exprs) < 60 {
		t.Fatalf("found %d expressions", len(exprs))
	}
	var page prometheus.Page
	eventually(t, "every metric in use", soon, func() (bool, any) {
		page = make(prometheus.Page)
		for _, p := range []*process.P{api, worker} {
			page.Add(metricsOf(t, p))
		}
		lacking := make(map[string]string)
		for where, expr := range exprs {
			for _, sel := range prometheus.Selectors(prometheus.Plain(expr)) {
				if m := missing(page, sel); m != "" {
					lacking[where] = m
				}
			}
		}
		return len(lacking) == 0, lacking
	})
	problems, err := os.ReadFile("../../docs/problems.md")
	if err != nil {
		t.Fatal(err)
	}
	for where, expr := range exprs {
		known := slices.Clone(scraped)
		for _, sel := range prometheus.Selectors(expr) {
			for _, series := range page[sel.Metric] {
				for label := range series {
					known = append(known, label)
				}
			}
			for _, m := range sel.Matchers {
				if m.Label == "code" && !strings.Contains(string(problems), "\n## "+m.Value+"\n") {
					t.Errorf("%s: no problem has the code %s", where, m.Value)
				}
			}
		}
		for _, l := range labels[where] {
			if !slices.Contains(known, l) {
				t.Errorf("%s: no metric in it has the label %s", where, l)
			}
		}
	}
}

var (
	shellBlock  = regexp.MustCompile("(?s)```sh\n(.*?)```")
	commandLine = regexp.MustCompile(`(?m)^\s*(?:\w+=\$\()?flashsale ([a-z]+)((?: [^\n|)]*)?)`)
)

// Every command of the runbook exists, with its flags.
func TestRunbook_CommandsExist(t *testing.T) {
	needProcesses(t)
	raw, err := os.ReadFile(runbook)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, block := range shellBlock.FindAllStringSubmatch(string(raw), -1) {
		for _, m := range commandLine.FindAllStringSubmatch(block[1], -1) {
			found++
			path := []string{m[1]}
			args := strings.Fields(m[2])
			if len(args) > 0 && regexp.MustCompile(`^[a-z]+$`).MatchString(args[0]) {
				path = append(path, args[0])
			}
			help := command(t, append(path, "--help")...)
			if help.Code != 0 || !strings.Contains(help.Output, "flashsale "+strings.Join(path, " ")) {
				t.Errorf("flashsale %s: exit code %d\n%s", strings.Join(path, " "), help.Code, help.Output)
			}
			for _, a := range args {
				if name, _, _ := strings.Cut(a, "="); strings.HasPrefix(name, "--") && !strings.Contains(help.Output, name+" ") {
					t.Errorf("flashsale %s has no flag %s", strings.Join(path, " "), name)
				}
			}
		}
	}
	if found < 20 {
		t.Errorf("found %d commands in the runbook", found)
	}
}

// empty are the panels without data on a service without faults.
var empty = []string{"Share of purchases answered with 5xx"}

// Each panel shows data of a running service, so no query combines series whose labels differ.
func TestDashboard_ShowsData_Long(t *testing.T) {
	longtest.Only(t)
	needProcesses(t)
	s := newShopOn(t, redistest.Real(t, "--appendfsync", "everysec", "--maxmemory", "1gb"))
	api, worker := s.api(often...), s.worker()
	c := dial(t, api)
	item := s.newItem(c, 3, 1)
	w := s.watch(api, worker)
	n := 0
	w.until("every panel has data", func() (bool, any) {
		n++
		only(t, []purchase{c.buy(item, fmt.Sprint("u", n), "k", untilCommitted...)}, "201", "409 sold_out")
		if a := c.get("/v1/items/"+item, "alice"); a.Status != 200 {
			t.Fatalf("read item: %s", a.verdict())
		}
		var without []string
		for _, p := range prometheus.ReadDashboard(t, dashboard).Panels {
			for _, q := range p.Targets {
				if !slices.Contains(empty, p.Title) && len(w.prom.Query(prometheus.Plain(q.Expr))) == 0 {
					without = append(without, p.Title+" "+q.RefID)
				}
			}
		}
		return len(without) == 0, without
	})
}
