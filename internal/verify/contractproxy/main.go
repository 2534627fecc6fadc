//go:build unix

// The program contractproxy checks the traffic between a black-box test and the service against
// the OpenAPI document that the service serves. `make contract` runs it.
//
//	contractproxy -bin bin/flashsale -- python3 accept.py --bin={bin}
//
// It runs the command with {bin} replaced by a stand-in for the service. The stand-in is this
// program again: it starts the real service on another port, and passes on requests, responses,
// output, signals and the exit code. When the command has ended, it prints what differs from the
// document, and exits 1 if anything does or if the command failed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

// The environment of a stand-in.
const (
	envBinary = "CONTRACTPROXY_BINARY" // the real service
	envReport = "CONTRACTPROXY_REPORT" // the folder of the reports
)

// shownDifferences bounds the output: a fault on a busy route differs thousands of times.
const shownDifferences = 50

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code, err := 0, error(nil)
	if binary := os.Getenv(envBinary); binary != "" {
		code, err = standIn(ctx, binary, os.Getenv(envReport), os.Args[1:])
	} else {
		err = run(ctx, os.Args[1:], os.Stdout)
	}
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "contractproxy: %v\n", err)
		code = 1
	}
	os.Exit(code)
}

var (
	errUsage       = errors.New("usage: contractproxy -bin SERVICE -- COMMAND [ARGUMENT...], with {bin} in an argument")
	errDifferences = errors.New("the service and its document differ")
	errIdle        = errors.New("no request went through the proxy")
)

// run runs a command with a stand-in for the service, and reports the differences.
func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("contractproxy", flag.ContinueOnError)
	binary := flags.String("bin", "", "the service")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *binary == "" || flags.NArg() == 0 {
		return errUsage
	}
	service, err := filepath.Abs(*binary)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "contractproxy-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // what stays is in a folder for temporary files
	shim, report := filepath.Join(dir, "flashsale"), filepath.Join(dir, "report")
	if err := errors.Join(os.Symlink(self, shim), os.Mkdir(report, 0o700)); err != nil {
		return err
	}
	command := flags.Args()
	for i := range command {
		command[i] = strings.ReplaceAll(command[i], "{bin}", shim)
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr = out, os.Stderr
	cmd.Env = append(os.Environ(), envBinary+"="+service, envReport+"="+report)
	// The command gets the same signal from the terminal, and cleans up.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	failed := cmd.Run()
	if failed != nil {
		failed = fmt.Errorf("%s: %w", command[0], failed)
	}
	checked, differences, err := readReports(report)
	if err != nil {
		return err
	}
	for _, text := range differences[:min(len(differences), shownDifferences)] {
		fmt.Fprintf(out, "DIFFERS %s\n", text)
	}
	fmt.Fprintf(out, "contract: %d requests checked, %d differences\n", checked, len(differences))
	switch {
	case len(differences) > 0:
		return errors.Join(failed, errDifferences)
	case checked == 0:
		return errors.Join(failed, errIdle)
	}
	return failed
}
