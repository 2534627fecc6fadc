// Command micro compares the allocations of two runs of `make bench-micro`, the stored baseline
// and a new one. They hardly depend on the machine, so they can be compared where times cannot:
//
//	allocations per operation changed: HotPath_Handler 5 -> 6
//
// A change is a result, and the exit code stays 0.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench/micro:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	if len(args) != 2 {
		return errors.New("usage: micro BASELINE NEW")
	}
	baseline, err := readFile(args[0])
	if err != nil {
		return err
	}
	latest, err := readFile(args[1])
	if err != nil {
		return err
	}
	return report(out, baseline, latest)
}

// readFile reads the output of a run.
func readFile(path string) (result, error) {
	f, err := os.Open(path)
	if err != nil {
		return result{}, err
	}
	r, err := read(f)
	if err != nil {
		return result{}, fmt.Errorf("%s: %w", path, err)
	}
	return r, f.Close()
}
