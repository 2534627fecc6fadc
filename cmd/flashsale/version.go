package main

import (
	"runtime"
	"runtime/debug"

	"flashsale/cmd/flashsale/service"
)

// The linker sets version and revision (-X main.version=v1.2.3), as in the Makefile; empty: the
// values recorded by the go command.
var version, revision string

// unknown is shown for values that a build does not record: go run records no revision.
const unknown = "unknown"

// thisBuild describes the running program.
func thisBuild() service.Build {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{GoVersion: runtime.Version()}
	}
	return describeBuild(version, revision, info)
}

// describeBuild prefers the linker's values to those recorded by the go command.
func describeBuild(version, revision string, info *debug.BuildInfo) service.Build {
	b := service.Build{Version: version, GoVersion: info.GoVersion}
	if b.Version == "" {
		b.Version = info.Main.Version
	}
	if b.Version == "" {
		b.Version = unknown
	}
	modified := ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			b.Revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = "-modified"
		}
	}
	switch {
	case revision != "":
		b.Revision = revision
	case b.Revision == "":
		b.Revision = unknown
	default:
		b.Revision += modified
	}
	return b
}
