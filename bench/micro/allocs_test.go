package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const head = "go: go1.26.8\ncores: 2\ngoos: linux\npkg: flashsale/handler\ncpu: AMD EPYC\n"

// runs is the output for one benchmark with the given allocations.
func runs(name string, allocs ...string) string {
	var b strings.Builder
	for _, n := range allocs {
		b.WriteString("Benchmark" + name + "-2   \t  100\t  2345 ns/op\t  64 B/op\t  " + n + " allocs/op\n")
	}
	return b.String()
}

func TestReport(t *testing.T) {
	t.Parallel()
	const machines = "baseline: AMD EPYC, 2 cores, go1.26.8\nthis run: AMD EPYC, 2 cores, go1.26.8\n"
	none := machines + "allocations per operation: no changes (1 benchmarks)\n"
	for _, c := range []struct{ name, before, now, want string }{
		{"the same", runs("A", "5", "5"), runs("A", "5", "5"), none},
		{"one more", runs("A", "5", "5"), runs("A", "6", "6"), machines + "allocations per operation changed: A 5 -> 6\n"},
		{"one less", runs("A/x", "6", "6"), runs("A/x", "5"), machines + "allocations per operation changed: A/x 6 -> 5\n"},
		{"from none", runs("A", "0"), runs("A", "1"), machines + "allocations per operation changed: A 0 -> 1\n"},
		{"to none", runs("A", "1"), runs("A", "0"), machines + "allocations per operation changed: A 1 -> 0\n"},
		{"overlapping", runs("A", "5", "6", "5"), runs("A", "6", "6", "6"), none},
		{"one inside the range", runs("A", "5", "9", "5"), runs("A", "7"), none},
		{"too little", runs("A", "3000", "3001"), runs("A", "3010", "3009"), none},
		{"large", runs("A", "3000", "3001"), runs("A", "3200", "3201"), machines + "allocations per operation changed: A 3001 -> 3201\n"},
		{"new", runs("A", "1"), runs("A", "1") + runs("B", "1"), machines + "not in the baseline: B\n"},
		{"removed", runs("A", "1") + runs("B", "1"), runs("A", "1"), machines + "only in the baseline: B\n"},
		{"other lines", runs("A", "1") + "PASS\nok  \tflashsale/lock\t1.2s\nBenchmarkA\n", runs("A", "1"), none},
		{"another machine", runs("A", "1"), "cpu: other\n" + runs("A", "2"), "baseline: AMD EPYC, 2 cores, go1.26.8\n" +
			"this run: other, 2 cores, go1.26.8\nthe machines differ: times cannot be compared, allocations can\n" +
			"allocations per operation changed: A 1 -> 2\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			before, now := filepath.Join(dir, "before"), filepath.Join(dir, "now")
			for path, text := range map[string]string{before: head + c.before, now: head + c.now} {
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			var out strings.Builder
			if err := run([]string{before, now}, &out); err != nil || out.String() != c.want {
				t.Errorf("error %v, output\n%swant\n%s", err, out.String(), c.want)
			}
		})
	}
}

func TestRead_Errors(t *testing.T) {
	t.Parallel()
	if _, err := read(strings.NewReader(head + "BenchmarkA-2 100 23 ns/op\nPASS\n")); !errors.Is(err, errNoBenchmark) {
		t.Errorf("without allocations: %v", err)
	}
	twice := head + runs("A", "1") + "pkg: flashsale/lock\n" + runs("A", "1")
	if _, err := read(strings.NewReader(twice)); err == nil || !strings.Contains(err.Error(), "flashsale/handler and in flashsale/lock") {
		t.Errorf("one name in two packages: %v", err)
	}
}

// TestBaseline: the stored baseline can be read.
func TestBaseline(t *testing.T) {
	t.Parallel()
	r, err := readFile("baseline.txt")
	if err != nil {
		t.Fatal(err)
	}
	for name := range r.allocs {
		if !strings.HasPrefix(name, "HotPath_") {
			t.Errorf("the baseline has %s, which make bench-micro does not run", name)
		}
	}
}
