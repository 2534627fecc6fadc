package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// result is what `go test -bench` printed.
type result struct {
	machine string // and its Go version
	names   []string
	// allocs are the allocations per operation of each benchmark, ascending, by its name.
	allocs map[string][]float64
}

// errNoBenchmark says that a file has no result with allocations.
var errNoBenchmark = errors.New("no benchmark with allocs/op")

// processors is the suffix of a benchmark's name.
var processors = regexp.MustCompile(`-\d+$`)

// read reads the output of `go test -bench . -benchmem`, and the lines of configuration that
// .ci/bench-micro.sh adds to it.
func read(r io.Reader) (result, error) {
	got := result{allocs: map[string][]float64{}}
	config := map[string]string{}
	packages := map[string]string{}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		line := lines.Text()
		if !strings.HasPrefix(line, "Benchmark") {
			if key, value, ok := strings.Cut(line, ": "); ok {
				config[key] = value
			}
			continue
		}
		name, allocs, ok := parse(line)
		if !ok {
			continue
		}
		if from, known := packages[name]; known && from != config["pkg"] {
			return result{}, fmt.Errorf("%s is in %s and in %s", name, from, config["pkg"])
		}
		packages[name] = config["pkg"]
		if got.allocs[name] == nil {
			got.names = append(got.names, name)
		}
		got.allocs[name] = append(got.allocs[name], allocs)
	}
	if err := lines.Err(); err != nil {
		return result{}, err
	}
	if len(got.names) == 0 {
		return result{}, errNoBenchmark
	}
	for _, runs := range got.allocs {
		slices.Sort(runs)
	}
	got.machine = fmt.Sprintf("%s, %s cores, %s", config["cpu"], config["cores"], config["go"])
	return got, nil
}

// parse reads the line of one run: the name, the number of iterations, and then values with
// their units.
func parse(line string) (name string, allocs float64, ok bool) {
	fields := strings.Fields(line)
	for i := 2; i+1 < len(fields); i += 2 {
		if fields[i+1] != "allocs/op" {
			continue
		}
		allocs, err := strconv.ParseFloat(fields[i], 64)
		name = strings.TrimPrefix(processors.ReplaceAllString(fields[0], ""), "Benchmark")
		return name, allocs, err == nil
	}
	return "", 0, false
}

// report writes how the allocations of each benchmark differ.
func report(out io.Writer, baseline, latest result) error {
	var b strings.Builder
	fmt.Fprintf(&b, "baseline: %s\nthis run: %s\n", baseline.machine, latest.machine)
	if baseline.machine != latest.machine {
		b.WriteString("the machines differ: times cannot be compared, allocations can\n")
	}
	head := b.Len()
	for _, name := range latest.names {
		now, before := latest.allocs[name], baseline.allocs[name]
		switch {
		case before == nil:
			fmt.Fprintf(&b, "not in the baseline: %s\n", name)
		case differ(before, now):
			fmt.Fprintf(&b, "allocations per operation changed: %s %g -> %g\n", name, median(before), median(now))
		}
	}
	for _, name := range baseline.names {
		if latest.allocs[name] == nil {
			fmt.Fprintf(&b, "only in the baseline: %s\n", name)
		}
	}
	if b.Len() == head {
		fmt.Fprintf(&b, "allocations per operation: no changes (%d benchmarks)\n", len(latest.names))
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// leastShare is the smallest relative change that is reported.
const leastShare = 0.01

// differ reports whether all runs of one result are above all runs of the other, by at least
// leastShare. Allocations of a benchmark with several goroutines vary a little.
func differ(before, now []float64) bool {
	if now[0] <= before[len(before)-1] && before[0] <= now[len(now)-1] {
		return false
	}
	change := median(now) - median(before)
	return max(change, -change) >= leastShare*median(before)
}

// median of ascending values.
func median(values []float64) float64 { return values[len(values)/2] }
