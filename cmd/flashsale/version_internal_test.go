package main

import (
	"runtime/debug"
	"testing"
)

func TestDescribeBuild(t *testing.T) {
	t.Parallel()
	vcs := func(modified string) []debug.BuildSetting {
		return []debug.BuildSetting{{Key: "-trimpath", Value: "true"}, {Key: "vcs.revision", Value: "abc123"}, {Key: "vcs.modified", Value: modified}}
	}
	for name, tc := range map[string]struct {
		version, revision string
		info              debug.BuildInfo
		want              string
	}{
		"go run":         {"", "", debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}, "(devel) (revision unknown, go1.26)"},
		"go install":     {"", "", debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}}, "v1.2.3 (revision unknown, go1.26)"},
		"go build":       {"", "", debug.BuildInfo{Main: debug.Module{Version: "v1.2.4-0.20260101"}, Settings: vcs("false")}, "v1.2.4-0.20260101 (revision abc123, go1.26)"},
		"linked":         {"v9", "", debug.BuildInfo{Main: debug.Module{Version: "v1"}, Settings: vcs("false")}, "v9 (revision abc123, go1.26)"},
		"modified":       {"v9", "", debug.BuildInfo{Settings: vcs("true")}, "v9 (revision abc123-modified, go1.26)"},
		"both linked":    {"v9", "def456", debug.BuildInfo{Settings: vcs("true")}, "v9 (revision def456, go1.26)"},
		"nothing stated": {"", "", debug.BuildInfo{}, "unknown (revision unknown, go1.26)"},
	} {
		tc.info.GoVersion = "go1.26"
		if got := describeBuild(tc.version, tc.revision, &tc.info).String(); got != tc.want {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
	}
}
