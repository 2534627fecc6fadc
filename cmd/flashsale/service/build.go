package service

import "github.com/prometheus/client_golang/prometheus"

// Build describes the source of this program.
type Build struct {
	Version, Revision, GoVersion string
}

// String describes the build in one line.
func (b Build) String() string {
	return b.Version + " (revision " + b.Revision + ", " + b.GoVersion + ")"
}

// metric is 1, with the build as labels.
func (b Build) metric() prometheus.Collector {
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "flashsale_build_info", Help: "Always 1; the labels state the version, revision and Go version.",
		ConstLabels: prometheus.Labels{"version": b.Version, "revision": b.Revision, "go_version": b.GoVersion},
	})
	g.Set(1)
	return g
}
