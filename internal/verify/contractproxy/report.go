//go:build unix

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// report is what one stand-in found. It is on disk after each request, because tests kill the
// processes that they start.
type report struct {
	mu          sync.Mutex
	checked     int64
	counter     *os.File // the number of requests checked
	differences *os.File // one on each line
}

const (
	countSuffix      = ".count"
	differenceSuffix = ".differences"
)

// openReport creates the report of this process in a folder.
func openReport(dir string) (*report, error) {
	name := filepath.Join(dir, strconv.Itoa(os.Getpid()))
	counter, err := os.Create(name + countSuffix)
	if err != nil {
		return nil, err
	}
	differences, err := os.Create(name + differenceSuffix)
	if err != nil {
		return nil, err
	}
	return &report{counter: counter, differences: differences}, nil
}

// count counts one request.
func (r *report) count() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.checked++
	if _, err := r.counter.WriteAt(strconv.AppendInt(nil, r.checked, 10), 0); err != nil {
		fmt.Fprintf(os.Stderr, "contractproxy: write report: %v\n", err)
	}
}

// add adds a difference.
func (r *report) add(difference error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	line := strings.ReplaceAll(difference.Error(), "\n", "; ") + "\n"
	if _, err := r.differences.WriteString(line); err != nil {
		fmt.Fprintf(os.Stderr, "contractproxy: write report: %v\n", err)
	}
}

// readReports returns the number of requests that all processes checked, and the differences,
// each text once.
func readReports(dir string) (checked int64, differences []string, err error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return 0, nil, err
	}
	for _, file := range files {
		text, err := os.ReadFile(filepath.Join(dir, file.Name()))
		if err != nil {
			return 0, nil, err
		}
		switch {
		case strings.HasSuffix(file.Name(), differenceSuffix):
			differences = slices.AppendSeq(differences, strings.SplitSeq(strings.TrimSuffix(string(text), "\n"), "\n"))
		case len(text) > 0:
			n, err := strconv.ParseInt(string(text), 10, 64)
			if err != nil {
				return 0, nil, fmt.Errorf("read report: %w", err)
			}
			checked += n
		}
	}
	slices.Sort(differences)
	differences = slices.Compact(differences)
	return checked, slices.DeleteFunc(differences, func(text string) bool { return text == "" }), nil
}
