//go:build unix

package prometheus

import (
	"regexp"
	"strings"
)

// Page has the series of pages of metrics: name -> the labels of each series.
type Page map[string][]map[string]string

var (
	series = regexp.MustCompile(`^([a-z_:][a-z0-9_:]*)(?:\{(.*)\})? \S+$`)
	label  = regexp.MustCompile(`(\w+)="((?:[^"\\]|\\.)*)"`)
)

// Add adds the series of a page in Prometheus's text format.
func (p Page) Add(text string) {
	for line := range strings.Lines(text) {
		m := series.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		if m == nil {
			continue
		}
		labels := make(map[string]string)
		for _, l := range label.FindAllStringSubmatch(m[2], -1) {
			labels[l[1]] = l[2]
		}
		p[m[1]] = append(p[m[1]], labels)
	}
}
