package ops

import (
	"context"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// readyDesc has one series for each part, so that an alert can name the part that fails.
var readyDesc = prometheus.NewDesc("flashsale_ready",
	"1 if the part of this process works, 0 if it fails; /readyz answers 503 while any part is 0.", []string{"part"}, nil)

// readyCollector exports the readiness of a process. The parts that only degrade the service
// are left out: they have metrics of their own.
type readyCollector struct{ ready *Readiness }

// Describe lists the metric.
func (c readyCollector) Describe(to chan<- *prometheus.Desc) { to <- readyDesc }

// Collect runs the checks, or uses a result that is not older than 200 ms.
func (c readyCollector) Collect(to chan<- prometheus.Metric) {
	// A scrape that is cancelled must not leave a failure for the next caller of /readyz.
	state := c.ready.State(context.Background()) //nolint:forbidigo // Collect gets no context; State has its own limit
	seen := make(map[string]bool, len(c.ready.parts))
	for i := range c.ready.parts {
		part := &c.ready.parts[i]
		if part.Degrades != "" || seen[part.Name] {
			continue
		}
		seen[part.Name] = true
		v := 1.0
		if slices.Contains(state.failing, part.Name) {
			v = 0
		}
		to <- prometheus.MustNewConstMetric(readyDesc, prometheus.GaugeValue, v, part.Name)
	}
}
