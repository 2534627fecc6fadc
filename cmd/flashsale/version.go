package main

import (
	"runtime"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
)

// version and revision are set by the linker (-X main.version=v1.2.3), as the Makefile
// does; empty: what the go command has recorded.
var version, revision string

// unknown is shown for what a build does not record: go run records no revision.
const unknown = "unknown"

// buildInfo is what this program was built from.
type buildInfo struct {
	version, revision, goVersion string
}

// thisBuild describes the running program.
func thisBuild() buildInfo {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{GoVersion: runtime.Version()}
	}
	return describeBuild(version, revision, info)
}

// describeBuild prefers what the linker set to what the go command recorded.
func describeBuild(version, revision string, info *debug.BuildInfo) buildInfo {
	b := buildInfo{version: version, goVersion: info.GoVersion}
	if b.version == "" {
		b.version = info.Main.Version
	}
	if b.version == "" {
		b.version = unknown
	}
	modified := ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			b.revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = "-modified"
		}
	}
	switch {
	case revision != "":
		b.revision = revision
	case b.revision == "":
		b.revision = unknown
	default:
		b.revision += modified
	}
	return b
}

func (b buildInfo) String() string {
	return b.version + " (revision " + b.revision + ", " + b.goVersion + ")"
}

// metric is 1, with what the program was built from as labels.
func (b buildInfo) metric() prometheus.Collector {
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "flashsale_build_info", Help: "Always 1; the labels state the version, revision and Go version.",
		ConstLabels: prometheus.Labels{"version": b.version, "revision": b.revision, "go_version": b.goVersion},
	})
	g.Set(1)
	return g
}
