package main

import (
	_ "embed"
	"errors"
	"fmt"
	"regexp"
	"strings"
)

//go:embed rules.txt
var ruleFile string

// rule is one construction of the rule file.
type rule struct {
	name   string
	only   string // the kind of text that the rule is limited to; "" for all
	find   *regexp.Regexp
	except []*regexp.Regexp
	write  string // the better wording
}

// parseRules reads a rule file. Its head describes the format.
func parseRules(file string) ([]rule, error) {
	var rules []rule
	for number, line := range strings.Split(file, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if strings.HasPrefix(line, "[") && strings.HasSuffix(line, "]") {
			rules = append(rules, rule{name: line[1 : len(line)-1]})
			continue
		}
		if len(rules) == 0 {
			return nil, fmt.Errorf("prose: rule file, line %d: %q comes before the first [name]", number+1, line)
		}
		if err := rules[len(rules)-1].add(line); err != nil {
			return nil, fmt.Errorf("prose: rule file, line %d: %w", number+1, err)
		}
	}
	for _, r := range rules {
		if r.find == nil || r.write == "" {
			return nil, fmt.Errorf("prose: rule file: [%s] needs a find and a write line", r.name)
		}
	}
	return rules, nil
}

// add reads one "key: value" line of a rule.
func (r *rule) add(line string) error {
	key, value, found := strings.Cut(line, ":")
	value = strings.TrimSpace(value)
	if !found || value == "" {
		return fmt.Errorf("%q is not of the form key: value", line)
	}
	switch key {
	case "in":
		r.only = value
	case "write":
		r.write = value
	case "find", "except":
		expression, err := regexp.Compile("(?im)" + value)
		if err != nil {
			return err
		}
		if key == "except" {
			r.except = append(r.except, expression)
			return nil
		}
		if r.find != nil {
			return errors.New("a second find line")
		}
		r.find = expression
	default:
		return fmt.Errorf("unknown key %q; the keys are find, except, write and in", key)
	}
	return nil
}

// finding is one place where a text matches a rule.
type finding struct {
	path  string
	line  int
	kind  string
	rule  *rule
	match string
}

// findings returns the places of t that match a rule.
func findings(rules []rule, t text) []finding {
	var found []finding
	for i := range rules {
		r := &rules[i]
		if r.only != "" && r.only != t.kind {
			continue
		}
		for _, span := range r.find.FindAllStringIndex(t.body, -1) {
			if r.allows(t.body, span) {
				continue
			}
			found = append(found, finding{
				path: t.path, line: t.line(span[0]), kind: t.kind, rule: r, match: t.body[span[0]:span[1]],
			})
		}
	}
	return found
}

// allows reports whether an exception of the rule overlaps the span.
func (r *rule) allows(body string, span []int) bool {
	for _, exception := range r.except {
		for _, allowed := range exception.FindAllStringIndex(body, -1) {
			if allowed[0] < span[1] && span[0] < allowed[1] {
				return true
			}
		}
	}
	return false
}
