//go:build unix

// The tests of this folder check the alert rules, the dashboard and the runbook against each
// other. cmd/flashsale compares them with the metrics of a running service, and makes each alert
// fire.
package grafana_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"flashsale/internal/testing/prometheus"
)

const (
	rulesFile     = "alerts.yaml"
	dashboardFile = "dashboard.json"
	runbookFile   = "../../docs/runbook.md"
	overviewFile  = "../../docs/monitoring.md"
)

// The rules are valid, fire on the series of their fault, and are silent on a healthy service.
func TestAlerts_Promtool(t *testing.T) {
	t.Parallel()
	prometheus.Promtool(t, ".", "check", "rules", rulesFile)
	prometheus.Promtool(t, ".", "test", "rules", "alerts_test.yaml")
	tests, err := os.ReadFile("alerts_test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range prometheus.ReadRules(t, rulesFile) {
		if n := strings.Count(string(tests), "alertname: "+r.Alert+"\n"); n == 0 {
			t.Errorf("alerts_test.yaml has no test in which %s fires", r.Alert)
		}
		if n := strings.Count(string(tests), "alertname: "+r.Alert+", exp_alerts: []"); n < 2 {
			t.Errorf("alerts_test.yaml has %d tests in which %s is silent, want one on a healthy service and one before it fires", n, r.Alert)
		}
	}
}

// Each alert says what an operator needs: how urgent it is, what it has seen, and where the
// runbook continues. The overview lists it.
func TestAlerts_Annotations(t *testing.T) {
	t.Parallel()
	overview, err := os.ReadFile(overviewFile)
	if err != nil {
		t.Fatal(err)
	}
	rules := prometheus.ReadRules(t, rulesFile)
	if len(rules) < 10 {
		t.Fatalf("read %d rules", len(rules))
	}
	for _, r := range rules {
		if !strings.HasPrefix(r.Alert, "Flashsale") || r.For == "" {
			t.Errorf("%s: for is %q", r.Alert, r.For)
		}
		if s := r.Labels["severity"]; s != "critical" && s != "warning" {
			t.Errorf("%s: severity %q", r.Alert, s)
		}
		if s := r.Annotations["summary"]; s == "" || strings.HasSuffix(s, ".") {
			t.Errorf("%s: summary %q", r.Alert, s)
		}
		if s := r.Annotations["description"]; !strings.HasSuffix(strings.TrimSuffix(s, "{{ end }}"), ".") || !strings.Contains(s, "$value") {
			t.Errorf("%s: the description is no sentence with the value: %q", r.Alert, s)
		}
		link := "runbook.md#" + strings.ToLower(r.Alert)
		if got := r.Annotations["runbook_url"]; got != "docs/"+link {
			t.Errorf("%s: runbook_url %q, want docs/%s", r.Alert, got, link)
		}
		row := regexp.MustCompile(`(?m)^\| \[` + r.Alert + `\]\(` + link + `\) \| .* \| ` + r.Labels["severity"] + ` \|$`)
		if !row.Match(overview) {
			t.Errorf("%s has no row with its severity in %s", r.Alert, overviewFile)
		}
	}
}

var (
	section = regexp.MustCompile(`(?m)^### (Flashsale\w+)$`)
	bold    = regexp.MustCompile(`\*\*([^*]+)\*\*`)
)

