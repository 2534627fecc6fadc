//go:build unix

package prometheus

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/knadh/koanf/parsers/yaml"
)

// Rule is an alert rule.
type Rule struct {
	Alert, Expr, For    string
	Labels, Annotations map[string]string
}

// ReadRules reads the alert rules of a file.
func ReadRules(t testing.TB, path string) []Rule {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	tree, err := yaml.Parser().Unmarshal(text)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	// The fields' names are the same in JSON.
	plain, err := json.Marshal(tree)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	var file struct {
		Groups []struct{ Rules []Rule }
	}
	if err := json.Unmarshal(plain, &file); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	var rules []Rule
	for _, g := range file.Groups {
		rules = append(rules, g.Rules...)
	}
	return rules
}

// Dashboard is the part of a Grafana dashboard that tests check.
type Dashboard struct {
	UID           string
	Title         string
	SchemaVersion int
	Panels        []Panel
	Templating    struct {
		List []Variable
	}
}

// Variable is a variable of a dashboard.
type Variable struct {
	Name, Type string
	Definition string
}

// Panel is a panel of a dashboard.
type Panel struct {
	ID                       int
	Type, Title, Description string
	GridPos                  struct{ H, W, X, Y int }
	Datasource               Source
	FieldConfig              struct {
		Defaults struct{ Unit string }
	}
	Targets []Target
}

// Source refers to a data source.
type Source struct{ Type, UID string }

// Target is a query of a panel.
type Target struct {
	RefID, Expr, LegendFormat string
	Datasource                Source
}

// ReadDashboard reads a Grafana dashboard.
func ReadDashboard(t testing.TB, path string) *Dashboard {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var d Dashboard
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return &d
}

// Plain replaces Grafana's variables in an expression, so that Prometheus can evaluate it.
func Plain(expr string) string {
	return strings.NewReplacer("$__rate_interval", "1m", "$job", ".*", "$instance", ".*").Replace(expr)
}

// Selector is a metric in an expression, with the matchers of its labels.
type Selector struct {
	Metric   string
	Matchers []Matcher
}

// Matcher is a condition on a label. Op is one of = != =~ !~.
type Matcher struct{ Label, Op, Value string }

var (
	selector = regexp.MustCompile(`\b(up|(?:flashsale|go|process)_[a-z0-9_]+)\b\s*(?:\{([^}]*)\})?`)
	matcher  = regexp.MustCompile(`(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"`)
	grouping = regexp.MustCompile(`\b(?:by|on|without|ignoring)\s*\(([^)]*)\)`)
	legend   = regexp.MustCompile(`\{\{\s*(\w+)\s*\}\}|\$labels\.(\w+)`)
)

// Selectors finds the metrics of an expression.
func Selectors(expr string) []Selector {
	var all []Selector
	for _, m := range selector.FindAllStringSubmatch(expr, -1) {
		s := Selector{Metric: m[1]}
		for _, c := range matcher.FindAllStringSubmatch(m[2], -1) {
			s.Matchers = append(s.Matchers, Matcher{c[1], c[2], c[3]})
		}
		all = append(all, s)
	}
	return all
}

// Labels finds the labels that an expression groups by, and those in texts with {{label}} or
// $labels.label.
func Labels(expr string, texts ...string) []string {
	var all []string
	for _, m := range grouping.FindAllStringSubmatch(expr, -1) {
		all = append(all, strings.FieldsFunc(m[1], func(r rune) bool { return r == ',' || r == ' ' })...)
	}
	for _, text := range texts {
		for _, m := range legend.FindAllStringSubmatch(text, -1) {
			if name := m[1] + m[2]; name != "else" && name != "end" {
				all = append(all, name)
			}
		}
	}
	return all
}
