package main

import (
	"runtime"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
)

// version is set by the linker (-X main.version=v1.2.3); empty: that of the module.
var version string

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
	return describeBuild(version, info)
}

// describeBuild prefers the version that the linker set to the module's.
func describeBuild(linked string, info *debug.BuildInfo) buildInfo {
	b := buildInfo{version: linked, revision: unknown, goVersion: info.GoVersion}
	if b.version == "" {
		b.version = info.Main.Version
	}
	if b.version == "" {
		b.version = unknown
	}
	modified := false
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.revision = s.Value
		case "vcs.modified":
			modified = s.Value == "true"
		}
	}
	if modified && b.revision != unknown {
		b.revision += "-modified"
	}
	return b
}

func (b buildInfo) String() string {
	return b.version + " (revision " + b.revision + ", " + b.goVersion + ")"
}

// metric is 1, with what the program was built from as labels.
func (b buildInfo) metric() prometheus.Collector {
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "flashsale_build_info", Help: "Always 1; the labels say what the program was built from.",
		ConstLabels: prometheus.Labels{"version": b.version, "revision": b.revision, "go_version": b.goVersion},
	})
	g.Set(1)
	return g
}
