package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestLog_Durations reads the source: a log field with a duration ends in the unit that main
// sets for all of them, and no other field has a duration as a bare number.
func TestLog_Durations(t *testing.T) {
	t.Parallel()
	duration := regexp.MustCompile(`\bDur\("(\w+)"`)
	bare := regexp.MustCompile(`\b(?:Int|Int64|Float64)\("(\w+)", [\w.()]*\.(?:Milliseconds|Microseconds|Nanoseconds|Seconds)\(\)\)`)
	suffix := regexp.MustCompile(`_(ms|us|ns|seconds)$`)
	found := 0
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), ".") && d.Name() != "..":
			return filepath.SkipDir
		case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range duration.FindAllStringSubmatch(string(text), -1) {
			found++
			if !strings.HasSuffix(m[1], "_ms") {
				t.Errorf("%s: the duration %q does not end in _ms", path, m[1])
			}
		}
		for _, m := range bare.FindAllStringSubmatch(string(text), -1) {
			found++
			if !suffix.MatchString(m[1]) {
				t.Errorf("%s: the duration %q does not end in its unit", path, m[1])
			}
		}
		return nil
	})
	if err != nil || found < 3 {
		t.Errorf("found %d durations in the log, error %v; the patterns no longer fit", found, err)
	}
}