// Each alert has a section in the runbook and each section an alert, with the same four parts.
// The panels that the runbook names exist.
func TestRunbook(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(runbookFile)
	if err != nil {
		t.Fatal(err)
	}
	text := string(raw)
	var alerts, sections []string
	for _, r := range prometheus.ReadRules(t, rulesFile) {
		alerts = append(alerts, r.Alert)
	}
	at := section.FindAllStringSubmatchIndex(text, -1)
	for i, m := range at {
		end := len(text)
		if i+1 < len(at) {
			end = at[i+1][0]
		}
		name, body := text[m[2]:m[3]], text[m[1]:end]
		sections = append(sections, name)
		for _, part := range []string{"\n- Meaning: ", "\n- See: ", "\n- Do", "\n- Over: "} {
			if !strings.Contains(body, part) {
				t.Errorf("the section %s has no part %q", name, strings.TrimSpace(part))
			}
		}
		if !bold.MatchString(body) {
			t.Errorf("the section %s names no panel", name)
		}
	}
	slices.Sort(alerts)
	slices.Sort(sections)
	if !slices.Equal(alerts, sections) {
		t.Errorf("alerts %q, sections of the runbook %q", alerts, sections)
	}
	titles := make(map[string]bool)
	for _, p := range prometheus.ReadDashboard(t, dashboardFile).Panels {
		titles[p.Title] = true
	}
	for _, m := range bold.FindAllStringSubmatch(text, -1) {
		title := strings.Join(strings.Fields(m[1]), " ")
		if !titles[title] {
			t.Errorf("the runbook names a panel %q, which the dashboard does not have", title)
		}
	}
}

// Each panel has what a reader needs, works in any Grafana without plugins, and has its own
// place.
func TestDashboard(t *testing.T) {
	t.Parallel()
	d := prometheus.ReadDashboard(t, dashboardFile)
	if d.UID == "" || d.Title == "" || d.SchemaVersion < 39 {
		t.Errorf("uid %q, title %q, schema %d; Grafana 11 has 39", d.UID, d.Title, d.SchemaVersion)
	}
	var variables []string
	for _, v := range d.Templating.List {
		variables = append(variables, v.Name)
	}
	if want := []string{"datasource", "job", "instance"}; !slices.Equal(variables, want) {
		t.Errorf("variables %q, want %q: any other may have an unbounded number of values", variables, want)
	}
	core := []string{"row", "timeseries", "stat"}
	ids, titles := make(map[int]bool), make(map[string]bool)
	taken := make(map[[2]int]string)
	for i := range d.Panels {
		p := &d.Panels[i]
		name := fmt.Sprintf("panel %d (%s)", p.ID, p.Title)
		if p.ID == 0 || ids[p.ID] || p.Title == "" || titles[p.Title] || !slices.Contains(core, p.Type) {
			t.Errorf("%s: id, title or type %q is missing, used twice or not part of Grafana", name, p.Type)
		}
		ids[p.ID], titles[p.Title] = true, true
		place(t, name, p, taken)
		if p.Type == "row" {
			continue
		}
		if !strings.HasSuffix(p.Description, ".") || p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0 {
			t.Errorf("%s: description %q, unit %q, %d queries", name, p.Description, p.FieldConfig.Defaults.Unit, len(p.Targets))
		}
		for _, q := range p.Targets {
			if q.Expr == "" || q.Datasource.UID != "${datasource}" || p.Datasource != q.Datasource {
				t.Errorf("%s: query %q of %+v", name, q.Expr, q.Datasource)
			}
		}
	}
}

// place marks the cells of a panel in Grafana's grid of 24 columns, which must be free.
func place(t *testing.T, name string, p *prometheus.Panel, taken map[[2]int]string) {
	t.Helper()
	g := p.GridPos
	if g.W < 1 || g.H < 1 || g.X < 0 || g.X+g.W > 24 {
		t.Errorf("%s is outside the grid: %+v", name, g)
	}
	for x := g.X; x < g.X+g.W; x++ {
		for y := g.Y; y < g.Y+g.H; y++ {
			if other := taken[[2]int{x, y}]; other != "" {
				t.Errorf("%s overlaps %s", name, other)
				return
			}
			taken[[2]int{x, y}] = name
		}
	}
}

// The queries of the dashboard are valid: promtool checks them as recording rules.
func TestDashboard_Promtool(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("groups:\n- name: dashboard\n  rules:\n")
	for _, p := range prometheus.ReadDashboard(t, dashboardFile).Panels {
		for _, q := range p.Targets {
			fmt.Fprintf(&b, "  - record: panel_%d_%s\n    expr: %q\n", p.ID, strings.ToLower(q.RefID), prometheus.Plain(q.Expr))
		}
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "rules.yaml"), []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	prometheus.Promtool(t, dir, "check", "rules", "rules.yaml")
}
